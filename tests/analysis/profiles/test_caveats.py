"""Sentences on what a recording does not show: each by hand, and none where there is nothing to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.histories import Event, Key, known_of, recording_of
from tracer.analysis.kinds import Evidence
from tracer.analysis.profiles.caveats import counted, left_out, not_recorded, unseen
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle, put_together
from tracer.capture.objects.known_storages import Role
from tracer.capture.recording import Recording


def explained(recording: Recording) -> CycleFindings:
    return find_in_cycle(recording)


def test_a_recording_that_shows_everything_needs_no_sentence() -> None:
    recording = recording_of([Event(0, 100, 1)])
    found = explained(recording)
    assert unseen(recording, found.lifetimes) == ()
    assert not_recorded(found.peak) is None
    assert left_out(put_together([found])) == ()


def test_assumed_frees_and_reused_addresses_are_said_with_their_number() -> None:
    # 100 bytes from before lie where event 0 gets memory; event 1 is a free that was put in.
    recording = recording_of([Event(10, 100, 2), Event(10, -100, 2, assumed=True)], [Key(10, 100, 1)])
    lifetimes = explained(recording).lifetimes
    freed, before = unseen(recording, lifetimes)
    assert freed.startswith("1 block was freed by a thread that the profiler does not record")
    assert before.startswith("1 block from before the recording, freed without a record: each counts until its address")
    # Behind a walk it is known when each of them went: there is nothing to say, and nothing that anybody could do.
    walked = replace(lifetimes, count=replace(lifetimes.count, is_walked=True))
    assert unseen(recording, walked) == (freed,)


def test_what_was_counted_sums_to_the_count() -> None:
    known = known_of((-5, 10, 30, Role.PARAMETER, "w"))
    peak = find_in_cycle(recording_of([Event(500, 70, 1)], [Key(10, 30, 9)]), known=known).peak
    assert counted(peak) == (
        "The rows below sum to 100 bytes. An independent count gives the same: 70 by torch's CPU allocator since the "
        "recording began, 30 in tensors from before it that were used."
    )
    parts = replace(peak.counted, mapped_bytes=4, unseen_bytes=2, is_walked=True)
    assert counted(replace(peak, counted=parts, allocator_peak_bytes=106)) == (
        "The rows below sum to 100 bytes. An independent count gives 106: 70 by torch's CPU allocator since the "
        "recording began, 30 in tensors that were there before it, 4 in mapped files and shared memory, 2 made where "
        "the profiler does not record. Unexplained: 6 bytes, which no row shows."
    )
    fewer = counted(replace(peak, allocator_peak_bytes=94))
    assert fewer.endswith("Unexplained: 6 bytes, which rows show and the count has not.")


def test_on_a_gpu_the_allocator_counts() -> None:
    peak = find_in_cycle(recording_of([Event(0, 512, 1, total_bytes=10_000)], devices=("cuda:0",))).peak
    assert counted(peak) == "The rows below sum to 10,000 bytes. The allocator's own count is the same."


def test_other_threads_are_named_with_what_is_seen_of_theirs() -> None:
    peak = explained(recording_of([Event(0, 2048, 1)])).peak
    blocks = replace(peak.blocks, evidence=np.array([Evidence.UNSEEN]))
    alone = not_recorded(replace(peak, blocks=blocks))
    assert alone is not None
    assert alone.startswith("2.00 KiB of the peak were made where the profiler does not record")
    named = not_recorded(replace(peak, blocks=blocks, threads=("Thread-1", "Thread-2")))
    assert named is not None
    assert "Thread-1, Thread-2 called the model: 2.00 KiB of the peak" in named


def test_cycles_that_were_cut_are_said_and_whether_the_peak_is_in_one() -> None:
    whole, cut = explained(recording_of([Event(0, 100, 1)])), explained(recording_of([Event(0, 50, 1)]))
    cut = replace(cut, is_whole=False)
    larger = replace(explained(recording_of([Event(0, 500, 1)])), is_whole=False)
    assert left_out(put_together([whole, cut])) == (
        "1 cycle was cut short by the end of the run: means (max_mem.txt) leave that out.",
    )
    assert left_out(put_together([whole, cut, larger])) == (
        "2 cycles were cut short by the end of the run: means (max_mem.txt) leave that out, and the peak shown is in "
        "one that was cut.",
    )
