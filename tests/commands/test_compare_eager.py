"""`--compile` and `--compare-eager` as a person meets them: screen, peak.json, page and what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.compare_eager_runs import NET
from tests.processes import run_python

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
GELU = next(number for number, line in enumerate(NET.splitlines(), 1) if "gelu" in line)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A folder with the results of each run, and how each ended."""
    folder = tmp_path_factory.mktemp("runs")
    done = run_python("-m", "tests.commands.compare_eager_runs", folder, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "ended.json").read_text())


Runs = tuple[Path, dict[str, dict[str, Any]]]


def peak(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "peak.json").read_text())
    return found


def sizes(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("bytes", "count", "category", "phase", "module", "file", "line", "name")
    return [tuple(row[name] for name in names) for row in document["rows"]]


def test_neither_run_sees_the_other(runs: Runs) -> None:
    """Both are what they are when they are made alone."""
    folder, ended = runs
    assert [ended[name]["code"] for name in ("plain", "compiled", "both")] == [0, 0, 0], ended
    assert sizes(peak(folder / "both" / "eager")) == sizes(peak(folder / "plain"))
    assert sizes(peak(folder / "both")) == sizes(peak(folder / "compiled"))
    assert not any(row["is_compiled"] for row in peak(folder / "plain")["rows"])
    assert any(row["is_compiled"] for row in peak(folder / "both")["rows"])
    assert peak(folder / "compiled")["eager"] is None


def test_the_changes_sum_to_both_peaks_and_lines_match(runs: Runs) -> None:
    folder, _ = runs
    document = peak(folder / "both")
    eager, changes = document["eager"], document["eager"]["changes"]
    assert eager["peak_bytes"] == peak(folder / "plain")["peak_bytes"]
    assert sum(one["eager_bytes"] for one in changes) == eager["peak_bytes"]
    assert sum(one["compiled_bytes"] for one in changes) == document["peak_bytes"]
    # What both runs hold of the line with two operators stands in one row, with the module.
    assert [
        one["module"]
        for one in changes
        if one["where"].endswith(f"net.py:{GELU}") and one["eager_bytes"] and one["compiled_bytes"]
    ]


def test_screen_and_page_say_what_compiling_changes(runs: Runs) -> None:
    folder, ended = runs
    said = ended["both"]["stdout"]
    assert "Compiled, and the same without compilation\n  Without compilation the peak is " in said
    assert "Compiled, and the same without compilation" in (folder / "both" / "memory_timeline.html").read_text()
    assert "without compilation" not in ended["compiled"]["stdout"]


def test_a_report_says_it_again_to_the_byte(runs: Runs) -> None:
    folder, ended = runs
    assert ended["report"]["code"] == 0
    for name in ("peak.json", "memory_timeline.html"):
        assert (folder / "again" / name).read_bytes() == (folder / "both" / name).read_bytes()
    assert ended["report"]["stdout"].split("Compiled, and")[1] == ended["both"]["stdout"].split("Compiled, and")[1]


def test_two_folders_are_matched_by_line_too(runs: Runs) -> None:
    _, ended = runs
    assert ended["diff"]["code"] == 0
    assert "->torch.ops" in "".join(ended["diff"]["stdout"].split("By line")[1].split())


def test_a_step_function_that_compiles_is_run_without(runs: Runs) -> None:
    folder, ended = runs
    assert ended["step"]["code"] == 0, ended["step"]
    assert not any(row["is_compiled"] for row in peak(folder / "step" / "eager")["rows"])
    assert any(row["is_compiled"] for row in peak(folder / "step")["rows"])


def test_a_run_that_fails_without_compiling_leaves_the_other_one(runs: Runs) -> None:
    folder, ended = runs
    one = ended["failing"]
    assert one["code"] == 0, one
    assert " raised RuntimeError: only compiled" in one["stderr"]
    assert "There is no comparison: without compilation the run failed" in one["stderr"]
    assert peak(folder / "failing")["eager"] is None
