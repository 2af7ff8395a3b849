"""The list of what would help says how far a rehearsal may be off, where it may be."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tracer.changes.recommendation import AdviceReport, Group, Measured, Recommendation, UnneededMemory
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


def _printed(report: AdviceReport) -> str:
    file = io.StringIO()
    print_advice(report, Console(file=file, width=200))
    return file.getvalue()


def test_a_heading_stands_over_the_changes_of_a_group() -> None:
    printed = _printed(
        AdviceReport(
            "cpu", 10 * MIB, None, (ROW, replace(ROW, change="two"), replace(ROW, change="three", group="training"))
        )
    )
    order = [Group.MEMORY.words, " one ", " two ", Group.TRAINING.words, " three "]
    places = [printed.index(word) for word in order]
    assert places == sorted(places)
    assert printed.count(Group.MEMORY.words) == 1


def test_why_a_change_could_not_be_tried_is_on_the_screen() -> None:
    report = AdviceReport("cpu", 10 * MIB, None, (ROW,), num_tried=1, not_tried=(("fused", "no such kernel"),))
    assert "Could not be tried: fused: no such kernel" in _printed(report)


def test_behind_a_finding_stands_no_word_on_none_of_no_changes() -> None:
    held = UnneededMemory("it", "less", (), 5 * MIB, 1, None, None, "", "", "same results", "found in the recording")
    assert "None of 0" not in _printed(AdviceReport("cpu", 10 * MIB, None, (), found=(held,)))
    assert "No change was tried" in _printed(AdviceReport("cpu", 10 * MIB, None, ()))


def test_what_was_found_is_not_contradicted_by_what_was_tried() -> None:
    held = UnneededMemory("it", "less", (), 5 * MIB, 1, None, None, "", "", "same results", "found in the recording")
    report = AdviceReport("cpu", 10 * MIB, None, (), num_tried=12)
    assert "None of 12 changes that were tried saves as much as 1 % of the peak." in _printed(report)
    printed = _printed(replace(report, found=(held,)))
    assert "None of" not in printed and "What would help" not in printed
    assert "Beside what is not needed, none of 12 changes that were tried saves as much as 1 % of the peak." in printed


def test_what_the_null_gpu_showed_is_said_once_and_not_row_by_row() -> None:
    there = replace(ROW, how_found="measured", measured=Measured(3 * MIB, 7 * MIB, None, None, (), ()))
    printed = _printed(AdviceReport("cuda", 10 * MIB, None, (there, replace(there, change="two")), num_tried=2))
    assert printed.count("those listed were made on the null GPU") == 1 and "easured" not in printed
    assert "3.00 MiB" in printed and "2.00 MiB" not in printed
    real = replace(there, measured=Measured(3 * MIB, 7 * MIB, 10.0, 11.0, (1.0,), (1.0,)))
    printed = _printed(AdviceReport("cuda", 10 * MIB, None, (real,), num_tried=2))
    assert "null GPU" not in printed and "Measured, one: 3.00 MiB less at the peak, where the rehearsal says" in printed
