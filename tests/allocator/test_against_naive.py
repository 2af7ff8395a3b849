"""The model against a second, naive one, and against what must hold whatever happens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.allocator.naive_allocator import NaiveAllocator, NaiveOutOfMemoryError, Piece
from tests.allocator.recording_allocator import RecordingAllocator
from tracer.allocator.blocks import FREE, PENDING, UNMAPPED, USED, Block
from tracer.allocator.driver import PackingDriver
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings

MIB = 1 << 20
GIB = 1 << 30
PRIVATE = (0, 1)
DEFAULTS = AllocatorSettings()


@dataclass(frozen=True)
class Case:
    """Some settings, and how wild a program runs under them."""

    name: str
    settings: AllocatorSettings = DEFAULTS
    capacity: int | None = None
    torch_version: tuple[int, int] = (2, 15)
    streams: int = 1
    pools: bool = False
    waits: bool = False


CASES = [
    Case("default"),
    Case("default, ties by address", torch_version=(2, 12)),
    Case("streams and waiting frees", streams=3, waits=True),
    Case("on a small device", capacity=700 * MIB, waits=True),
    Case("private pool", pools=True, streams=2),
    Case("expandable", AllocatorSettings(expandable_segments=True), streams=2),
    Case("expandable on a small device", AllocatorSettings(expandable_segments=True), capacity=700 * MIB, waits=True),
    Case("expandable, old ties", AllocatorSettings(expandable_segments=True), torch_version=(2, 12), capacity=GIB),
    Case("max split", AllocatorSettings(max_split_size=64 * MIB), capacity=900 * MIB),
    Case("max split, narrow", AllocatorSettings(max_split_size=20 * MIB, max_non_split_rounding_size=20 * MIB)),
    Case(
        "max split and expandable",
        AllocatorSettings(expandable_segments=True, max_split_size=64 * MIB),
        capacity=900 * MIB,
    ),
    Case("large segments of 12 MiB", AllocatorSettings(large_segment_size=12 * MIB), capacity=GIB),
    Case(
        "expandable pages of 32 MiB",
        AllocatorSettings(expandable_segments=True, large_segment_size=32 * MIB, max_non_split_rounding_size=32 * MIB),
        capacity=GIB,
    ),
    Case("divisions", AllocatorSettings(roundup_power2_divisions=(4,) * 16), streams=2),
    Case("divisions by size", AllocatorSettings(roundup_power2_divisions=(0, 8, 1, 2, *(16,) * 12)), waits=True),
    Case("memory fraction", AllocatorSettings(per_process_memory_fraction=0.5), capacity=3 * GIB),
    Case(
        "garbage collection",
        AllocatorSettings(per_process_memory_fraction=0.5, garbage_collection_threshold=0.6),
        capacity=2 * GIB,
        streams=2,
    ),
    Case(
        "garbage collection of little",
        AllocatorSettings(per_process_memory_fraction=0.9, garbage_collection_threshold=0.2, max_split_size=64 * MIB),
        capacity=GIB,
    ),
]
OPERATIONS_PER_CASE = 6000  # times 18 cases: more than 100,000


def both(case: Case) -> tuple[RecordingAllocator, NaiveAllocator]:
    one = case.settings
    model = RecordingAllocator(
        one, driver=PackingDriver(case.capacity), device_bytes=case.capacity, torch_version=case.torch_version
    )
    model.segment_log = []
    fraction = one.per_process_memory_fraction
    naive = NaiveAllocator(
        expandable=one.expandable_segments,
        max_split=one.max_split_size,
        max_rounding=one.max_non_split_rounding_size,
        large=one.large_segment_size,
        divisions=one.roundup_power2_divisions,
        gc_threshold=one.garbage_collection_threshold,
        capacity=case.capacity,
        limit=int(fraction * case.capacity) if fraction < 1 and case.capacity else None,
        counters=case.torch_version >= (2, 13),
    )
    return model, naive


def drive(case: Case, rng: random.Random, steps: int) -> None:
    """The same random program through both, compared after every operation."""
    model, naive = both(case)
    live: list[tuple[Block, Piece]] = []
    waiting: list[tuple[Block, Piece]] = []
    for step in range(steps):
        what = rng.random()
        if what < 0.004:
            model.empty_cache()
            naive.empty_cache()
        elif what < 0.48 and live:
            pair = live.pop(rng.randrange(len(live)))
            if case.waits and what < 0.06:
                model.request_free(pair[0])
                naive.request_free(pair[1])
                waiting.append(pair)
            else:
                model.give_back(pair[0])
                naive.free(pair[1])
        elif what < 0.53 and waiting:
            pair = waiting.pop(rng.randrange(len(waiting)))
            if pair[1].state == "pending":  # an emptied cache waits for all streams, and its block may serve others now
                naive.complete_free(pair[1])
                model.finish(pair[0])
        else:
            allocate(case, model, naive, live, rng)
        assert model.reserved_bytes == naive.reserved(), (case.name, step)
        assert model.allocated_bytes == naive.allocated(), (case.name, step)
        assert model.segment_log == naive.events, (case.name, step)
        assert model.num_retries == naive.retries
        if step % 400 == 0:
            check_invariants(model)
    assert model.peak_reserved_bytes == naive.peak_reserved
    assert model.peak_allocated_bytes == naive.peak_allocated
    check_invariants(model)


def allocate(
    case: Case, model: RecordingAllocator, naive: NaiveAllocator, live: list[tuple[Block, Piece]], rng: random.Random
) -> None:
    size = int(2 ** rng.uniform(6, 27.5)) if rng.random() < 0.7 else rng.choice((700, MIB, MIB + 1, 3 * MIB, 30 * MIB))
    stream = rng.randrange(case.streams)
    pool = PRIVATE if case.pools and rng.random() < 0.3 else (0, 0)
    rounded = naive.rounded(size)
    try:
        block = model.serve(size, rounded, model.home(rounded <= MIB, stream, pool))
    except OutOfMemoryError:
        with pytest.raises(NaiveOutOfMemoryError):
            naive.allocate(size, stream, pool)
        for pair in live[: len(live) // 2]:
            model.give_back(pair[0])
            naive.free(pair[1])
        del live[: len(live) // 2]
        return
    piece = naive.allocate(size, stream, pool)
    assert (block.address, block.size, block.requested) == (piece.address, piece.size, piece.requested)
    live.append((block, piece))


def check_invariants(model: RecordingAllocator) -> None:
    """Every byte of every segment is in one block, neighbours of one kind are one block, and the sums are right."""
    sums = dict.fromkeys((FREE, USED, PENDING, UNMAPPED), 0)
    requested, spans, free = 0, [], 0
    for address, head in model.heads.items():
        assert head.address == address and head.previous is None
        block: Block | None = head
        while block is not None:
            sums[block.state] += block.size
            requested += block.requested
            free += block.state is FREE
            after = block.next
            if after is not None:
                assert after.previous is block and after.address == block.end
                assert not (after.state == block.state and block.state in (FREE, UNMAPPED)), "not merged"
            else:
                spans.append((address, block.end))
            block = after
    assert sums[USED] + sums[FREE] + sums[PENDING] == model.reserved_bytes
    assert sums[USED] == model.allocated_bytes
    assert requested == model.requested_bytes
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), "segments overlap"
    homes = [
        home
        for pool in (model.small, model.large, *(h for p in model.private_pools.values() for h in (p.small, p.large)))
        for home in pool.by_stream.values()
    ]
    assert free == sum(len(home.blocks) for home in homes)
    assert all(home.keys == sorted(home.keys) and len(home.keys) == len(home.blocks) for home in homes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_decide_the_same_at_every_step(case: Case) -> None:
    """18 cases of 6,000 operations."""
    drive(case, random.Random(case.name), OPERATIONS_PER_CASE)


def any_settings() -> st.SearchStrategy[AllocatorSettings]:
    sizes = st.sampled_from([20 * MIB, 26 * MIB, 64 * MIB, 200 * MIB])
    return st.builds(
        AllocatorSettings,
        expandable_segments=st.booleans(),
        max_split_size=st.none() | sizes,
        max_non_split_rounding_size=sizes,
        large_segment_size=st.sampled_from([12 * MIB, 20 * MIB, 11 * MIB]),
        garbage_collection_threshold=st.sampled_from([0.0, 0.3, 0.8]),
        roundup_power2_divisions=st.tuples(*[st.sampled_from([0, 1, 2, 8])] * 16),
        per_process_memory_fraction=st.sampled_from([1.0, 0.9, 0.4]),
    )


@given(
    one=any_settings(),
    capacity=st.none() | st.integers(200 * MIB, 3 * GIB),
    version=st.sampled_from([(2, 11), (2, 15)]),
    streams=st.integers(1, 3),
    waits=st.booleans(),
    pools=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_both_decide_the_same_under_any_settings(
    one: AllocatorSettings,
    capacity: int | None,
    version: tuple[int, int],
    streams: int,
    waits: bool,
    pools: bool,
    seed: int,
) -> None:
    drive(Case("drawn", one, capacity, version, streams, pools, waits), random.Random(seed), 150)


@pytest.mark.parametrize("expandable", [False, True])
def test_when_everything_is_freed_nothing_is_left(expandable: bool) -> None:
    rng = random.Random(3)
    model = RecordingAllocator(AllocatorSettings(expandable_segments=expandable))
    blocks = [model.allocate(int(2 ** rng.uniform(4, 27)), rng.randrange(2)) for _ in range(500)]
    rng.shuffle(blocks)
    for block in blocks:
        model.free(block)
    model.empty_cache()
    assert (model.reserved_bytes, model.allocated_bytes, model.requested_bytes, model.heads) == (0, 0, 0, {})
    assert isinstance(model.driver, PackingDriver)
    assert model.driver.reserved == 0


@pytest.mark.parametrize("case", CASES[:8], ids=lambda case: case.name)
def test_memory_stays_bounded_by_what_is_there(case: Case) -> None:
    """No list keeps what is gone: after a long run the lists hold just the blocks."""
    model, _ = both(case)
    rng = random.Random(5)
    live: list[Block] = []
    for _ in range(3000):
        if len(live) > 20:
            model.free(live.pop(rng.randrange(len(live))))
        live.append(model.allocate(int(2 ** rng.uniform(9, 23)), rng.randrange(case.streams)))
    check_invariants(model)
    assert not model.pending
    assert sum(len(home.unmapped) for home in (*model.small.by_stream.values(), *model.large.by_stream.values())) < 50
