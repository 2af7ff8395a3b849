"""The screen of a profile: its tables, and what is said of steps and cycles."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache

import pytest
import torch
from rich.console import Console
from torch import nn

from tests.training_steps import record
from tracer.analysis.profiles.findings import CycleFindings, Findings, find_in_cycle, put_together
from tracer.capture.profiler.event_tree import read_recording
from tracer.exporters.screen.profile import print_peak


@cache
def cycle() -> CycleFindings:
    """One step that has its peak where no phase is: in what the loop does with the outputs."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        with torch.profiler.record_function("ProfilerStep#1"):
            model(torch.ones(8, 64)).square().mean().backward()
            torch.ones(1 << 18).sum()
            optimizer.step()

    (results,) = record(step)
    return find_in_cycle(read_recording(results))


def screen_of(findings: Findings, num_steps: int | None = None) -> list[str]:
    out = io.StringIO()
    print_peak(findings, Console(file=out, width=120), num_steps=num_steps)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def phases_of(lines: list[str]) -> list[list[str]]:
    """Phase of each row of the table, and whether it is marked."""
    if "The step, phase by phase" not in lines:
        return []
    at = lines.index("The step, phase by phase")
    rows = lines[at + 2 : lines.index("", at)] if "" in lines[at:] else lines[at + 2 :]
    return [[row.split()[1], *row.split()[4:]] for row in rows]


def test_the_peaks_phase_is_a_row_in_order_of_time() -> None:
    found = phases_of(screen_of(put_together([cycle()])))
    assert found == [["forward"], ["backward"], ["other", "<-", "peak"], ["optimizer"]]


def test_a_table_without_rows_is_not_printed() -> None:
    peak = replace(cycle().peak, phase=None)
    assert phases_of(screen_of(put_together([replace(cycle(), step_phases=(), peak=peak)]))) == []


@pytest.mark.parametrize(("is_whole", "differ"), [(True, True), (False, False)])
def test_only_whole_cycles_differ(is_whole: bool, differ: bool) -> None:
    smaller = replace(cycle(), is_whole=is_whole, peak=replace(cycle().peak, peak_bytes=1))
    text = " ".join(screen_of(put_together([cycle(), smaller])))
    assert ("Cycles differ" in text) == differ
    assert ("1 cycle was cut short by the end of the run" in text) == (not is_whole)


@pytest.mark.parametrize(("num_steps", "words"), [(16, "of step 2 of 16;"), (None, "of step 2;"), (1, "of step 2;")])
def test_a_total_of_steps_is_said_where_it_is_known(num_steps: int | None, words: str) -> None:
    assert words in " ".join(screen_of(put_together([cycle()]), num_steps))
