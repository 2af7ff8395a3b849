"""Why so much is reserved: every reserved byte by pool, stream and reason, and what keeps free memory where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.allocator.blocks import DEFAULT_POOL, FREE, PENDING, PoolId
from tracer.allocator.history import pool_numbers
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.statistics import BlockInfo, Moment, SegmentInfo, read_end
from tracer.answers.allocator.modelled import Modelled
from tracer.block_sizes import round_size
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Site, Sites, pool_words
from tracer.blocks.kinds import BEFORE_RECORDING
from tracer.snapshot.replay import BEFORE, Lives

ASKED: Final = "asked for by blocks in use"
ROUNDING: Final = "rounding of sizes"
UNSPLIT: Final = "remainders too small to split off"
WAITING: Final = "waiting for another stream"
HELD: Final = "free, in segments with blocks in use"
REUSED: Final = "cached, used again later"
IDLE: Final = "cached, not used again"
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class ReservedRow:
    """Reserved bytes of one pool and stream for one reason."""

    pool: str  # `large` or `small`, and the number of a private pool
    stream: int  # The stream; 0 is the default one
    reason: str
    bytes: int
    count: int  # Blocks or free pieces


@dataclass(frozen=True, slots=True)
class SegmentHolder:
    """Lines whose blocks keep free memory in segments that could be given back without them."""

    sites: tuple[Site, ...]  # The lines; none where blocks of more than three lines share the segments
    free_bytes: int  # What would be free for others if their blocks lay elsewhere
    held_bytes: int  # What their blocks take there
    num_segments: int  # Segments, and pages of expandable ones
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """All reserved memory at one moment."""

    entry: int | None  # The entry after which; -1 for the start of the recording, None for when the snapshot was taken
    bytes: int
    rows: tuple[ReservedRow, ...]  # By pool, stream and reason; they sum to the bytes
    holders: tuple[SegmentHolder, ...]  # What keeps the free memory of `HELD` rows; they sum to those, largest first


def reserved_at_peak(modelled: Modelled, sites: Sites) -> Reserved | None:
    """Why so much was reserved when the most was; None if the model left the recording before."""
    moment = modelled.moment_after(modelled.peak_entry)
    if moment is None:
        return None
    uses = _LaterUses(modelled.history.lives, modelled.peak_entry, _releases(modelled))
    account = _Account(modelled.settings, modelled.history.lives, sites, uses)
    return account.of(moment, modelled.peak_entry)


def reserved_at_end(device: ReplayedDevice, settings: AllocatorSettings) -> Reserved:
    """Why so much was reserved when the snapshot was taken, which needs no history; nothing without an allocator."""
    if not device.snapshot.has_allocator:
        return Reserved(None, 0, (), ())
    state, lives = device.state, device.replay.lives
    rows = np.flatnonzero(lives.end == len(state.trace))
    life_at = dict(zip(lives.addr[rows].tolist(), rows.tolist(), strict=True))
    pools = pool_numbers(device.snapshot, state)
    end = read_end(state, pools, page=settings.large_segment_size, life_at=life_at)
    return _Account(settings, lives, device.sites, None, has_history=len(state.trace) > 0).of(end, None)


def _releases(modelled: Modelled) -> Mapping[int, list[int]]:
    """The entries at which each segment was given back, by address."""
    history = modelled.history
    releases: dict[int, list[int]] = {}
    for event, entry in zip(history.segment_events, history.segment_entry.tolist(), strict=True):
        if event.action == "segment_free":
            releases.setdefault(event.address, []).append(entry)
    return releases


class _LaterUses:
    """Later uses of memory that is free at one moment."""

    def __init__(self, lives: Lives, entry: int, releases: Mapping[int, list[int]]) -> None:
        rows = np.flatnonzero(lives.begin > entry)
        rows = rows[np.argsort(lives.addr[rows], kind="stable")]
        self._address, self._begin = lives.addr[rows], lives.begin[rows]
        self._end = self._address + np.maximum(lives.allocated_bytes[rows], 1)
        self._entry, self._releases = entry, releases

    def of_segment(self, address: int, size: int) -> bool:
        """Whether any block is placed in a free segment before it is released."""
        low, high = np.searchsorted(self._address, (address, address + size))
        until = next((entry for entry in self._releases.get(address, ()) if entry > self._entry), None)
        begins = self._begin[low:high]
        return bool(len(begins)) if until is None else bool((begins < until).any())

    def of_pages(self, block: BlockInfo, low: int, page: int, num_pages: int) -> int:
        """Number of whole free pages inside a block that are used again."""
        first, last = np.searchsorted(self._address, (block.address, block.address + block.size))
        if first == last:
            return 0
        begin = np.clip((self._address[first:last] - low) // page, 0, num_pages)
        end = np.maximum.accumulate(np.clip(-(-(self._end[first:last] - low) // page), 0, num_pages))
        covered = np.concatenate([[0], end[:-1]])
        return int(np.maximum(end - np.maximum(begin, covered), 0).sum())


@dataclass(slots=True)
class _Shared:
    """A segment or page of which a part is free and a part in use."""

    free: int
    held: int
    blocks: list[BlockInfo]


Add = Callable[[str, int, int], None]


class _Account:
    """Accounts for the segments of one moment."""

    def __init__(
        self,
        settings: AllocatorSettings,
        lives: Lives,
        sites: Sites,
        uses: _LaterUses | None,
        *,
        has_history: bool = True,
    ) -> None:
        self._settings, self._uses, self._has_history = settings, uses, has_history
        self._stack, self._begin, self._sites = lives.stack, lives.begin, sites

    def of(self, moment: Moment, entry: int | None) -> Reserved:
        """Everything that is reserved."""
        sums: dict[tuple[PoolId, bool, int, str], list[int]] = {}
        holders: dict[tuple[Site, ...], list[int]] = {}
        for segment in moment:

            def add(reason: str, size: int, count: int = 1, segment: SegmentInfo = segment) -> None:
                total = sums.setdefault((segment.pool, segment.is_small, segment.stream, reason), [0, 0])
                total[0] += size
                total[1] += count if size else 0

            for shared in self._segment(segment, add):
                if shared.free:
                    self._hold(shared, holders)
        rows = []
        for (pool, is_small, stream, reason), (size, count) in sums.items():
            half = "small" if is_small else "large"
            name = half if pool == DEFAULT_POOL else f"{half} of {pool_words(f'{pool[0]},{pool[1]}')}"
            if size:
                rows.append(ReservedRow(name, stream, reason, size, count))
        return Reserved(
            entry=entry,
            bytes=sum(row.bytes for row in rows),
            rows=tuple(sorted(rows, key=lambda row: (-row.bytes, row.pool, row.stream, row.reason))),
            holders=tuple(
                sorted(
                    (SegmentHolder(sites, *numbers) for sites, numbers in holders.items()),
                    key=lambda holder: (-holder.free_bytes, str(holder.sites)),
                )
            ),
        )

    def _segment(self, segment: SegmentInfo, add: Add) -> Iterator[_Shared]:
        """Account for one segment, and yield what of it is shared by free and used memory."""
        for block in segment.blocks:
            if block.state is not FREE:
                self._used(block, add)
        if segment.page is None:
            yield from self._plain(segment, add)
        else:
            yield from self._expandable(segment, *segment.page, add)

    def _used(self, block: BlockInfo, add: Add) -> None:
        if block.state is PENDING:
            add(WAITING, block.size, 1)
            return
        rounded = min(round_size(block.requested, self._settings.roundup_power2_divisions), block.size)
        requested = min(block.requested, rounded)
        add(ASKED, requested, 1)
        add(ROUNDING, rounded - requested, 1)
        add(UNSPLIT, block.size - rounded, 1)

    def _plain(self, segment: SegmentInfo, add: Add) -> Iterator[_Shared]:
        free = [block for block in segment.blocks if block.state is FREE]
        used = [block for block in segment.blocks if block.state is not FREE]
        size = sum(block.size for block in free)
        if used:
            add(HELD, size, len(free))
            yield _Shared(size, sum(block.size for block in used), used)
        elif free:
            is_reused = self._uses is not None and self._uses.of_segment(free[0].address, size)
            add(REUSED if is_reused else IDLE, size, len(free))

    def _expandable(self, segment: SegmentInfo, page: int, base: int, add: Add) -> Iterator[_Shared]:
        """Whole free pages are cached; free parts of others are held by the blocks in the same page."""
        shared: dict[int, _Shared] = {}

        def at(address: int) -> _Shared:
            return shared.setdefault((address - base) // page, _Shared(0, 0, []))

        for block in segment.blocks:
            end = block.address + block.size
            if block.state is not FREE:
                for start in {block.address - (block.address - base) % page, end - 1 - (end - 1 - base) % page}:
                    at(start).blocks.append(block)
                    at(start).held += min(end, start + page) - max(block.address, start)
                continue
            low = base - (block.address - base) // -page * page
            high = base + (end - base) // page * page
            if high <= low:  # no page is free as a whole
                low = high = min(low, end)
            if num_pages := (high - low) // page:
                num_reused = 0 if self._uses is None else self._uses.of_pages(block, low, page, num_pages)
                add(REUSED, num_reused * page, num_reused)
                add(IDLE, (num_pages - num_reused) * page, num_pages - num_reused)
            add(HELD, block.size - (high - low), 1)
            at(block.address).free += low - block.address
            if end > high:
                at(high).free += end - high
        yield from shared.values()

    def _hold(self, shared: _Shared, holders: dict[tuple[Site, ...], list[int]]) -> None:
        sites = {self._site(block.life) for block in shared.blocks}
        key = tuple(sorted(sites, key=str)) if len(sites) <= _MAX_NAMED else ()
        total = holders.setdefault(key, [0, 0, 0, 0])
        for at, number in enumerate((shared.free, shared.held, 1, len(shared.blocks))):
            total[at] += number

    def _site(self, life: int) -> Site:
        unknown = Site(BEFORE_RECORDING if self._has_history else NO_FRAMES)
        if life < 0:
            return unknown
        site = self._sites.site(int(self._stack[life]))
        return unknown if site.frame == NO_FRAMES and self._begin[life] == BEFORE else site
