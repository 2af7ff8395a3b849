"""The model's state for people and programs that know torch's: segments, counters, the trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.allocator.blocks import FREE, PENDING, UNMAPPED, USED, Block, PoolId, State
from tracer.allocator.state import AllocatorState


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block at some moment; `life` is -1 for a free one."""

    address: int
    size: int
    requested: int
    state: State
    life: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment at some moment, or a mapped part of an expandable one.

    Attributes:
        pool: Its pool.
        stream: Its stream.
        is_small: Which half of the pool it is of.
        page: The bytes of a page, and where pages count from, for an expandable one.
        blocks: Its blocks by address.
    """

    pool: PoolId
    stream: int
    is_small: bool
    page: tuple[int, int] | None
    blocks: tuple[BlockInfo, ...]


Moment = tuple[SegmentInfo, ...]

_STATE_NAMES = {FREE: "inactive", USED: "active_allocated", PENDING: "active_pending_free"}


def segments(allocator: AllocatorState) -> Iterator[list[Block]]:
    """The blocks of each segment, by address; of an expandable one, those of each contiguous mapped range."""
    for _, head in sorted(allocator.heads.items()):
        block: Block | None = head
        mapped: list[Block] = []
        while block is not None:
            if block.state is not UNMAPPED:
                mapped.append(block)
            elif mapped:
                yield mapped
                mapped = []
            block = block.next
        if mapped:
            yield mapped


def moment(allocator: AllocatorState) -> Moment:
    """What all blocks are now, by address."""
    return tuple(_segment_at_moment(blocks) for blocks in segments(allocator))


def _segment_at_moment(blocks: Sequence[Block]) -> SegmentInfo:
    first = blocks[0]
    return SegmentInfo(
        pool=first.home.pool.owner,
        stream=first.home.stream,
        is_small=first.home.pool.is_small,
        page=None if first.range is None else (first.range.page, first.range.base),
        blocks=tuple(
            BlockInfo(b.address, b.size, b.requested, b.state, -1 if b.state is FREE else b.label) for b in blocks
        ),
    )


def segment_infos(allocator: AllocatorState) -> list[dict[str, Any]]:
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


def trace_entries(history: Iterable[tuple[str, int, int, int, PoolId]]) -> list[dict[str, Any]]:
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


def memory_stats(allocator: AllocatorState) -> dict[str, int]:
    """Counters as in `torch.cuda.memory_stats`, by pool, counted where they are asked for."""
    stats = {
        "num_alloc_retries": allocator.num_retries,
        "num_ooms": allocator.num_ooms,
        "max_split_size": allocator.settings.max_split_size or -1,
        "allocated_bytes.all.peak": allocator.peak_allocated_bytes,
        "requested_bytes.all.peak": allocator.peak_requested_bytes,
        "reserved_bytes.all.peak": allocator.peak_reserved_bytes,
    }
    found = list(segments(allocator))
    for name, is_small in (("small_pool", True), ("large_pool", False)):
        chosen = [blocks for blocks in found if blocks[0].home.pool.is_small == is_small]
        for key, number in _counted(chosen).items():
            stats[f"{key}.{name}.current"] = number
            total = f"{key}.all.current"
            stats[total] = stats.get(total, 0) + number
    return stats


def _counted(found: Sequence[Sequence[Block]]) -> dict[str, int]:
    blocks = [block for segment in found for block in segment]
    used = [block for block in blocks if block.state is USED]
    active = [block for block in blocks if block.state is not FREE]
    # torch leaves expandable segments out of these two: their free pages can always be given back.
    split = [block for block in blocks if block.state is FREE and block.is_split and block.range is None]
    return {
        "segment": sum(segment[0].range is None for segment in found),
        "reserved_bytes": sum(block.size for block in blocks),
        "allocation": len(used),
        "allocated_bytes": sum(block.size for block in used),
        "active": len(active),
        "active_bytes": sum(block.size for block in active),
        "requested_bytes": sum(block.requested for block in active),
        "inactive_split": len(split),
        "inactive_split_bytes": sum(block.size for block in split),
    }
