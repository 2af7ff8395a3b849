"""torch's CUDA caching allocator for one device, decision by decision."""

from __future__ import annotations

from bisect import bisect_left

from tracer.allocator.blocks import DEFAULT_POOL, RANK_BITS, USED, Block, FreeBlocks, PoolId
from tracer.allocator.reserving import new_block, release_cached
from tracer.allocator.state import AllocatorState
from tracer.block_sizes import SMALL_BYTES, round_size


class CachingAllocator(AllocatorState):
    """A model of torch's caching allocator, on a device that exists only as a number.

    `allocate`, `free` and `empty_cache` are what torch does for a program; pools are those of CUDA graphs and of
    `torch.cuda.MemPool`. `serve` and `give_back` are the same for a replay that has rounded all sizes before.

    Not modelled: cudaMallocAsync, memory shared between processes, settings that change while the program runs, the
    reuse during capture that `graph_capture_record_stream_reuse` allows.

    Source:
        `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, torch 2.11 to 2.15.
    """

    def allocate(self, size: int, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> Block:
        """Find memory for so many bytes, for work on a stream.

        Raises:
            OutOfMemoryError: There is none.
        """
        rounded = round_size(size, self.settings.roundup_power2_divisions)
        return self.serve(size, rounded, self.home(rounded <= SMALL_BYTES, stream, pool))

    def free(self, block: Block) -> None:
        """Give a block back that no other stream uses."""
        if block.state is not USED:
            raise ValueError("Only what is allocated can be freed, and only once.")
        self.give_back(block)

    def empty_cache(self) -> None:
        """Give all segments, and all pages of expandable ones, back to the driver that have nothing in use."""
        release_cached(self)

    def serve(self, requested: int, size: int, home: FreeBlocks) -> Block:
        """Allocate a rounded size from a list.

        Args:
            size: The same, rounded.

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
        """Return True if a rounded size can be served without reserving more."""
        return self.best_fit(size, home) is not None

    def give_back(self, block: Block) -> None:
        """Free a block at once: both moments of a free in one."""
        self.allocated_bytes -= block.size
        self.merge_and_add(block)
