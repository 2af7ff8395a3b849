"""Memory beside a script's profile, of a rank that is not the first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.engines.test_start import READY
from tracer.command_line import role
from tracer.commands.followed_script import followed
from tracer.commands.script import Script
from tracer.sessions.script_run import CountedSteps, ScriptProfile


def test_the_engine_of_each_rank_is_in_its_folder_and_on_the_first_ones_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        profile = ScriptProfile(CountedSteps.of)
        with followed(Script("grpo.py", []), profile, tmp_path, quiet=False, computed=True) as told:
            reports = Path(role("engine") or "")
            reports.mkdir()
            (reports / "worker-1.json").write_text(json.dumps(asdict(READY) | {"rank": rank}), "utf-8")
            with told:
                pass
        (worker,) = json.loads((tmp_path / f"rank{rank}" / "engine.json").read_text("utf-8"))["workers"]
        assert worker["rank"] == rank
        assert ("KV cache of" in capsys.readouterr().out) == (rank == 0)
