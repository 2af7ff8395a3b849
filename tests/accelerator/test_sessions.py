"""Loops that need a device with times, with streams that lag, or without a history."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs_sessions
from tests.elsewhere import Elsewhere
from tests.on_null_gpu.jobs_sessions import Told


def assert_laws(found: Told, device: int) -> None:
    """The rows are what this device's allocator counted, and every file was written."""
    assert found.device == f"pretend:{device}"
    assert found.rows_bytes == found.peak_bytes == found.counted[device]
    assert found.joined is None or found.joined[0] == found.joined[1]
    # The history's segments are what the profiler counts as reserved, at every event.
    assert found.reserved[0] == found.reserved[1]
    assert (found.reserved[1] > 0) == (found.joined is not None)
    assert found.failed_files == ()
    written = {"max_mem.txt", "peak.json", "memory_timeline.html", "memory_snapshot.pkl", "trace.json.gz"}
    assert {*written, "memory_report.sqlite", "run_time_report.sqlite"} <= set(found.files)


def test_a_block_that_waits_for_another_stream_is_neither_free_nor_in_a_row(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_sessions.train_while_another_stream_works)
    assert_laws(found, 0)
    assert found.pending_bytes == -(-2_000_000 // 512) * 512


def test_phases_are_timed_by_the_devices_own_clock(elsewhere: Elsewhere) -> None:
    """Each kernel takes as long as any other. The loss's first gradient and the sum's are the engine's."""
    found = elsewhere(jobs_sessions.time_by_events)
    assert found["clock"] == "PRETEND"
    assert found["kernels"] == pytest.approx({"model_fwd": 3, "loss_bk": 1, "opt_step": 0, "total_time": 4})
    assert "on PRETEND" in found["text"]


def test_the_timing_pass_draws_nothing_from_the_devices_numbers(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_sessions.time_by_events)
    assert [*found["drawn"], found["next"]] == found["expected"]


def test_a_backend_without_a_history_says_so_in_one_line_and_lacks_nothing_else(elsewhere: Elsewhere) -> None:
    found, snapshot = elsewhere(jobs_sessions.train_without_history)
    assert found.device == "pretend:1" and found.joined is None
    assert found.rows_bytes == found.peak_bytes == found.counted[1]
    # What was there before is known by its address, and rounded up as the recording's own sizes are.
    assert "BEFORE_RECORDING" not in found.by_category
    assert found.by_category["PARAMETER"] == 4096 + 512
    (note,) = (note for note in found.notes if note.startswith("What pretend does not offer: "))
    assert "a history of its allocator" in note
    assert [len(trace) > 0 for trace in snapshot["device_traces"]] == [False, True]
    assert {segment["device"] for segment in snapshot["segments"]} == {1}
    assert {mark["device"] for mark in snapshot["external_annotations"]} == {1}
