"""`torch-timeline doctor` as users call it: on the CPU, on the null GPU of a card, and what other cards decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.on_null_gpu import jobs_doctor
from tests.processes import run_python
from tests.truth.isolate import Elsewhere
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.process import environment

pytestmark = [needs_null_gpu, pytest.mark.slow]
OTHER_CARDS = ("t4", "l4", "rtx-3090", "rtx-4090", "a100")
DECIDED_BY_CARDS = ["card", "convolution network", "LSTM", "FNO", "autocast", "compiled", "out of memory"]


@pytest.mark.parametrize("card", [None, "h100"])
def test_nothing_fails_and_the_report_has_every_answer(card: str | None, tmp_path: Path) -> None:
    on = [] if card is None else ["--on", card]
    ended = run_python(ROOT / "main.py", "doctor", *on, "--report", "doctor.json", folder=tmp_path, limit_s=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " FAIL " not in ended.stdout.partition("\n\n")[2].rpartition("\n\n")[0]
    text = (tmp_path / "doctor.json").read_text("utf-8")
    report = json.loads(text)
    assert report["counts"]["FAIL"] == 0 and report["computed"] is (card is None)
    works = {check["name"]: check for check in report["works"]}
    assert {"convolution network", "transformer", "LSTM", "FNO", "out of memory", "watch", "files"} <= set(works)
    if card is None:
        assert works["null GPU"]["status"] == "PASS"
    else:
        assert works["compiled"]["status"] == "PASS" and works["CUDA graph"]["status"] == "PASS"
    assert not any(str(folder) in text for folder in (Path.home(), tmp_path, ROOT))


@pytest.mark.parametrize("card", OTHER_CARDS)
def test_what_a_card_decides_is_well_on_others(card: str) -> None:
    found = Elsewhere(environment([devices_of(card).card]))(jobs_doctor.answers, DECIDED_BY_CARDS)
    assert {name: status for name, (status, _, _) in found.items()} == dict.fromkeys(DECIDED_BY_CARDS, "PASS")
