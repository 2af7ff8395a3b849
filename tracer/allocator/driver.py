"""The device's driver as the allocator sees it: the interface, a model of CUDA's, and the driver of a recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tracer.allocator.blocks import PoolId
from tracer.allocator.history import SegmentEvent
from tracer.units import MIB


class Ranges:
    """Disjoint ranges, ascending; neighbours are one range."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Start and size of each."""
        return ((start, self._sizes[start]) for start in self._starts)

    def __bool__(self) -> bool:
        """Return True if there are any ranges."""
        return bool(self._starts)

    def add(self, start: int, size: int) -> tuple[int, int]:
        """Add a range that none of these overlaps; returns the one that it is part of now."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._sizes.pop(self._starts.pop(at))
        if at and self._starts[at - 1] + self._sizes[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            self._sizes[start] += size
            return start, self._sizes[start]
        insort(self._starts, start)
        self._sizes[start] = size
        return start, size

    def remove(self, start: int, size: int) -> bool:
        """Take a range away; False, and nothing happens, if it does not lie within one of these."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] + self._sizes[self._starts[at]] < start + size:
            return False
        whole = self._starts.pop(at)
        length = self._sizes.pop(whole)
        for first, last in ((whole, start), (start + size, whole + length)):
            if last > first:
                insort(self._starts, first)
                self._sizes[first] = last - first
        return True

    def overlaps(self, start: int, size: int) -> bool:
        """Return True if one of the ranges overlaps this one."""
        at = bisect_left(self._starts, start + size) - 1
        return at >= 0 and self._starts[at] + self._sizes[self._starts[at]] > start

    def take_lowest(self, size: int) -> int | None:
        """The first bytes of the lowest range that is large enough."""
        start = next((start for start in self._starts if self._sizes[start] >= size), None)
        if start is not None:
            self.remove(start, size)
        return start

    def take_highest(self, size: int) -> int | None:
        """The last bytes of the highest range that is large enough."""
        start = next((start for start in reversed(self._starts) if self._sizes[start] >= size), None)
        if start is None:
            return None
        address = start + self._sizes[start] - size
        self.remove(address, size)
        return address


CHUNK_BYTES = 32 * MIB
"""Bytes of address space that CUDA's driver on Linux gives at once, downwards, one chunk after the other."""
ABOVE_ALL_DEVICES = 1 << 63
_TOP = 1 << 62  # above the addresses of all devices, with room for every range that a replay may want


class Driver(Protocol):
    """The source of segments. A refused request changes nothing."""

    @property
    def free_bytes(self) -> int | None:
        """Bytes that can still be reserved; None for no limit."""

    def reserve(self, size: int, stream: int, pool: PoolId) -> int | None:
        """The address of a new segment; None if there is no memory left (`cudaMalloc`)."""

    def release(self, address: int, size: int) -> None:
        """Release a segment (`cudaFree`)."""

    def reserve_range(self, size: int, stream: int, pool: PoolId) -> int:
        """Addresses for an expandable segment, without memory behind them (`cuMemAddressReserve`)."""

    def map(self, address: int, size: int) -> bool:
        """Map memory at addresses; False if there is none left (`cuMemCreate`, `cuMemMap`)."""

    def unmap(self, address: int, size: int) -> None:
        """Unmap the memory at addresses."""


