"""A recorded history again, under other settings or on another device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracer.allocator.blocks import Block, FreeBlocks
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.driver import ABOVE_ALL_DEVICES, PackingDriver
from tracer.allocator.history import BEFORE_THE_RECORDING, FailedRequest, History, Need, Op, Requests
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings
from tracer.allocator.start_state import StartState, load
from tracer.allocator.state import NEWEST_TORCH
from tracer.block_sizes import SMALL_BYTES, round_sizes

_ALLOC, _FREE, _REQUEST, _COMPLETE, _RELEASE, _OOM = map(
    int, (Op.ALLOC, Op.FREE, Op.REQUEST_FREE, Op.COMPLETE_FREE, Op.RELEASE, Op.OOM)
)


def program_of(history: History, releases_by_program: Sequence[int] = ()) -> Requests:
    """Turn a history into the requests of the program.

    Args:
        releases_by_program: Positions of operations before which it emptied the cache; see `reproduce`.
    """
    code, operand = np.array(history.code, np.int64), np.array(history.operand, np.int64)
    is_asked = code != Op.SEGMENT
    releases = np.unique(np.array(releases_by_program, np.int64))
    releases = releases[releases < len(code)]
    at = np.cumsum(is_asked)[releases] - is_asked[releases]
    entry = np.insert(history.entry[is_asked], at, history.entry[releases])
    code, operand = np.insert(code[is_asked], at, _RELEASE), np.insert(operand[is_asked], at, 0)
    # A request that fails has waited for other streams, and does not look at what came free: it comes first.
    for failed in np.flatnonzero(code == _OOM).tolist():
        first = failed
        while first and code[first - 1] == _COMPLETE:
            first -= 1
        for column in (code, operand, entry):
            column[first : failed + 1] = np.roll(column[first : failed + 1], 1)
    return Requests(history, code, operand, entry)


def replay(
    program: Requests,
    settings: AllocatorSettings,
    *,
    capacity: int | None = None,
    torch_version: tuple[int, int] = NEWEST_TORCH,
    goes_on: bool = False,
    start: StartState | None = None,
) -> Need:
    """Run a program's requests through an allocator that has nothing cached, or what the recorded one had.

    What was there before the recording is allocated first, or lies where it lay. Requests that failed in the recording
    are made as well, and what they get is freed at once. The first request that fails here ends the replay, but for
    those that failed in the recording where it `goes_on` after them, as the recorded program did.

    Args:
        capacity: Bytes that it can reserve; None for no limit.
        goes_on: Failed requests of the recording may fail again.
        start: What the recording began with, under the same settings; None for an allocator that has nothing.
    """
    driver = PackingDriver(capacity) if start is None else _driver_from(start, capacity)
    # Expandable segments that are there already may lie further apart than the addresses of a new one reach.
    allocator = CachingAllocator(
        settings, driver=driver, device_bytes=capacity if start is None else None, torch_version=torch_version
    )
    run = _ReplayRun(program, settings, allocator, goes_on=goes_on, start=start)
    failure = run.failure()
    return Need(
        reserved_peak_bytes=allocator.peak_reserved_bytes,
        allocated_peak_bytes=allocator.peak_allocated_bytes,
        num_driver_calls=allocator.num_driver_calls,
        num_retries=allocator.num_retries,
        failure=failure,
        unserved=tuple(run.unserved),
        wanted_bytes=run.wanted_bytes,
    )


def _driver_from(start: StartState, capacity: int | None) -> PackingDriver:
    """A driver that has given what is there at the start, and gives more elsewhere."""
    given = frozenset(span.address for span in start.spans if span.base is None)
    return PackingDriver(capacity, top=ABOVE_ALL_DEVICES, reserved=start.reserved_bytes, given=given)


class _ReplayRun:
    """State of one replay while it runs."""

    def __init__(
        self,
        program: Requests,
        settings: AllocatorSettings,
        allocator: CachingAllocator,
        *,
        goes_on: bool,
        start: StartState | None,
    ) -> None:
        self.unserved: list[int] = []
        self.wanted_bytes = 0
        self._goes_on, self._from = goes_on, start
        self._program, self._allocator = program, allocator
        self._requests = LifeColumns(program.history, settings, allocator)
        self._live: list[Block | None] = [None] * len(program.history.lives)
        self._position = BEFORE_THE_RECORDING

    def failure(self) -> FailedRequest | None:
        """Run to the end, or to the first request that fails."""
        try:
            if self._from is None:
                self._start()
            else:
                self._go_on_from(self._from)
            self._perform()
        except OutOfMemoryError as error:
            return FailedRequest(self._program.entry_at(self._position), error.size, error.reserved, error.allocated)
        return None

    def _start(self) -> None:
        """Allocate the blocks from before in the order of their addresses, since that of time is not known."""
        history, requests, allocator = self._program.history, self._requests, self._allocator
        for life in history.first_lives.tolist():
            block = allocator.serve(requests.requested[life], requests.size[life], requests.home[life])
            self._live[life] = block
            if history.waits_at_start[life]:
                block.label = life
                allocator.request_free(block)

    def _go_on_from(self, start: StartState) -> None:
        """Place the blocks from before where they lay; those that a change does without are free from the start."""
        history = self._program.history
        first = set(history.first_lives.tolist())
        for life, block in load(self._allocator, start, history).items():
            if life in first:
                self._live[life] = block
            else:
                self._allocator.give_back(block)

    def _perform(self) -> None:
        live, requests = self._live, self._requests
        serve, give_back = self._allocator.serve, self._allocator.give_back
        requested, size, home = requests.requested, requests.size, requests.home
        position = 0
        # The hottest loop of a replay.
        try:
            for position, (op, number) in enumerate(zip(*self._program.operations, strict=True)):
                if op == _ALLOC:
                    live[number] = serve(requested[number], size[number], home[number])
                elif op == _FREE:
                    freed, live[number] = live[number], None
                    if freed is not None:
                        give_back(freed)
                else:
                    self._rare(op, number, position)
        except OutOfMemoryError:
            self._position = position
            raise

    def _rare(self, op: int, number: int, position: int) -> None:
        allocator, block = self._allocator, self._live[number] if op in (_REQUEST, _COMPLETE) else None
        if op == _REQUEST and block is not None:
            block.label = number
            allocator.request_free(block)
        elif op == _COMPLETE and block is not None:
            self._live[number] = None
            if block.label == number:  # else an emptied cache waited for it, and it serves another life by now
                allocator.finish(block)
        elif op == _RELEASE:
            allocator.empty_cache()
        elif op == _OOM:
            self._ask_again(number, position)

    def _ask_again(self, number: int, position: int) -> None:
        """Repeat a request that failed in the recording."""
        allocator = self._allocator
        wanted, stream = self._program.history.failed[number]
        self.wanted_bytes = allocator.allocated_bytes + wanted
        try:
            allocator.give_back(allocator.serve(wanted, wanted, allocator.home(wanted <= SMALL_BYTES, stream)))
        except OutOfMemoryError:
            if not self._goes_on:
                raise
            self.unserved.append(int(self._program.entry[position]))


class LifeColumns:
    """Columns over the lives of a history [lives], as lists, which Python reads faster than arrays.

    Attributes:
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
