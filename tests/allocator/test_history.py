"""A recording as operations of the allocator: their order within an entry, and pools that no entry names. By hand."""

from __future__ import annotations

from tests.allocator.recorded import MIB, device_of, parts
from tests.snapshot.dumps import Row, block, entry, freed, segment, snapshot
from tracer.allocator.history import Op

BASE = 1 << 32


def test_a_block_whose_allocation_is_not_recorded_begins_behind_the_free_of_the_one_before() -> None:
    """The address was freed and is in use at the end: both are told by one entry, and the free comes first."""
    trace = [entry("alloc", BASE, MIB), *freed(BASE, MIB)]
    loaded = device_of(snapshot(trace, [segment(BASE, 2 * MIB, [block(BASE, MIB)])]))
    _, history, _ = parts(*loaded)
    codes = [Op(code).name for code in history.code]
    assert codes == ["ALLOC", "FREE", "ALLOC"]
    assert history.entry[1] == history.entry[2]
    assert history.operand[0] == history.operand[1] != history.operand[2]


def test_entries_without_a_pool_have_that_of_their_segment_since_it_was_taken() -> None:
    """The address was the default pool's, was given back, and then became a private pool's; another one always was."""

    def used(address: int) -> list[Row]:
        return [entry("alloc", address, MIB), *freed(address, MIB)]

    other = BASE + 64 * MIB
    trace = [
        entry("segment_alloc", BASE, 2 * MIB), *used(BASE), entry("segment_free", BASE, 2 * MIB),
        entry("segment_alloc", BASE, 2 * MIB), *used(BASE), *used(other),
    ]  # fmt: skip
    private = {**segment(BASE, 2 * MIB, []), "segment_pool_id": (0, 1)}
    _, history, _ = parts(*device_of(snapshot(trace, [private, segment(other, 2 * MIB, [])])))
    assert [history.pools[at] for at in history.pool.tolist()] == [(0, 0), (0, 1), (0, 0)]
    taken = [event.pool for event in history.segment_events if not event.is_release]
    assert taken == [(0, 0), (0, 1)]
