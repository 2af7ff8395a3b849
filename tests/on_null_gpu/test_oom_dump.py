"""One line in a program: where memory runs out, a snapshot with facts, which the command `snapshot` reads together."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tests.on_null_gpu.small_cards import leave_bytes
from tests.processes import ROOT, run_python
from tests.truth.isolate import Elsewhere
from tracer.exporters.facts_file import facts_path, read_facts
from tracer.sessions.oom_dump import dump_on_oom

MIB = 1 << 20


class Keeper:
    def __init__(self) -> None:
        self.history: list[Any] = []

    def remember(self, size_bytes: int) -> None:
        self.history.append(torch.ones(size_bytes, dtype=torch.uint8, device="cuda"))


def _fails(path: Path) -> tuple[set[str], set[str]]:
    """Paths of holders, and the operands on the way, also in a function that the error has left."""
    dump_on_oom(path)
    keeper = Keeper()
    leave_bytes(0, 100 * MIB)
    with suppress(torch.OutOfMemoryError):
        for _ in range(9):
            keeper.remember(30 * MIB)
    found = read_facts(facts_path(path)).objects
    return {holder.path for holder in found.holders}, {operand.name for operand in found.operands}


def test_a_failure_leaves_a_snapshot_and_facts_that_are_read_together(elsewhere: Elsewhere, tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    holders, operands = elsewhere(_fails, path)
    assert "keeper.history[...]" in holders and "self.history" in operands

    def told() -> str:
        return " ".join(run_python(ROOT / "main.py", "snapshot", path, folder=tmp_path).stdout.split())

    assert "90.00 MiB in 3 blocks, held by keeper.history[...] (local variable of _fails()" in told()
    facts = facts_path(path)
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"time_us": 5}))
    ran = run_python(ROOT / "main.py", "snapshot", path, folder=tmp_path)
    assert "keeper.history" not in ran.stdout
    assert f"Note: {facts} is of another failure, and is left out." in ran.stderr


def _each_rank(path: Path) -> list[str]:
    dump_on_oom(path)
    leave_bytes(0, MIB)
    with suppress(torch.OutOfMemoryError):
        torch.ones(64 * MIB, device="cuda")
    return sorted(each.name for each in path.parent.iterdir())


def test_each_rank_writes_its_own(elsewhere: Elsewhere, tmp_path: Path) -> None:
    of_rank = Elsewhere({**elsewhere.variables, "RANK": "3", "WORLD_SIZE": "8"})
    assert of_rank(_each_rank, tmp_path / "oom.pickle") == ["oom_rank3.facts.json", "oom_rank3.pickle"]
