"""Ranks of which all fill the first GPU: the verdict is that of the GPU, and the line and its remedy are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.processes import run_python
from tracer.null_gpu.cards import CONTEXT_BYTES

PROGRAMS = Path(__file__).with_name("first_gpu_programs.py")
SIZE = 2 << 30
FULL = (
    "a_checkpoint_by_map_location",
    "a_tensor_in_a_hook",
    "results_of_an_evaluation",
    "a_default_device",
    "a_library_at_import",
)


def answer(name: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """The status and the document of two ranks on cards with room for one of them."""
    command = (str(ROOT / "main.py"), "predict", str(PROGRAMS), "--on", "2xh100:4GiB", "--json", name)
    ended = run_python(*command, folder=folder, limit_s=600)
    assert ended.stdout.startswith("{"), ended.stderr[-3000:]
    return ended.returncode, json.loads(ended.stdout)


def line_of(name: str) -> int:
    """The line of a program that ends with `# there`."""
    lines = PROGRAMS.read_text("utf-8").splitlines()
    begin = next(row for row, line in enumerate(lines) if line == f"def {name}() -> None:")
    return next(row + 1 for row, line in enumerate(lines) if row > begin and line.endswith("# there"))


@needs_null_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_two_ranks_that_fill_the_first_gpu_are_out_of_memory_at_its_line(name: str, tmp_path: Path) -> None:
    status, document = answer(name, tmp_path)
    assert (status, document["fits"]) == (3, False)
    first = document["gpus"][0]
    guest = next(held for held in first["holdings"] if not held["is_own"])
    assert guest["rank"] == 1 and guest["torch_bytes"] >= SIZE
    file, number = guest["line"]
    is_librarys = name == "a_library_at_import"
    assert Path(file).name == ("library_of_tables.py" if is_librarys else PROGRAMS.name)
    assert number == (2 if is_librarys else line_of(name))
    assert document["gpus"][1]["holdings"][0]["torch_bytes"] < SIZE
    # The sum is that of the processes, with a context each; the card has 4 GiB.
    parts = sum(held["torch_bytes"] + held["shared_bytes"] for held in first["holdings"])
    assert first["held_bytes"] == parts + 2 * CONTEXT_BYTES > 4 << 30


@needs_null_gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_guests"), [("a_loader_that_pins", 1), ("a_synchronization", 1), ("each_on_its_own", 0)]
)
def test_a_context_alone_is_told_and_fits(name: str, num_guests: int, tmp_path: Path) -> None:
    status, document = answer(name, tmp_path)
    assert (status, document["fits"]) == (0, True)
    guests = [held for held in document["gpus"][0]["holdings"] if not held["is_own"]]
    assert [held["bytes"] for held in guests] == [CONTEXT_BYTES] * num_guests
