"""The list of what would help says how far a rehearsal may be off, where it may be."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tracer.advice.recommendation import AdviceReport, Recommendation
from tracer.exporters.screen.advice import print_advice
from tracer.units import MIB

ROW = Recommendation("one", ("paste",), 2 * MIB, None, 8 * MIB, None, "same results", "", "", "rehearsed")


@pytest.mark.parametrize(("more_bytes", "is_said"), [(MIB, True), (MIB // 8, True), (MIB // 20, False), (0, False)])
def test_what_no_rehearsal_has_is_said_from_a_hundredth_of_the_peak_on(more_bytes: int, is_said: bool) -> None:
    report = AdviceReport("cpu", 10 * MIB, None, (ROW,), num_tried=3, unrehearsed_bytes=more_bytes)
    file = io.StringIO()
    print_advice(report, Console(file=file, width=200))
    assert ("of the measured peak are not in the rehearsal of the same step" in file.getvalue()) == is_said
    assert "    paste" in file.getvalue()
