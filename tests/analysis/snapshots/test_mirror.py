"""Every file of the snapshots' analyses has a test file of its name."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "tracer" / "analysis" / "snapshots"


def test_every_file_has_tests_of_its_name() -> None:
    missing = [path.name for path in SOURCE.glob("[!_]*.py") if not (HERE / f"test_{path.name}").is_file()]
    assert missing == []
