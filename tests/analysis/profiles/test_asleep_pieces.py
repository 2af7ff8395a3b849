"""Memory that an engine unmaps while it sleeps: torch counts it, and it is not on the device."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import START_NS, Event, known_of, recording_of
from tracer.analysis.profiles.block_lifetimes import AsleepPieces
from tracer.analysis.profiles.caveats import asleep_sentences
from tracer.analysis.profiles.counted_blocks import counted_blocks
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.capture.objects.known_storages import KnownStorages

MIB = 1 << 20
CACHE = 100 * MIB


def asleep(begin_ns: int, end_ns: int, *, address: int = CACHE, size_bytes: int = 64 * MIB) -> KnownStorages:
    """A piece that is unmapped between two times since the start."""
    columns = {
        "asleep_address": address,
        "asleep_size_bytes": size_bytes,
        "asleep_device": 0,
        "asleep_ns": START_NS + begin_ns,
        "awake_ns": START_NS + end_ns,
    }
    arrays: dict[str, Any] = {name: np.array([value]) for name, value in columns.items()}
    return replace(known_of(device="cuda:0"), **arrays)


def colocated(known: KnownStorages) -> CycleFindings:
    """A KV cache of 64 MiB, weights of 8, a training step of 48 and, behind it, a rollout of 4."""
    events = [
        Event(CACHE, 64 * MIB, 1),
        Event(10 * MIB, 8 * MIB, 2),
        Event(30 * MIB, 48 * MIB, 3),
        Event(30 * MIB, -48 * MIB, 3),
        Event(30 * MIB, 4 * MIB, 4),
    ]
    recording = recording_of(events, devices=("cuda:0",))
    return find_in_cycle(recording, known=known, device="cuda:0")


def test_the_peak_is_of_what_is_on_the_device() -> None:
    """It sleeps in the training step, so that the rollout behind it is the peak."""
    cycle = colocated(asleep(1, 3))
    on_device = [size // MIB for size in cycle.lifetimes.allocator_bytes.tolist()]
    assert on_device == [64, 72, 56, 8, 76]
    alive = [int(cycle.lifetimes.size_bytes[cycle.lifetimes.alive_at(at)].sum()) // MIB for at in range(5)]
    assert alive == on_device
    assert (cycle.peak.position, cycle.peak.peak_bytes, cycle.peak.unexplained_bytes) == (4, 76 * MIB, 0)
    assert asleep_sentences(cycle.peak) == ()
    by_kind = sum(counted_blocks(cycle).by_kind.values())
    assert [size // MIB for size in np.asarray(by_kind).tolist()] == [0, *on_device]
    awake = colocated(known_of(device="cuda:0"))
    assert (awake.peak.position, awake.peak.peak_bytes) == (2, 120 * MIB)


def test_where_it_sleeps_at_the_peak_no_row_has_it_and_a_sentence_says_so() -> None:
    cycle = colocated(asleep(0, 9))
    assert cycle.peak.peak_bytes == 64 * MIB  # before it went to sleep
    cycle = colocated(asleep(-1, 9))
    assert (cycle.peak.position, cycle.peak.peak_bytes, cycle.peak.unexplained_bytes) == (2, 56 * MIB, 0)
    assert cycle.peak.counted.counter_bytes - cycle.peak.counted.asleep_bytes == 56 * MIB
    assert asleep_sentences(cycle.peak) == (
        "By torch's count 64.00 MiB more were allocated. They were not on the device: an engine slept, and had "
        "unmapped them.",
    )


NUM_EVENTS = 12
SLOT = 10
cuts = st.lists(st.integers(0, NUM_EVENTS), max_size=6).map(lambda drawn: sorted(set(drawn)))
spans = st.tuples(st.integers(-1, NUM_EVENTS - 1), st.integers(1, NUM_EVENTS)).map(
    lambda pair: (pair[0], max(pair[0] + 1, pair[1]))
)


@given(st.lists(cuts, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 5 * SLOT), spans), max_size=8))
def test_a_block_is_there_in_its_spans_and_nowhere_else(
    of_slots: list[list[int]], blocks: list[tuple[int, tuple[int, int]]]
) -> None:
    """Of each slot of addresses some stretches of events are asleep; every position is looked at by itself."""
    pieces = [(slot * SLOT, *span) for slot, cut in enumerate(of_slots) for span in list(pairwise(cut))[::2]]
    address, begins, ends = np.array(pieces, np.int64).reshape(-1, 3).T
    table = AsleepPieces(address, np.full(len(address), SLOT), begins, ends)
    at = np.array([place for place, _ in blocks], np.int64)
    made, freed = np.array([span for _, span in blocks], np.int64).reshape(-1, 2).T
    row, begin, end = table.awake(at, made, freed)
    for position in range(-1, NUM_EVENTS):
        alive = np.flatnonzero((made <= position) & (freed > position))
        expected = alive[~table.have(at[alive], position)].tolist()
        assert sorted(row[(begin <= position) & (end > position)].tolist()) == expected
