"""torch's CUDA caching allocator for one device, decision by decision."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from tracer.allocator.blocks import RANK_BITS, USED, Block, FreeBlocks, PoolId
from tracer.allocator.release import release_cached
from tracer.allocator.reserving import OutOfMemoryError, new_block
from tracer.allocator.sizes import SMALL_BYTES, round_size
from tracer.allocator.state import AllocatorState
from tracer.allocator.statistics import memory_stats, segment_infos, trace_entries


class CachingAllocator(AllocatorState):
    """What torch's allocator would do, on a device that exists only as a number.

    `allocate`, `free`, `record_stream`, `empty_cache`, `memory_stats` and `snapshot` are what torch.cuda has under
    these names; pools are those of CUDA graphs and of `torch.cuda.MemPool`. `serve` and `give_back` are the same for a
    replay that has rounded all sizes before.

    Not modelled: cudaMallocAsync, memory shared between processes, settings that change while the program runs, the
    reuse during capture that `graph_capture_record_stream_reuse` allows.

    Source:
        `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, torch 2.11 to 2.15.
    """

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
            self.record("oom", self.driver.free_bytes or 0, rounded, home)
            raise
        self.record("alloc", block.address, size, home)
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

    def empty_cache(self) -> None:
        """Give all segments, and all pages of expandable ones, back to the driver that have nothing in use."""
        release_cached(self, default_pool=not self.captures)

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
                "max_split_size": self.max_split or -1,
                "garbage_collection_threshold": self.settings.garbage_collection_threshold,
                "roundup_power2_divisions": {
                    str(1 << i): parts for i, parts in enumerate(self.settings.roundup_power2_divisions)
                },
            },
            "external_annotations": [],
        }

    # Private pools.

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

    def serve(self, requested: int, size: int, home: FreeBlocks) -> Block:
        """Allocate a rounded size from a list.

        Raises:
            OutOfMemoryError: There is no memory for it.
        """
        keys = home.keys
        at = bisect_left(keys, size << RANK_BITS)
        # Most requests: the best fit is at hand, and no setting forbids it. Here because a call costs as much as this.
        if at < len(keys) and self.takes_best_fit and home.blocks[at].range is None:
            del keys[at]
            block = home.blocks.pop(at)
        else:
            block = self.cached_block(size, home) or new_block(self, size, home)
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
        return self.best_fit(size, home) is not None

    def give_back(self, block: Block) -> None:
        """Free a block at once: both moments of a free in one."""
        self.allocated_bytes -= block.size
        self.merge_and_add(block)
