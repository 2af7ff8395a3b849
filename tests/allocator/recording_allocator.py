"""The model as a program meets torch's allocator: other streams, private pools, and a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracer.allocator.blocks import DEFAULT_POOL, FREE, PENDING, USED, Block, FreeBlocks, PoolId
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.reserving import OutOfMemoryError, release_cached
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.state import AllocatorState
from tracer.allocator.statistics import segments
from tracer.block_sizes import SMALL_BYTES, round_size


class RecordingAllocator(CachingAllocator):
    """Records what `snapshot` shows as the trace; methods have the names that torch.cuda gives them."""

    def __init__(self, settings: AllocatorSettings | None = None, **options: Any) -> None:
        self.history: list[tuple[str, int, int, int, PoolId]] = []
        self._pool = DEFAULT_POOL
        super().__init__(settings, **options)

    def _record(self, action: str, address: int, size: int, home: FreeBlocks) -> None:
        self.history.append((action, address, size, home.stream, home.pool.owner))

    def allocate(self, size: int, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> Block:
        """During a capture, from its pool."""
        pool = self._pool
        try:
            block = super().allocate(size, stream, pool)
        except OutOfMemoryError:
            rounded = round_size(size, self.settings.roundup_power2_divisions)
            home = self.home(rounded <= SMALL_BYTES, stream, pool)
            self._record("oom", self.driver.free_bytes or 0, rounded, home)
            raise
        self._record("alloc", block.address, size, self.home(block.home.pool.is_small, stream, pool))
        return block

    def free(self, block: Block) -> None:
        """One that other streams use is only pending until `finish` or `synchronize`."""
        if block.streams and block.state is USED:
            self.request_free(block)
            return
        address, requested, home = block.address, block.requested, block.home
        super().free(block)
        self._record("free_requested", address, requested, home)
        self._record("free_completed", address, requested, home)

    def request_free(self, block: Block) -> None:
        super().request_free(block)
        self._record("free_requested", block.address, block.requested, block.home)

    def complete_free(self, block: Block) -> None:
        self._record("free_completed", block.address, block.requested, block.home)
        super().complete_free(block)

    def adjust_reserved(self, change: int, action: str, address: int, home: FreeBlocks) -> None:
        super().adjust_reserved(change, action, address, home)
        self._record(action, address, abs(change), home)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses a block too."""
        block.streams = (block.streams or set()) | {stream}

    def empty_cache(self) -> None:
        """During a capture only what private pools have left over."""
        release_cached(self, default_pool=not self.is_capturing)

    def begin_allocate_to_pool(self, pool: PoolId) -> None:
        """Serve requests from a pool, as during the capture of a CUDA graph."""
        self.create_pool(pool)
        self._pool, self.is_capturing = pool, True

    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End that."""
        assert self._pool == pool
        self._pool, self.is_capturing = DEFAULT_POOL, False

    def release_pool(self, pool: PoolId) -> None:
        """One user less; without any, the next `empty_cache` or retry releases the pool's memory."""
        self.private_pools[pool].users -= 1

    def snapshot(self) -> dict[str, Any]:
        """The state in the structure of `torch.cuda.memory._snapshot`, with the trace."""
        return {
            "segments": _segments(self),
            "device_traces": [_trace_entries(self.history)],
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


_STATE_NAMES = {FREE: "inactive", USED: "active_allocated", PENDING: "active_pending_free"}


def _segments(allocator: AllocatorState) -> list[dict[str, Any]]:
    """The segments as in `torch.cuda.memory_snapshot`."""
    return [_torch_segment(blocks) for blocks in segments(allocator)]


def _torch_segment(blocks: Sequence[Block]) -> dict[str, Any]:
    first = blocks[0]
    active = [block for block in blocks if block.state is not FREE]
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in active if block.state is USED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": first.home.stream,
        "segment_type": "small" if first.home.pool.is_small else "large",
        "segment_pool_id": first.home.pool.owner,
        "is_expandable": first.range is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _STATE_NAMES[block.state],
                "frames": [],
            }
            for block in blocks
        ],
    }


def _trace_entries(history: Iterable[tuple[str, int, int, int, PoolId]]) -> list[dict[str, Any]]:
    """The history as a device's trace, one microsecond an entry."""
    return [
        {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": stream,
            "pool_id": pool,
            "time_us": 1 + number,
            "frames": [],
        }
        for number, (action, address, size, stream, pool) in enumerate(history)
    ]
