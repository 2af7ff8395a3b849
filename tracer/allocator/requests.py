"""The requests of a history as an allocator of some settings sees them, worked out for all lives at once."""

from __future__ import annotations

import numpy as np

from tracer.allocator.blocks import FreeBlocks
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.history import History
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.sizes import SMALL_BYTES, round_sizes


class Requests:
    """Columns over the lives of a history [lives], as lists, which Python reads faster than arrays.

    Attributes:
        requested: Bytes asked for.
        size: The same, rounded.
        address: Where the recording has it.
        home: The list that serves it.
    """

    __slots__ = ("address", "home", "requested", "size")

    def __init__(self, history: History, settings: AllocatorSettings, allocator: CachingAllocator) -> None:
        lives = history.lives
        rounded = round_sizes(lives.requested_bytes, settings.roundup_power2_divisions)
        self.requested: list[int] = lives.requested_bytes.tolist()
        self.size: list[int] = rounded.tolist()
        self.address: list[int] = lives.addr.tolist()
        streams, stream = np.unique(history.stream, return_inverse=True)
        key = (stream.reshape(-1) * len(history.pools) + history.pool) * 2 + (rounded <= SMALL_BYTES)
        homes: dict[int, FreeBlocks] = {}
        for number in np.unique(key).tolist():
            rest, is_small = divmod(number, 2)
            at, pool = divmod(rest, len(history.pools))
            homes[number] = allocator.home(bool(is_small), int(streams[at]), history.pools[pool])
        self.home = [homes[number] for number in key.tolist()]
