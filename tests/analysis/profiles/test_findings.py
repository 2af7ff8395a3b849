"""Which device a cycle is about, which cycles are averaged, and which is the worst."""

from __future__ import annotations

import pytest

from tests.histories import Event, recording_of
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle, put_together
from tracer.errors import RecordingError


def test_a_device_without_allocations_is_an_error() -> None:
    for device in ("cuda:0", "cuda:7"):
        recording = recording_of([Event(500, 7, 2)], devices=("cpu", "cuda:0"))
        with pytest.raises(RecordingError, match=f"Nothing was allocated on {device}") as caught:
            find_in_cycle(recording, device=device)
        assert "profile_memory=True" in caught.value.hint


def test_only_the_first_and_the_last_of_several_devices_count_apart() -> None:
    events = [Event(0, 100, 1), Event(0, 4096, 2, device=1), Event(0, -100, 1)]
    recording = recording_of(events, devices=("cpu", "cuda:0"))
    assert find_in_cycle(recording).peak.device == "cuda:0"
    assert find_in_cycle(recording, device="cpu").peak.peak_bytes == 100


def cycle(peak_bytes: int, *, is_whole: bool = True) -> CycleFindings:
    return find_in_cycle(recording_of([Event(0, peak_bytes, 1)]), is_whole=is_whole)


def test_means_are_of_whole_cycles_and_the_worst_is_any() -> None:
    cycles = [cycle(100), cycle(300), cycle(900, is_whole=False)]
    found = put_together(cycles)
    assert found.averaged == tuple(cycles[:2])
    assert (found.breakdown.peak_bytes, found.breakdown.num_left_out) == (200, 1)
    assert found.worst is cycles[2]
    assert [peak.peak_bytes for peak in found.peaks] == [100, 300, 900]


def test_where_no_cycle_is_whole_all_are_averaged() -> None:
    found = put_together([cycle(100, is_whole=False), cycle(300, is_whole=False)])
    assert (found.breakdown.peak_bytes, found.breakdown.num_left_out) == (200, 0)


def test_of_equal_peaks_the_first_cycle_is_the_worst() -> None:
    cycles = [cycle(100), cycle(300), cycle(300)]
    assert put_together(cycles).worst is cycles[1]


def test_no_cycle_is_an_error() -> None:
    with pytest.raises(RecordingError, match="before a single step was profiled"):
        put_together([])


def test_without_a_history_no_entry_is_joined() -> None:
    assert cycle(100).history is None
