"""The state of torch's CUDA caching allocator, and how it is changed: what every operation on it stands on."""

from __future__ import annotations

from tracer.allocator.blocks import (
    DEFAULT_POOL,
    FREE,
    NEVER,
    PENDING,
    UNMAPPED,
    Block,
    BlockPool,
    FreeBlocks,
    PoolId,
    PrivatePool,
    united,
)
from tracer.allocator.driver import Driver, PackingDriver
from tracer.allocator.settings import AllocatorSettings
from tracer.block_sizes import MIN_BLOCK_BYTES, SMALL_BYTES

NEWEST_TORCH = (2, 15)
FIRST_TORCH_WITH_COUNTERS = (2, 13)
"""Since then free blocks of one size are taken by the age of their segment, before by address (pytorch #183591)."""
_UNLIMITED_ADDRESSES = 1 << 44


class AllocatorState:
    """The reserved, allocated and free memory of an allocator, and its counters.

    Args:
        driver: Where segments come from; by default a device without limit.
        device_bytes: The device's memory; sets the range of expandable segments and what a fraction is of.

    Attributes:
        allocated_bytes: Bytes in use, rounded.
        requested_bytes: Bytes in use or pending, as asked for.
        num_retries: How often everything cached was released for a request.
        num_ooms: How often that did not help.
        num_driver_calls: Segments and pages taken and given back.
        memory_limit: What a memory fraction allows; None without one.
        heads: The first block of every segment and of every range, by address.
        is_capturing: A CUDA graph is being captured: nothing is released for a request.
        collects_garbage: Old segments are released above a threshold.
        segment_log: Where set, every segment event as (action, address, size, stream).
        max_split: Blocks of this size and more are not split; None without the setting.
        takes_best_fit: No setting forbids the free block that fits best.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        driver: Driver | None = None,
        device_bytes: int | None = None,
        torch_version: tuple[int, int] = NEWEST_TORCH,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.driver: Driver = PackingDriver(device_bytes) if driver is None else driver
        self.address_space = device_bytes * 9 // 8 if device_bytes else _UNLIMITED_ADDRESSES
        self.counts_segments = torch_version >= FIRST_TORCH_WITH_COUNTERS
        self.num_segments_made = 0
        self.allocated_bytes = self.requested_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_requested_bytes = self.peak_reserved_bytes = 0
        self.num_retries = self.num_ooms = self.num_driver_calls = 0
        self.heads: dict[int, Block] = {}
        self.segment_log: list[tuple[str, int, int, int]] | None = None
        self.private_pools: dict[PoolId, PrivatePool] = {}
        self.pending: dict[Block, None] = {}
        self.is_capturing = False
        is_expandable = self.settings.expandable_segments
        self.small = BlockPool(DEFAULT_POOL, is_small=True, is_expandable=is_expandable)
        self.large = BlockPool(DEFAULT_POOL, is_small=False, is_expandable=is_expandable)
        self.max_split = self.settings.max_split_size
        self._counts_searches = self.settings.garbage_collection_threshold > 0
        self.takes_best_fit = self.max_split is None and not self._counts_searches
        fraction = self.settings.per_process_memory_fraction
        self.memory_limit = int(fraction * device_bytes) if fraction < 1 and device_bytes is not None else None
        self.collects_garbage = self.memory_limit is not None and self._counts_searches

    # Counters.

    def adjust_reserved(self, change: int, action: str, address: int, home: FreeBlocks) -> None:
        """Count bytes reserved from the driver, or, if negative, released to it."""
        self.reserved_bytes += change
        self.num_driver_calls += 1
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        if self.segment_log is not None:
            self.segment_log.append((action, address, abs(change), home.stream))

    def next_counter(self) -> int:
        """The upper part of the ranks of a new segment's blocks."""
        self.num_segments_made += 1
        return self.num_segments_made << 64 if self.counts_segments else 0

    # Pools and their lists of free blocks.

    def create_pool(self, pool: PoolId) -> None:
        """Begin a private pool, or use an existing one once more."""
        if pool in self.private_pools:
            self.private_pools[pool].users += 1
        else:
            self.private_pools[pool] = PrivatePool(pool, is_expandable=self.settings.expandable_segments)

    def home(self, is_small: bool, stream: int, pool: PoolId = DEFAULT_POOL) -> FreeBlocks:
        """The list that serves such requests.

        Args:
            is_small: Whether the rounded request is at most 1 MiB.
        """
        private = self.private_pools.get(pool)
        if private is None and pool != DEFAULT_POOL:
            self.create_pool(pool)
            private = self.private_pools[pool]
        pools = self if private is None else private
        half = pools.small if is_small else pools.large
        home = half.by_stream.get(stream)
        if home is None:
            home = half.by_stream[stream] = self._new_home(half, stream)
        return home

    # The rest.

    def _new_home(self, half: BlockPool, stream: int) -> FreeBlocks:
        """An empty list with the rule by which its blocks are split (`should_split`)."""
        if half.is_small or half.is_expandable:
            return FreeBlocks(half, stream, min_rest=MIN_BLOCK_BYTES, max_cut=NEVER)
        return FreeBlocks(half, stream, min_rest=SMALL_BYTES + 1, max_cut=self.max_split or NEVER)

    # How a block is found, and how it becomes free.

    def cached_block(self, size: int, home: FreeBlocks) -> Block | None:
        """Take the best of the free blocks out of its list (`get_free_block`)."""
        if self._counts_searches:
            home.pool.searches += 1
        at = self.best_fit(size, home)
        if at is None:
            return None
        del home.keys[at]
        return home.blocks.pop(at)

    def best_fit(self, size: int, home: FreeBlocks) -> int | None:
        """Position of the free block to take."""
        first = home.first_fit(size)
        if first == len(home.keys):
            return None
        at = first if home.blocks[first].range is None else _choose(home, first)
        return None if at is None or self._is_oversize(home.blocks[at], size) else at

    def _is_oversize(self, block: Block, size: int) -> bool:
        """Return True if `max_split_size` keeps a block from such a request."""
        if self.max_split is None:
            return False
        if size < self.max_split:
            return block.size >= self.max_split
        return block.size >= size + self.settings.max_non_split_rounding_size

    def merge_and_add(self, block: Block) -> None:
        """Unite a block with the free ones beside it and put it into its list (`free_block`)."""
        self.requested_bytes -= block.requested
        block.requested = 0
        block.home.add(united(block, FREE))

    def request_free(self, block: Block) -> None:
        """The program is done with a block; it is not free before `complete_free`."""
        block.state = PENDING
        self.allocated_bytes -= block.size
        self.pending[block] = None

    def complete_free(self, block: Block) -> None:
        """A pending block is free."""
        del self.pending[block]
        block.streams = None
        self.merge_and_add(block)

    def finish(self, block: Block) -> None:
        """The other streams are done with a pending block."""
        if block in self.pending:
            self.complete_free(block)

    def synchronize(self) -> None:
        """Complete every free that waits for a stream."""
        for block in list(self.pending):
            self.finish(block)


def _choose(home: FreeBlocks, at: int) -> int | None:
    """Choose the block to take where the best fit lies in an expandable segment.

    What can grow counts with what it can grow to, so that a block in the middle goes before the end of the segment.
    With the setting off, such blocks are passed over.

    Args:
        at: Position of the first block that is large enough.

    Returns:
        A position, or None if there is no suitable block.

    Source:
        `get_free_block`.
    """
    blocks = home.blocks
    if not home.pool.is_expandable:
        return next((i for i in range(at, len(blocks)) if blocks[i].range is None), None)
    while blocks[at].range is not None and at + 1 < len(blocks) and _reach(blocks[at + 1]) < _reach(blocks[at]):
        at += 1
    return at


def _reach(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and after.state is UNMAPPED else 0)
