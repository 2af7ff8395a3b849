"""Other settings and other devices."""

from __future__ import annotations

import pytest

from tests.allocator.recorded import GIB, MIB
from tests.analysis.snapshots.allocator_samples import explain, fragmented, screen
from tracer.analysis.snapshots.what_if import WORTH_TRYING
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
    assert "The least is reserved with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in said
    assert "These are the needs of a clean allocator for just these requests; a program" in said


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
