"""Holds the model against a recording: every decision of the recorded allocator, made again.

New segments lie where the recording has them, the driver refuses where the recorded one did, and the cache is emptied
where the program did. Everything else is the model's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from tracer.allocator.blocks import ADDRESS_MASK, DEFAULT_POOL, Block, FreeBlocks
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.driver import RecordedDriver
from tracer.allocator.history import RELEASES, History, Op, SegmentEvent
from tracer.allocator.replay import LifeColumns
from tracer.allocator.reserving import OutOfMemoryError, oldest_segments, release_cached, release_segment
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.start_state import StartState, load
from tracer.allocator.state import NEWEST_TORCH
from tracer.allocator.statistics import Moment, moment, read_end
from tracer.block_sizes import SMALL_BYTES, segment_size
from tracer.snapshot.columns import DeviceState

# A recording of which most decisions do not come out was made by another allocator, and more of them tell no more.
_ENOUGH_DIFFERENCES = 1000


@dataclass(frozen=True, slots=True)
class Matched:
    """Number of recorded decisions of one kind, and of those that the model repeated."""

    equal: int = 0
    recorded: int = 0

    @property
    def is_exact(self) -> bool:
        """True if all came out."""
        return self.equal == self.recorded


@dataclass(frozen=True, slots=True, eq=False)
class Reproduction:
    """The outcome of a replay of a recording at its own settings."""

    addresses: Matched
    segments: Matched
    releases: Matched
    failures: Matched
    end_segments: Matched  # Segments at the end, with everything in them
    end_blocks: Matched
    num_extra: int  # Segment events of the model that the recording does not have
    recorded_peak_bytes: int
    peak_bytes: int
    first_difference: int | None  # The trace entry of the first decision that did not come out; None if all did
    # The trace entry at which comparing ended because most decisions did not come out; else None.
    given_up_at: int | None
    releases_by_program: tuple[int, ...]  # Positions of operations at which the program emptied the cache
    num_retries: int  # How often the recorded allocator emptied its cache for a request
    # The least that the recorded driver refused: reserved then, and asked for; None if it never did.
    refused_bytes: int | None
    has_counters: bool  # Whether free blocks of one size were taken by the age of their segment, as since torch 2.13
    moments: tuple[Moment, ...]  # All blocks at the moments asked for; none where comparing was given up

    @property
    def is_exact(self) -> bool:
        """True if every decision came out."""
        kinds = (self.addresses, self.segments, self.releases, self.failures, self.end_segments, self.end_blocks)
        return (
            all(kind.is_exact for kind in kinds) and not self.num_extra and self.peak_bytes == self.recorded_peak_bytes
        )


def compare_ends(recorded: Moment, modelled: Moment) -> tuple[Matched, Matched]:
    """Segments that agree in everything, and blocks that do, in whatever segment."""
    # Recordings do not tell where the pages of expandable segments begin.
    modelled_segments = {replace(segment, page=None) for segment in modelled}
    wanted = [replace(segment, page=None) for segment in recorded]
    blocks = {block for segment in modelled_segments for block in segment.blocks}
    num_segments = max(len(wanted), len(modelled_segments))  # one too many is as wrong as one too few
    equal_blocks = sum(block in blocks for segment in wanted for block in segment.blocks)
    num_blocks = sum(len(segment.blocks) for segment in wanted)
    return Matched(sum(segment in modelled_segments for segment in wanted), num_segments), Matched(
        equal_blocks, num_blocks
    )


def reproduce(
    state: DeviceState,
    history: History,
    start: StartState,
    settings: AllocatorSettings,
    *,
    torch_version: tuple[int, int] = NEWEST_TORCH,
    moments: Sequence[int] = (),
    device_bytes: int | None = None,
    stop_at_difference: bool = False,
) -> Reproduction:
    """Replay a recording at its own settings and compare.

    Args:
        moments: Trace entries, ascending, after which to keep what all blocks are.
        device_bytes: The device's memory, where it is known. It sets how far an expandable segment could still grow,
            which decides between blocks when the device is nearly full.
        stop_at_difference: Compare no further than to the first decision that does not come out.
    """
    run = _Reproduction(history, start, settings, torch_version, device_bytes)
    run.stops_at_difference = stop_at_difference
    read_moments, begin = [], 0
    try:
        for entry in moments:
            end = int(np.searchsorted(history.entry, entry, side="right"))
            run.operations(begin, end)
            read_moments.append(moment(run.allocator))
            begin = end
        run.operations(begin, len(history.code))
        run.end()
    except _TooDifferentError:
        read_moments.clear()
    return run.result(state, tuple(read_moments))


class _TooDifferentError(Exception):
    """Raised to end a replay that differs too much to go on."""


_ALLOC, _FREE, _REQUEST, _COMPLETE, _SEGMENT, _OOM = map(
    int, (Op.ALLOC, Op.FREE, Op.REQUEST_FREE, Op.COMPLETE_FREE, Op.SEGMENT, Op.OOM)
)


class _Reproduction:
    """A replay under way, and the counts of what came out."""

    def __init__(
        self,
        history: History,
        start: StartState,
        settings: AllocatorSettings,
        torch_version: tuple[int, int],
        device_bytes: int | None,
    ) -> None:
        self._history, self._start, self._settings = history, start, settings
        self._driver = RecordedDriver(start.reserved_bytes)
        settings = replace(settings, per_process_memory_fraction=1.0)  # the recorded driver says what it refused
        self.allocator = CachingAllocator(
            settings, driver=self._driver, device_bytes=device_bytes, torch_version=torch_version
        )
        self._live: list[Block | None] = [None] * len(history.lives)
        for life, block in load(self.allocator, start, history).items():
            self._live[life] = block
        for span in start.spans:
            if span.base is None:
                self._driver.taken.add(span.address, span.size)
        self._log: list[tuple[str, int, int, int]] = []
        self.allocator.segment_log = self._log
        self._group: list[SegmentEvent] = []
        self._late: list[tuple[int, Block]] = []
        self._wait_ends, self._is_waiting = 0, False
        self._requests = LifeColumns(history, settings, self.allocator)
        self._equal: Counter[str] = Counter()
        self._releases: list[int] = []
        changes = (-event.size if event.is_release else event.size for event in history.segment_events)
        self._recorded_peak = max(accumulate(changes, initial=start.reserved_bytes))
        self.stops_at_difference = False
        self._num_differences = 0
        self._first_difference: int | None = None
        self._given_up_at: int | None = None

    def operations(self, begin: int, end: int) -> None:
        """Replay a stretch of the history."""
        allocator, live, group, log = self.allocator, self._live, self._group, self._log
        requests, address = self._requests, self._requests.address
        serve, give_back = allocator.serve, allocator.give_back
        code, operand = self._history.code[begin:end], self._history.operand[begin:end]
        num_placed = 0
        # The hottest loop of a replay: two of three operations are the first two.
        try:
            for position, (op, number) in enumerate(zip(code, operand, strict=True), begin):
                if op == _ALLOC:
                    size, home = requests.size[number], requests.home[number]
                    if group:
                        self._before_request(position, size, home)
                    try:
                        block = serve(requests.requested[number], size, home)
                    except OutOfMemoryError:
                        block = self._place_as_recorded(position, number)
                    live[number], block.label = block, number
                    if block.rank & ADDRESS_MASK == address[number]:
                        num_placed += 1
                    else:
                        self._differs(position)
                    if log or group:
                        self._compare(position)
                elif op == _SEGMENT:
                    group.append(self._history.segment_events[number])
                else:
                    if group and group[0].is_release and op != _OOM:
                        self._empty_cache(position)
                    if op == _FREE:
                        freed, live[number] = live[number], None
                        if freed is not None:
                            give_back(freed)
                    else:
                        self._rare(position, op, number)
        finally:
            self._equal["addresses"] += num_placed

    def end(self) -> None:
        """The program may have emptied the cache at last."""
        if self._group:
            self._empty_cache(len(self._history.code))

    def result(self, state: DeviceState, moments: tuple[Moment, ...]) -> Reproduction:
        """The comparison of the replay with the recording, with the end state compared."""
        history, events, equal = self._history, self._history.segment_events, self._equal
        num_releases = sum(event.is_release for event in events)
        end = moment(self.allocator)
        end_segments, end_blocks = compare_ends(read_end(state, history.end_pools), end)
        return Reproduction(
            addresses=Matched(equal["addresses"], history.num_allocations),
            segments=Matched(equal["segments"], len(events) - num_releases),
            releases=Matched(equal["releases"], num_releases),
            failures=Matched(equal["failures"], len(history.failed)),
            end_segments=end_segments,
            end_blocks=end_blocks,
            num_extra=equal["extra"],
            recorded_peak_bytes=self._recorded_peak,
            peak_bytes=self.allocator.peak_reserved_bytes,
            first_difference=self._first_difference,
            given_up_at=self._given_up_at,
            releases_by_program=tuple(self._releases),
            num_retries=self.allocator.num_retries,
            refused_bytes=self._driver.refused_bytes,
            has_counters=self.allocator.counts_segments,
            moments=moments,
        )

    def _rare(self, position: int, op: int, number: int) -> None:
        if op == Op.OOM:
            self._failed_request(position, number)
            return
        block = self._live[number]
        if op == _REQUEST and block is not None:
            self.allocator.request_free(block)
        elif op == _COMPLETE and block is not None:
            self._live[number] = None
            if self._group or self._is_before_release(position):
                self._late.append((number, block))
            else:
                self._finish(number, block)

    def _is_before_release(self, position: int) -> bool:
        """Emptying the cache waits for other streams first: the model completes these frees then, and not before.

        A request that has found no free block, and empties the cache, does not look at what those have freed.
        """
        if position >= self._wait_ends:
            code, at = self._history.code, position
            while at < len(code) and code[at] == _COMPLETE:
                at += 1
            self._wait_ends = at
            event = self._history.segment_events[self._history.operand[at]] if code[at : at + 1] == [_SEGMENT] else None
            # A request that fails has emptied the cache too, also where nothing could be given back.
            has_failed = code[at : at + 1] == [_OOM]
            self._is_waiting = has_failed or (event is not None and event.is_release)
        return self._is_waiting

    def _finish(self, number: int, block: Block) -> None:
        if block.label == number:  # else an emptied cache waited for it, and it serves another life by now
            self.allocator.finish(block)

    def _place_as_recorded(self, position: int, number: int) -> Block:
        """The model has no memory for what the recording served."""
        self._differs(position)
        self._driver.events.clear()
        requests = self._requests
        return self.allocator.serve(requests.requested[number], requests.size[number], requests.home[number])

    def _failed_request(self, position: int, number: int) -> None:
        size, stream = self._history.failed[number]
        home = self.allocator.home(size <= SMALL_BYTES, stream)
        self._before_request(position, size, home, has_failed=True)
        self._driver.is_exhausted = True
        try:
            self.allocator.give_back(self.allocator.serve(size, size, home))
            self._differs(position)
        except OutOfMemoryError:
            self._equal["failures"] += 1
        self._driver.is_exhausted = False
        self._compare(position)

    def _before_request(self, position: int, size: int, home: FreeBlocks, *, has_failed: bool = False) -> None:
        """Segments were taken or given back before a request: was it the program, or the allocator for the request?"""
        self._set_users(0)
        if self._group and self._group[0].is_release:
            # A driver whose memory lies in pieces refuses what it had at another time: a failure shows that it did.
            had_enough = not has_failed and self._fits_below_the_peak(size)
            if self.allocator.has_free_block(size, home) or had_enough:
                self._release_cached(position)
            elif self._settings.garbage_collection_threshold > 0:
                self._collect_garbage()
        self._driver.events = deque(self._group[len(self._log) :])

    def _fits_below_the_peak(self, size: int) -> bool:
        """The driver had as much at another time, so that it was the program that emptied the cache.

        Some settings release segments while there is memory left; there this says nothing.
        """
        if self._settings.max_split_size is not None or self._settings.garbage_collection_threshold:
            return False
        segment_bytes = segment_size(size, self._settings.large_segment_size)
        return self.allocator.reserved_bytes + segment_bytes <= self._recorded_peak

    def _collect_garbage(self) -> None:
        """A memory limit is not recorded: old segments are released as often as the recording shows it."""
        while True:
            old = oldest_segments(self.allocator)
            recorded = [event.address for event in self._group[len(self._log) :][: len(old)]]
            if not old or [block.address for block in old] != recorded:
                return
            for block in old:
                release_segment(self.allocator, block)

    def _empty_cache(self, position: int) -> None:
        """The program emptied the cache, or deleted a pool."""
        self._set_users(0)
        self._release_cached(position)
        self._compare(position)

    def _release_cached(self, position: int) -> None:
        self._releases.append(position)
        self._driver.events.clear()
        is_default = any(event.pool == DEFAULT_POOL for event in self._group)
        release_cached(self.allocator, default_pool=is_default)

    def _set_users(self, users: int) -> None:
        """A private pool of which segments are given back is one that nobody uses any more."""
        for event in self._group:
            if event.is_release and event.pool in self.allocator.private_pools:
                self.allocator.private_pools[event.pool].users = users

    def _compare(self, position: int) -> None:
        """Hold what the model took and gave back against what the recording has, and begin anew."""
        self._set_users(1)
        recorded = [event[:4] for event in self._group]
        if recorded == self._log:
            matched = Counter(recorded)
        else:
            matched = Counter(recorded) & Counter(self._log)
            self._equal["extra"] += len(self._log) - matched.total()
            self._differs(position)
        for (action, *_), number in matched.items():
            self._equal["releases" if action in RELEASES else "segments"] += number
        for number, block in self._late:
            self._finish(number, block)
        self._late.clear()
        self._log.clear()
        self._group.clear()
        self._driver.events.clear()

    def _differs(self, position: int) -> None:
        entry = int(self._history.entry[min(position, len(self._history.entry) - 1)])
        if self._first_difference is None:
            self._first_difference = entry
        self._num_differences += 1
        if self.stops_at_difference or self._num_differences > max(_ENOUGH_DIFFERENCES, position // 4):
            self._given_up_at = entry
            raise _TooDifferentError
