"""The driver of a recording: it gives what was given, where it was given, and refuses what was refused."""

from __future__ import annotations

from collections import deque

from tracer.allocator.blocks import PoolId
from tracer.allocator.driver import ABOVE_ALL_DEVICES, PackingDriver
from tracer.allocator.history import SegmentEvent
from tracer.allocator.ranges import Ranges


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
        """Whether the recorded driver had the memory."""
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
