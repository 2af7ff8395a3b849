"""`torch-timeline doctor` as users call it: on the CPU, and on the null GPU of a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.processes import run_python

pytestmark = [needs_null_gpu, pytest.mark.slow]


@pytest.mark.parametrize("card", [None, "h100", "t4"])
def test_nothing_fails_and_a_training_ran_on_each_device(card: str | None, tmp_path: Path) -> None:
    on = [] if card is None else ["--on", card]
    ended = run_python(ROOT / "main.py", "doctor", *on, "--json", folder=tmp_path, limit_s=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["counts"]["FAIL"] == 0 and report["computed"] is (card is None)
    found = {check["name"]: check for check in report["checks"]}
    trained = ["null GPU"] if card is not None else ["CPU", "null GPU"]
    assert all("the rows sum to it" in found[name]["sentence"] for name in trained)
