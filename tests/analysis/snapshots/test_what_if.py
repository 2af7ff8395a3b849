"""Other settings and other devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tracer.allocator.replay as replay_file
from tests.allocator.recorded import GIB, MIB, Program
from tests.analysis.snapshots.allocator_samples import explain, fragmented, full, screen
from tracer.allocator.history import FailedRequest, Need
from tracer.allocator.replay import smallest_capacity
from tracer.allocator.settings import AllocatorSettings
from tracer.analysis.snapshots.what_if import WORTH_TRYING
from tracer.block_sizes import SEGMENT_STEP_BYTES
from tracer.errors import SettingsError


def test_what_expandable_segments_save() -> None:
    program = fragmented()
    found = explain(program.snapshot(), settings=("expandable_segments:True",)).what_if
    assert found is not None
    recorded, expandable = found.rows
    assert recorded.outcome.reserved_peak_bytes == program.allocator.peak_reserved_bytes
    assert recorded.saved_bytes == 0
    saved = recorded.outcome.reserved_peak_bytes - expandable.outcome.reserved_peak_bytes
    assert expandable.saved_bytes == saved > 500 * MIB
    assert found.best is expandable
    said = screen(explain(program.snapshot(), settings=("expandable_segments:True",)))
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reserves the least" in said
    assert "These figures are for a clean allocator and exactly these requests; a program" in said


def test_a_cache_from_before_is_said_to_be_missing() -> None:
    program = fragmented()
    objects = program.snapshot(keep_from=40)
    said = screen(explain(objects, settings=("expandable_segments:True",)))
    assert "without what was cached before the recording" in said


def test_whether_it_runs_on_a_smaller_gpu() -> None:
    objects = fragmented().snapshot()
    large = explain(objects, gpu_memory=2 * GIB).what_if
    assert large is not None and large.runs
    row = large.rows[0]
    assert row.smallest_gpu_bytes is not None
    fits = explain(objects, gpu_memory=row.smallest_gpu_bytes)
    assert fits.what_if is not None and fits.what_if.runs
    assert fits.what_if.rows[0].on_gpu is not None and fits.what_if.rows[0].on_gpu.num_retries > 0
    assert "runs, " in screen(fits)
    fails = explain(objects, gpu_memory=row.smallest_gpu_bytes - 2 * MIB)
    assert fails.what_if is not None and not fails.what_if.runs
    assert "out of memory" in screen(fails)
    assert "As recorded: a request for " in screen(fails)


def test_it_runs_if_one_of_the_settings_asked_about_lets_it() -> None:
    objects = fragmented().snapshot()
    needed = explain(objects, settings=("expandable_segments:True",), gpu_memory=2 * GIB).what_if
    assert needed is not None
    least, expandable = (row.smallest_gpu_bytes for row in needed.rows)
    assert least is not None and expandable is not None
    small = min(least, expandable)
    found = explain(objects, settings=("expandable_segments:True",), gpu_memory=small).what_if
    assert found is not None and found.runs == (small == expandable)


def test_garbage_collection_needs_a_limit() -> None:
    objects = fragmented().snapshot()
    conf = "garbage_collection_threshold:0.5"
    without = explain(objects, settings=(conf,)).what_if
    limited = explain(objects, settings=(f"{conf},per_process_memory_fraction:0.9",), gpu_memory=GIB).what_if
    assert without is not None and limited is not None
    assert "acts only under a memory limit" in without.rows[1].remarks[0]
    assert without.rows[1].saved_bytes == 0
    assert limited.rows[1].remarks == ()
    assert limited.rows[1].on_gpu is not None
    assert limited.rows[1].on_gpu.reserved_peak_bytes < GIB


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="20 or more"):
        explain(fragmented().snapshot(), settings=("max_split_size_mb:1",))


def test_what_is_worth_trying_can_be_tried() -> None:
    found = explain(fragmented().snapshot(), settings=WORTH_TRYING).what_if
    assert found is not None
    assert len(found.rows) == 1 + len(WORTH_TRYING)


def test_other_settings_have_what_the_recording_had() -> None:
    program = full()
    found = explain(program.snapshot(), settings=("expandable_segments:True",)).what_if
    assert found is not None and found.capacity is not None
    recorded, expandable = found.rows
    assert recorded.outcome.reserved_peak_bytes == program.allocator.peak_reserved_bytes == found.recorded_peak_bytes
    assert program.allocator.peak_reserved_bytes <= found.capacity <= 400 * MIB
    assert (found.num_failed, len(recorded.outcome.unserved), expandable.outcome.unserved) == (1, 1, ())
    assert found.best is expandable
    said = " ".join(screen(explain(program.snapshot(), settings=("expandable_segments:True",))).split())
    assert "0 of 1 served as recorded" in said and "1 of 1 served expandable_segments:True" in said
    assert "With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, 1 of 1 failed request would" in said
    assert "The recording used all that the device had for it" in said


def test_a_search_names_what_saves_a_hundredth_and_what_the_recordings_torch_knew() -> None:
    objects = fragmented().snapshot()
    found = explain(objects, search_settings=True).what_if
    assert found is not None
    least = found.rows[0].outcome.reserved_peak_bytes // 100
    assert all(row.saved_bytes >= least for row in found.rows[1:]) and len(found.rows) > 1
    assert found.not_worth
    assert not any(
        "large_segment_size_mb" in text for text in [*found.not_worth, *(row.settings for row in found.rows)]
    )
    objects["allocator_settings"] = {
        **objects.get("allocator_settings", {}),
        "graph_capture_record_stream_reuse": False,
    }
    newer = explain(objects, search_settings=True).what_if
    assert newer is not None and len(newer.rows) + len(newer.not_worth) == 1 + len(WORTH_TRYING)
    asked = explain(fragmented().snapshot(), settings=("large_segment_size_mb:12",)).what_if
    assert asked is not None and "came with torch 2.11, and an older one made" in asked.rows[1].remarks[0]


def test_of_settings_that_save_as_much_the_simplest_is_named() -> None:
    objects = fragmented().snapshot()
    objects["allocator_settings"] = {
        **objects.get("allocator_settings", {}),
        "graph_capture_record_stream_reuse": False,
    }
    found = explain(objects, search_settings=True).what_if
    assert found is not None and found.best.settings == "expandable_segments:True"


def test_the_smallest_gpu_is_the_one_from_which_on_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 7 to 9 steps do not run, and 3 do, 10 are the answer: nobody can buy the luck of 3."""
    step = SEGMENT_STEP_BYTES

    def runs(*_: object, capacity: int, **__: object) -> Need:
        is_lucky = capacity // step in (3, 4, 5, 6) or capacity // step >= 10
        return replace(unlimited, failure=None if is_lucky else FailedRequest(0, 1, 1, 1))

    unlimited = Need(20 * step, 2 * step, 0, 0, None)
    monkeypatch.setattr(replay_file, "replay", runs)
    program: Any = None
    assert smallest_capacity(program, AllocatorSettings(), unlimited=unlimited) == 10 * step


def test_settings_known_to_hurt_are_named_with_a_replay_that_shows_it() -> None:
    program = Program(0)
    for _ in range(3):  # segments of 66 become 96 MiB, and 100 become 128
        program.allocator.allocate(65 * MIB)
    program.allocator.free(program.allocator.allocate(100 * MIB))
    program.allocator.allocate(4 * MIB)  # which may not use what is free of the 100
    asked = ("expandable_segments:True,max_split_size_mb:32", "roundup_power2_divisions:2", "max_split_size_mb:32")
    found = explain(program.snapshot(), settings=asked).what_if
    assert found is not None
    both, rounded, split = found.rows[1:]
    assert "123548" in both.remarks[0] and "with expandable segments alone" in both.remarks[0]
    assert rounded.saved_bytes == -(3 * 30 + 28) * MIB and "larger than asked for" in rounded.remarks[0]
    assert split.saved_bytes == -20 * MIB and "leaves large free blocks" in split.remarks[0]
