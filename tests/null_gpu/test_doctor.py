"""`torch-timeline doctor` as users call it: on the CPU, and on the null GPUs of six cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.processes import run_python

pytestmark = [needs_null_gpu, pytest.mark.slow]
CARDS = ("t4", "l4", "rtx-3090", "rtx-4090", "a100", "h100")


@pytest.mark.parametrize("card", [None, *CARDS])
def test_nothing_fails_and_the_report_has_every_answer(card: str | None, tmp_path: Path) -> None:
    on = [] if card is None else ["--on", card]
    ended = run_python(ROOT / "main.py", "doctor", *on, "--report", "doctor.json", folder=tmp_path, limit_s=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " FAIL " not in ended.stdout.partition("\n\n")[2].rpartition("\n\n")[0]
    report = json.loads((tmp_path / "doctor.json").read_text("utf-8"))
    assert report["counts"]["FAIL"] == 0 and report["computed"] is (card is None)
    works = {check["name"]: check for check in report["works"]}
    assert {"convolution network", "transformer", "LSTM", "FNO", "out of memory", "watch", "files"} <= set(works)
    if card is None:
        assert works["null GPU"]["status"] == "PASS"
    else:
        assert works["compiled"]["status"] == "PASS" and works["CUDA graph"]["status"] == "PASS"
    assert str(Path.home()) not in json.dumps(report).replace("~", "") or str(Path.home()) == "/"
