"""The peak by torch's categories: by hand, summed over drawn cycles, and a plain loop over each workload's timeline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import START_NS, Event, Key, recording_of
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle, put_together
from tracer.analysis.profiles.memory_timeline import (
    TAGGED,
    Breakdown,
    CycleBreakdown,
    MemoryTimeline,
    breakdown,
    memory_timeline,
)
from tracer.errors import RecordingError


def timeline_of(found: CycleFindings) -> MemoryTimeline:
    return memory_timeline(found.recording, found.categories, device=found.peak.device)


def cycle(true_peak_bytes: int, *at_tagged_peak: int) -> CycleBreakdown:
    rows = (*at_tagged_peak, *(0,) * (len(TAGGED) - len(at_tagged_peak)))
    return CycleBreakdown(true_peak_bytes, rows, 0)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_intermediate_is_true_peak_less_tagged_peak() -> None:
    # The tagged peak holds 60 + 30 bytes; the true one, at another instant, 100.
    one = cycle(100, 60, 30)
    assert one.tagged_peak_bytes == 90
    rows = breakdown("cpu", [one]).rows_bytes
    assert list(rows) == [*(category.name for category in TAGGED), "INTERMEDIATE"]
    assert (rows["PARAMETER"], rows["OPTIMIZER_STATE"], rows["INTERMEDIATE"]) == (60, 30, 10)


def test_rows_are_means_and_so_is_the_peak() -> None:
    """The guide's file had the last cycle's peak beside the means of the rows, which do not sum to it."""
    both = breakdown("cpu", [cycle(100, 60, 30), cycle(300, 80, 50)])
    assert both.peak_bytes == 200
    assert both.rows_bytes["PARAMETER"] == 70
    assert both.rows_bytes["OPTIMIZER_STATE"] == 40
    assert both.rows_bytes["INTERMEDIATE"] == (10 + 170) // 2


def test_fractions_of_a_byte_go_to_intermediate() -> None:
    # Means 1.5 and 2.5 of a peak of 5 are 1 and 2, and 2 remain, of which 1 is fractions.
    both = breakdown("cpu", [cycle(5, 1, 2), cycle(5, 2, 3)])
    assert both.rows_bytes["INTERMEDIATE"] == 2
    assert sum(both.rows_bytes.values()) == both.peak_bytes == 5


def test_no_cycles_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one cycle"):
        breakdown("cpu", [])
    with pytest.raises(RecordingError, match="before a single step was profiled"):
        put_together([])


def test_memory_whose_address_was_handed_out_again_is_not_counted_twice() -> None:
    # 100 bytes from before lie at 10; event 0 gets 100 bytes there: 100 are in use, where torch's timeline has 200.
    found = find_in_cycle(recording_of([Event(10, 100, 2), Event(500, 1, 3)], [Key(10, 100, 1)]))
    assert timeline_of(found).totals_bytes.max() == 201
    assert found.breakdown.true_peak_bytes == 101
    assert found.peak.time_ns == START_NS + 1


# ---- the law ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 10**12), min_size=7, max_size=7), st.integers(0, 10**12)), min_size=1)
)
def test_rows_sum_to_the_peak_in_whole_bytes(cycles: list[tuple[list[int], int]]) -> None:
    drawn = Breakdown("cpu", tuple(cycle(sum(rows) + more, *rows) for rows, more in cycles))
    rows = drawn.rows_bytes
    assert sum(rows.values()) == drawn.peak_bytes
    assert all(isinstance(size, int) and size >= 0 for size in rows.values())
    exact = sum(sum(rows) + more for rows, more in cycles) / len(cycles)
    assert drawn.peak_bytes == pytest.approx(exact, abs=1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_on_every_workload_rows_sum_to_the_peak(name: str, recorded: Callable[[str], Recorded]) -> None:
    findings = put_together(recorded(name).cycles)
    drawn = findings.breakdown
    assert sum(drawn.rows_bytes.values()) == drawn.peak_bytes > 0
    assert drawn.peak_bytes == sum(peak.peak_bytes for peak in findings.peaks) // len(findings.peaks)
    assert min(drawn.rows_bytes.values()) >= 0
    for one in drawn.cycles:
        assert one.tagged_peak_bytes <= one.true_peak_bytes


@pytest.mark.parametrize("name", WORKLOADS)
def test_on_every_workload_a_plain_loop_agrees(name: str, recorded: Callable[[str], Recorded]) -> None:
    """The tagged peak: the first row in which the seven categories hold most, less what is known to be dead."""
    for found in recorded(name).cycles:
        if found.lifetimes.died_unseen.any():
            continue
        best: list[int] = [0] * len(TAGGED)
        timeline = timeline_of(found)
        best_ns = int(timeline.times_ns[0])
        for time_ns, row in zip(timeline.times_ns.tolist(), timeline.sizes_bytes.tolist(), strict=True):
            if sum(row[: len(TAGGED)]) > sum(best):
                best, best_ns = row[: len(TAGGED)], time_ns
        assert list(found.breakdown.at_tagged_peak_bytes) == best
        assert found.breakdown.tagged_peak_ns == best_ns
        assert np.max(timeline.totals_bytes) == found.breakdown.true_peak_bytes


def test_some_workload_has_cycles_of_different_peaks(recorded: Callable[[str], Recorded]) -> None:
    """Else the means over cycles above were of equal numbers."""
    findings = put_together(recorded("lbfgs").cycles)
    assert len({cycle.true_peak_bytes for cycle in findings.breakdown.cycles}) == 2
    assert findings.worst.peak.peak_bytes == max(peak.peak_bytes for peak in findings.peaks)
