"""`--advise` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracer.changes.recommendation import Group
from tracer.commands.app import app

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")

_FACTORY = ["--model", "tests.changes.programs:stack", "--device", "cpu"]
_SHORT = [
    *("--n-wait-steps", "0", "--n-active-steps", "1", "--n-repeats", "1"),
    *("--no-cuda-timing", "--no-memory-timeline"),
]


def test_a_run_is_followed_by_advice_on_screen_and_in_a_file(tmp_path: Path) -> None:
    ended = CliRunner().invoke(
        app, [*_FACTORY, *_SHORT, "--advise", "--gpu-memory", "2.5MiB", "--save-dir", str(tmp_path)]
    )
    assert ended.exit_code == 0, ended.output
    assert "What would help" in ended.stdout
    assert "To fit in 2.50 MiB: " in ended.stdout
    values = json.loads((tmp_path / "advice.json").read_text("utf-8"))
    assert values["target_bytes"] == 5 << 19
    assert values["fit"]["peak_bytes"] <= 5 << 19
    order = [(Group[row["group"].upper()], -row["saves_bytes"]) for row in values["rows"]]
    assert order == sorted(order)
    for row in values["rows"]:
        assert row["change"] in ended.stdout.replace("\n", " ") or len(row["change"]) > 20


@pytest.mark.parametrize("option", [["--verify"], ["--gpu-memory", "4GiB"]])
def test_what_is_about_advice_has_a_meaning_only_with_it(option: list[str], tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, [*_FACTORY, *_SHORT, *option, "--save-dir", str(tmp_path)])
    assert ended.exit_code == 2
    assert f"{option[0]} works only with --advise." in ended.stderr


@pytest.mark.slow  # every change by the rules of a device; tests/changes/test_planner.py has the plan
def test_a_prediction_says_what_makes_it_fit(tmp_path: Path) -> None:
    """Nothing is in it but the device's rules: parameters, their state and cuBLAS's workspaces."""
    program = ["predict", "--model", "tests.changes.programs:stack", "--advise", "--json", "--save-dir", str(tmp_path)]
    ended = CliRunner().invoke(app, program)
    assert ended.exit_code == 0, ended.output
    advice = json.loads(ended.stdout)["advice"]
    assert advice == json.loads((tmp_path / "advice.json").read_text("utf-8"))
    assert advice["device"] == "cuda"
    assert all(row["saves_reserved_bytes"] is not None for row in advice["rows"])