class PackingDriver:
    """A device of some capacity that places segments as CUDA on Linux was seen to.

    Ranges of whole 32 MiB go downwards; requests below that are packed upwards inside such a range, behind a large
    segment too; what was given back is used again, the highest hole first.

    Args:
        capacity: Bytes that can be reserved; None for no limit.
        reserved: Bytes that another driver gave before.
        given: Addresses of segments among these; once released they are not used again.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        top: int = _TOP,
        reserved: int = 0,
        given: frozenset[int] = frozenset(),
    ) -> None:
        self.capacity = capacity
        self.reserved = reserved
        self._given = given
        self._lowest = top // CHUNK_BYTES * CHUNK_BYTES
        self._chunks = Ranges()
        self._pieces = Ranges()

    @property
    def free_bytes(self) -> int | None:
        """Bytes that are left of the capacity."""
        return None if self.capacity is None else self.capacity - self.reserved

    def reserve(self, size: int, stream: int, pool: PoolId) -> int | None:
        """The address of a new segment, or None."""
        if self.capacity is not None and self.reserved + size > self.capacity:
            return None
        self.reserved += size
        address = self._pieces.take_lowest(size) if size < CHUNK_BYTES else None
        if address is None:
            whole = self._chunks.take_highest(_in_chunks(size))
            address = self._fresh(size) if whole is None else whole
            if rest := _in_chunks(size) - size:
                self._pieces.add(address + size, rest)
        return address

    def release(self, address: int, size: int) -> None:
        """Take a segment back; a range of which nothing is left in use becomes a hole for large ones."""
        self.reserved -= size
        if address in self._given:
            return
        start, length = self._pieces.add(address, size)
        first, last = _in_chunks(start), (start + length) // CHUNK_BYTES * CHUNK_BYTES
        if last > first:
            self._pieces.remove(first, last - first)
            self._chunks.add(first, last - first)

    def reserve_range(self, size: int, stream: int, pool: PoolId) -> int:
        """Fresh addresses; they are not what runs out."""
        return self._fresh(size)

    def map(self, address: int, size: int) -> bool:
        """Return True if the capacity allows this much more."""
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Give the bytes back."""
        self.reserved -= size

    def _fresh(self, size: int) -> int:
        self._lowest -= _in_chunks(size)
        return self._lowest


def _in_chunks(number: int) -> int:
    return -(-number // CHUNK_BYTES) * CHUNK_BYTES


class RecordedDriver:
    """Gives what the recorded driver gave, and refuses where it refused.

    Attributes:
        events: What the recording has next, up to the request that is being served.
        is_exhausted: Whether it has no memory left when the events are at an end.
        taken: The segments that the model has.
        reserved_bytes: What the recording has by now.
        refused_bytes: The least that it was refused: what it had and what it asked for. None if nothing was.
    """

    free_bytes = None

    def __init__(self, reserved_bytes: int = 0) -> None:
        self.events: deque[SegmentEvent] = deque()
        self.is_exhausted = False
        self.taken = Ranges()
        self.reserved_bytes = reserved_bytes
        self.refused_bytes: int | None = None
        self._elsewhere = PackingDriver(top=ABOVE_ALL_DEVICES)

    def reserve(self, size: int, stream: int, pool: PoolId) -> int | None:
        """The recorded segment; what the recording does not have lies above all devices."""
        if self._refuses(size):
            return None
        self.reserved_bytes += size
        event = self.events[0] if self.events else None
        is_there = event is not None and event.action == "segment_alloc" and event.size == size
        if event is None or not is_there or self.taken.overlaps(event.address, size):
            return self._elsewhere.reserve(size, stream, pool)
        self.events.popleft()
        self.taken.add(event.address, size)
        return event.address

    def reserve_range(self, size: int, stream: int, pool: PoolId) -> int:
        """Address that the recording maps next, even if it first releases something."""
        mapped = next((event.address for event in self.events if event.action == "segment_map"), None)
        return self._elsewhere.reserve_range(size, stream, pool) if mapped is None else mapped

    def map(self, address: int, size: int) -> bool:
        """Return True if the recorded driver had the memory."""
        if self._refuses(size):
            return False
        self.reserved_bytes += size
        if self.events and self.events[0].action == "segment_map":
            self.events.popleft()
        return True

    def release(self, address: int, size: int) -> None:
        """Release a segment, and go on in the recording."""
        self.taken.remove(address, size)
        self.unmap(address, size)

    def unmap(self, address: int, size: int) -> None:
        """Unmap memory, and go on in the recording."""
        self.reserved_bytes -= size
        if self.events and self.events[0].is_release:
            self.events.popleft()

    def _refuses(self, size: int) -> bool:
        """A recorded driver that is asked and then given something back had nothing left."""
        refuses = self.events[0].is_release if self.events else self.is_exhausted
        if refuses:
            wanted = self.reserved_bytes + size
            self.refused_bytes = wanted if self.refused_bytes is None else min(self.refused_bytes, wanted)
        return refuses
