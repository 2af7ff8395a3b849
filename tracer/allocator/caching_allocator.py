"""torch's CUDA caching allocator for one device, decision by decision."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from tracer.allocator import expandable, release, reserving
from tracer.allocator.blocks import (
    DEFAULT_POOL,
    FREE,
    NEVER,
    PENDING,
    RANK_BITS,
    USED,
    Block,
    BlockPool,
    FreeBlocks,
    PoolId,
    PrivatePool,
)
from tracer.allocator.captures import Captures
from tracer.allocator.driver import Driver, PackingDriver
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.sizes import MIN_BLOCK_BYTES, SMALL_BYTES, round_size
from tracer.allocator.statistics import memory_stats, segment_infos, trace_entries

NEWEST_TORCH = (2, 15)
FIRST_TORCH_WITH_COUNTERS = (2, 13)
"""Since then free blocks of one size are taken by the age of their segment, before by address (pytorch #183591)."""
_UNLIMITED_ADDRESSES = 1 << 44


class CachingAllocator:
    """What torch's allocator would do, on a device that exists only as a number.

    `allocate`, `free`, `record_stream`, `empty_cache`, `memory_stats` and `snapshot` are what torch.cuda has under
    these names; pools are those of CUDA graphs and of `torch.cuda.MemPool`. `serve` and `give_back` are the same for a
    replay that has rounded all sizes before.

    Not modelled: cudaMallocAsync, memory shared between processes, settings that change while the program runs, the
    reuse during capture that `graph_capture_record_stream_reuse` allows.

    Args:
        settings: As in PYTORCH_CUDA_ALLOC_CONF.
        driver: Where segments come from; by default a device without limit.
        device_bytes: The device's memory; sets the range of expandable segments and what a fraction is of.
        torch_version: The torch whose rules hold.
        keep_history: Record what `snapshot` shows as the trace.

    Attributes:
        allocated_bytes: In use, rounded.
        requested_bytes: In use or pending, as asked for.
        reserved_bytes: Taken from the driver.
        peak_allocated_bytes: The most of it.
        peak_requested_bytes: The most of it.
        peak_reserved_bytes: The most of it.
        num_retries: How often everything cached was released for a request.
        num_ooms: How often that did not help.
        num_driver_calls: Segments and pages taken and given back.
        memory_limit: What a memory fraction allows; None without one.
        heads: The first block of every segment and of every range, by address.
        captures: Requests that go to private pools now.
        collects_garbage: Old segments are released above a threshold.
        segment_log: Where set, every segment event as (action, address, size, stream).

    Source:
        `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, torch 2.11 to 2.15.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        driver: Driver | None = None,
        device_bytes: int | None = None,
        torch_version: tuple[int, int] = NEWEST_TORCH,
        keep_history: bool = False,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.driver: Driver = PackingDriver(device_bytes) if driver is None else driver
        self.device_bytes = device_bytes
        self.address_space = device_bytes * 9 // 8 if device_bytes else _UNLIMITED_ADDRESSES
        self.counts_segments = torch_version >= FIRST_TORCH_WITH_COUNTERS
        self.num_segments_made = 0
        self.allocated_bytes = self.requested_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_requested_bytes = self.peak_reserved_bytes = 0
        self.num_retries = self.num_ooms = self.num_driver_calls = 0
        self.heads: dict[int, Block] = {}
        self.segment_log: list[tuple[str, int, int, int]] | None = None
        self.history: list[tuple[str, int, int, int, PoolId]] | None = [] if keep_history else None
        self.private_pools: dict[PoolId, PrivatePool] = {}
        self.pending: dict[Block, None] = {}
        self.memory_limit: int | None = None
        self.captures = Captures()
        is_expandable = self.settings.expandable_segments
        self.small = BlockPool(DEFAULT_POOL, is_small=True, is_expandable=is_expandable)
        self.large = BlockPool(DEFAULT_POOL, is_small=False, is_expandable=is_expandable)
        self._max_split = self.settings.max_split_size
        self._counts_searches = self.settings.garbage_collection_threshold > 0
        self._takes_best_fit = self._max_split is None and not self._counts_searches
        self.set_memory_fraction(self.settings.per_process_memory_fraction)

    # What torch.cuda offers.

    def allocate(self, size: int, stream: int = 0) -> Block:
        """Find memory for so many bytes, for work on a stream.

        Raises:
            OutOfMemoryError: There is none.
        """
        if self.pending and not self.captures:
            for block in self.captures.ended(self.pending):
                self.complete_free(block)
        rounded = round_size(size, self.settings.roundup_power2_divisions)
        home = self.home(rounded <= SMALL_BYTES, stream, self.captures.pool_for(stream))
        try:
            block = self.serve(size, rounded, home)
        except OutOfMemoryError:
            self._record("oom", self.driver.free_bytes or 0, rounded, home)
            raise
        self._record("alloc", block.address, size, home)
        return block

    def free(self, block: Block) -> None:
        """Give a block back; one that other streams use is only pending until `finish` or `synchronize`."""
        if block.state is not USED:
            raise ValueError("Only what is allocated can be freed, and only once.")
        self.request_free(block)
        if not block.streams:
            self.complete_free(block)
        else:
            self.captures.note(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses a block too."""
        if stream == block.home.stream:
            return
        block.streams = (block.streams or set()) | {stream}
        self.captures.note(block, stream)

    def finish(self, block: Block) -> None:
        """The other streams are done with a pending block."""
        if block in self.pending:
            self.captures.forget(block)
            self.complete_free(block)

    def synchronize(self) -> None:
        """All streams are done with everything."""
        for block in list(self.pending):
            self.finish(block)

    def empty_cache(self) -> None:
        """Give all segments, and all pages of expandable ones, back to the driver that have nothing in use."""
        release.release_cached(self, default_pool=not self.captures)

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve no more than this share of the device; 1 for no limit."""
        if not 0 <= fraction <= 1:
            raise ValueError("A fraction lies between 0 and 1.")
        has_limit = fraction < 1 and self.device_bytes is not None
        self.memory_limit = int(fraction * self.device_bytes) if has_limit and self.device_bytes else None
        self.collects_garbage = has_limit and self._counts_searches

    def memory_stats(self) -> dict[str, int]:
        """Counters under the names of `torch.cuda.memory_stats`; of peaks, those that are kept."""
        return memory_stats(self)

    def snapshot(self) -> dict[str, Any]:
        """The state in the structure of `torch.cuda.memory._snapshot`, with the trace if it was kept."""
        return {
            "segments": segment_infos(self),
            "device_traces": [trace_entries(self.history or [])],
            "allocator_settings": {
                "expandable_segments": self.settings.expandable_segments,
                "max_split_size": self._max_split or -1,
                "garbage_collection_threshold": self.settings.garbage_collection_threshold,
                "roundup_power2_divisions": {
                    str(1 << i): parts for i, parts in enumerate(self.settings.roundup_power2_divisions)
                },
            },
            "external_annotations": [],
        }

    # Private pools.

    def create_pool(
        self, pool: PoolId, *, own_allocator: bool = False, no_split: bool = False, use_on_oom: bool = False
    ) -> None:
        """Begin a private pool, or use an existing one once more.

        Args:
            pool: Its number.
            own_allocator: Memory comes from somebody else's allocator, which cannot make expandable segments.
            no_split: Its blocks are never split.
            use_on_oom: The default pool may use its free blocks before it runs out of memory.
        """
        if pool in self.private_pools:
            self.private_pools[pool].users += 1
            return
        is_expandable = self.settings.expandable_segments and not own_allocator
        made = PrivatePool(pool, is_expandable=is_expandable, no_split=no_split, use_on_oom=use_on_oom)
        self.private_pools[pool] = made

    def begin_allocate_to_pool(self, pool: PoolId, streams: frozenset[int] | None = None) -> None:
        """Serve requests of these streams, or of all, from a pool, as during the capture of a CUDA graph."""
        self.create_pool(pool)
        self.captures.begin(pool, streams)

    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the last such diversion to this pool."""
        self.captures.end(pool)

    def release_pool(self, pool: PoolId) -> None:
        """One user less; without any, the next `empty_cache` or retry releases the pool's memory."""
        self.private_pools[pool].users -= 1

    # What a replay uses.

    def home(self, is_small: bool, stream: int, pool: PoolId = DEFAULT_POOL) -> FreeBlocks:
        """The list that serves such requests."""
        private = self.private_pools.get(pool)
        if private is None and pool != DEFAULT_POOL:
            self.create_pool(pool)
            private = self.private_pools[pool]
        half = (self.small if is_small else self.large) if private is None else _half(private, is_small)
        found = half.by_stream.get(stream)
        if found is None:
            found = half.by_stream[stream] = self._new_home(half, stream, private)
        return found

    def serve(self, requested: int, size: int, home: FreeBlocks) -> Block:
        """Allocate a rounded size from a list.

        Raises:
            OutOfMemoryError: There is no memory for it.
        """
        keys = home.keys
        at = bisect_left(keys, size << RANK_BITS)
        # Most requests: the best fit is at hand, and no setting forbids it. Here because a call costs as much as this.
        if at < len(keys) and self._takes_best_fit and home.blocks[at].range is None:
            del keys[at]
            block = home.blocks.pop(at)
        else:
            block = self.cached_block(size, home) or reserving.new_block(self, size, home)
            home = block.home  # another one only where a pool helped out
        rest = block.size - size
        if rest >= home.min_rest and size < home.max_cut:
            home.add(block.cut(size))
            rest = 0
        block.state, block.requested = USED, requested
        self.allocated_bytes = allocated = self.allocated_bytes + size + rest
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        self.requested_bytes = in_use = self.requested_bytes + requested
        if in_use > self.peak_requested_bytes:
            self.peak_requested_bytes = in_use
        return block

    def has_free_block(self, size: int, home: FreeBlocks) -> bool:
        """Whether a rounded size could be served without reserving more."""
        return self._best_fit(size, home) is not None

    def request_free(self, block: Block) -> None:
        """The program is done with a block; it is not free before `complete_free`."""
        block.state = PENDING
        self.allocated_bytes -= block.size
        self.pending[block] = None
        self._record("free_requested", block.address, block.requested, block.home)

    def complete_free(self, block: Block) -> None:
        """A pending block is free."""
        self._record("free_completed", block.address, block.requested, block.home)
        del self.pending[block]
        block.streams = None
        self._merge_and_add(block)

    def give_back(self, block: Block) -> None:
        """Free a block at once: both moments of a free in one."""
        self.allocated_bytes -= block.size
        self._merge_and_add(block)

    def grow(self, change: int, action: str, address: int, home: FreeBlocks) -> None:
        """Book what was taken from the driver, or, below zero, given back to it."""
        self.reserved_bytes += change
        self.num_driver_calls += 1
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        if self.segment_log is not None:
            self.segment_log.append((action, address, abs(change), home.stream))
        self._record(action, address, abs(change), home)

    def next_counter(self) -> int:
        """The upper part of the ranks of a new segment's blocks."""
        self.num_segments_made += 1
        return self.num_segments_made << 64 if self.counts_segments else 0

    # How a block is found.

    def cached_block(self, size: int, home: FreeBlocks) -> Block | None:
        """Take the best of the free blocks out of its list (`get_free_block`)."""
        if self._counts_searches:
            home.pool.searches += 1
        at = self._best_fit(size, home)
        if at is None:
            return None
        del home.keys[at]
        return home.blocks.pop(at)

    def _best_fit(self, size: int, home: FreeBlocks) -> int | None:
        """Position of the free block to take."""
        first = home.first_fit(size)
        if first == len(home.keys):
            return None
        at = first if home.blocks[first].range is None else expandable.choose(home, first)
        return None if at is None or self._is_oversize(home.blocks[at], size) else at

    def _is_oversize(self, block: Block, size: int) -> bool:
        """Whether `max_split_size` keeps a block from such a request."""
        if self._max_split is None:
            return False
        if size < self._max_split:
            return block.size >= self._max_split
        return block.size >= size + self.settings.max_non_split_rounding_size

    def _merge_and_add(self, block: Block) -> None:
        """Unite a block with the free ones beside it and put it into its list (`free_block`)."""
        self.requested_bytes -= block.requested
        block.requested = 0
        home, after, before = block.home, block.next, block.previous
        if after is not None and after.state is FREE:
            home.remove(after)
            block.swallow_next()
        if before is not None and before.state is FREE:
            home.remove(before)
            before.swallow_next()
            block = before
        home.add(block)

    # The rest.

    def _new_home(self, half: BlockPool, stream: int, private: PrivatePool | None) -> FreeBlocks:
        """An empty list with the rule by which its blocks are split (`should_split`)."""
        if private is not None and private.no_split:
            return FreeBlocks(half, stream, min_rest=NEVER, max_cut=0)
        if half.is_small or half.is_expandable:
            return FreeBlocks(half, stream, min_rest=MIN_BLOCK_BYTES, max_cut=NEVER)
        return FreeBlocks(half, stream, min_rest=SMALL_BYTES + 1, max_cut=self._max_split or NEVER)

    def _record(self, action: str, address: int, size: int, home: FreeBlocks) -> None:
        if self.history is not None:
            self.history.append((action, address, size, home.stream, home.pool.owner))


def _half(pool: PrivatePool, is_small: bool) -> BlockPool:
    return pool.small if is_small else pool.large
