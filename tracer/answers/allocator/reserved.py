"""Why so much is reserved: every reserved byte by pool, stream and reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tracer.allocator.blocks import DEFAULT_POOL, FREE, PENDING, PoolId
from tracer.allocator.history import pool_numbers
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.statistics import BlockInfo, Moment, SegmentInfo, read_end
from tracer.answers.allocator.modelled import Modelled
from tracer.block_sizes import round_size
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import pool_words

ASKED: Final = "asked for by blocks in use"
ROUNDING: Final = "rounding of sizes"
UNSPLIT: Final = "remainders too small to split off"
WAITING: Final = "waiting for another stream"
HELD: Final = "free, in segments with blocks in use"
CACHED: Final = "cached"


@dataclass(frozen=True, slots=True)
class ReservedRow:
    """Reserved bytes of one pool and stream for one reason."""

    pool: str  # `large` or `small`, and the number of a private pool
    stream: int  # The stream; 0 is the default one
    reason: str
    bytes: int
    count: int  # Blocks or free pieces


@dataclass(frozen=True, slots=True)
class Reserved:
    """Reserved memory at one moment."""

    entry: int | None  # The entry after which; -1 for the start of the recording, None for when the snapshot was taken
    bytes: int
    rows: tuple[ReservedRow, ...]  # By pool, stream and reason; they sum to the bytes


def reserved_at_peak(modelled: Modelled) -> Reserved | None:
    """Return why so much was reserved when the most was; None if the model left the recording before."""
    moment = modelled.moment_after(modelled.peak_entry)
    return None if moment is None else _reserved(moment, modelled.settings, modelled.peak_entry)


def reserved_at_end(device: ReplayedDevice, settings: AllocatorSettings) -> Reserved:
    """Return why so much was reserved when the snapshot was taken; nothing without an allocator."""
    if not device.snapshot.has_allocator:
        return Reserved(None, 0, ())
    pools = pool_numbers(device.snapshot, device.state)
    return _reserved(read_end(device.state, pools, page=settings.large_segment_size), settings, None)


def _reserved(moment: Moment, settings: AllocatorSettings, entry: int | None) -> Reserved:
    sums: dict[tuple[PoolId, bool, int, str], list[int]] = {}
    for segment in moment:
        for reason, size, count in _parts(segment, settings):
            if size:
                total = sums.setdefault((segment.pool, segment.is_small, segment.stream, reason), [0, 0])
                total[0] += size
                total[1] += count
    rows = []
    for (pool, is_small, stream, reason), (size, count) in sums.items():
        half = "small" if is_small else "large"
        name = half if pool == DEFAULT_POOL else f"{half} of {pool_words(f'{pool[0]},{pool[1]}')}"
        rows.append(ReservedRow(name, stream, reason, size, count))
    rows.sort(key=lambda row: (-row.bytes, row.pool, row.stream, row.reason))
    return Reserved(entry, sum(row.bytes for row in rows), tuple(rows))


def _parts(segment: SegmentInfo, settings: AllocatorSettings) -> Iterator[tuple[str, int, int]]:
    """Yield reason, bytes and count of each part of a segment."""
    has_blocks_in_use = any(block.state is not FREE for block in segment.blocks)
    for block in segment.blocks:
        if block.state is PENDING:
            yield WAITING, block.size, 1
        elif block.state is not FREE:
            rounded = min(round_size(block.requested, settings.roundup_power2_divisions), block.size)
            requested = min(block.requested, rounded)
            yield ASKED, requested, 1
            yield ROUNDING, rounded - requested, 1
            yield UNSPLIT, block.size - rounded, 1
        elif segment.page is not None:
            num_pages = _whole_pages(block, *segment.page)
            yield CACHED, num_pages * segment.page[0], num_pages
            yield HELD, block.size - num_pages * segment.page[0], 1
        else:
            yield HELD if has_blocks_in_use else CACHED, block.size, 1


def _whole_pages(block: BlockInfo, page: int, base: int) -> int:
    """Return how many whole pages of an expandable segment lie in a free block: these can be given back."""
    first, last = -(-(block.address - base) // page), (block.address + block.size - base) // page
    return max(0, last - first)
