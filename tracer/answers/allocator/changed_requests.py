"""A recorded program with other requests or other settings: what a replay under a change is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np

from tracer.allocator.blocks import DEFAULT_POOL
from tracer.allocator.history import Need, Op, Requests
from tracer.allocator.settings import AllocatorSettings
from tracer.answers.allocator.modelled import Modelled, model_device
from tracer.arrays import Ints
from tracer.block_sizes import round_size
from tracer.blocks.from_snapshot.blocks import ReplayedDevice

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """The requests of a replay, and the settings that they are made with."""

    settings: AllocatorSettings
    program: Requests

    def outcome(self, modelled: Modelled) -> Need:
        """Return the memory needed after the change, with the capacity of the recording."""
        return modelled.at_capacity(self.settings, modelled.capacity, program=self.program)

    def left(self, rows: Ints, entry: int) -> tuple[Ints, int]:
        """Bytes of blocks in use at an entry that are there with the change, and of the last request that failed."""
        program = self.program
        lives, failed = program.history.lives, program.history.failed
        is_freed = np.zeros(len(lives), np.bool_)
        is_freed[program.operand[(program.code == Op.FREE) & (program.entry <= entry)]] = True
        is_gone = is_freed[rows] | (lives.begin[rows] == _NEVER)
        return np.where(is_gone, 0, lives.requested_bytes[rows]), failed[-1][0] if failed else 0


def with_expandable_segments(modelled: Modelled) -> Changed:
    """Segments that grow in place."""
    return Changed(replace(modelled.settings, expandable_segments=True), modelled.program)


def splitting_all(modelled: Modelled) -> Changed:
    """No block is kept whole."""
    return Changed(replace(modelled.settings, max_split_size=None), modelled.program)


def on_one_stream(modelled: Modelled) -> Changed:
    """The program with all requests on one stream and in one pool."""
    history = modelled.program.history
    together = replace(
        history,
        stream=np.zeros_like(history.stream),
        pool=np.zeros_like(history.pool),
        pools=(DEFAULT_POOL,),
        failed=tuple((size, 0) for size, _ in history.failed),
    )
    return Changed(modelled.settings, replace(modelled.program, history=together))


def freeing_at_once(modelled: Modelled) -> Changed:
    """No free waits for another stream."""
    program = modelled.program
    code, operand = program.code, program.operand
    is_completed = code == Op.COMPLETE_FREE
    is_kept = ~is_completed
    is_kept[is_completed] = program.history.waits_at_start[operand[is_completed]]
    code = np.where(code == Op.REQUEST_FREE, int(Op.FREE), code)
    return Changed(
        modelled.settings, Requests(program.history, code[is_kept], operand[is_kept], program.entry[is_kept])
    )


def without_blocks(modelled: Modelled, rows: Ints) -> Changed:
    """Some blocks are never asked for; what frees them then has nothing to free."""
    program = modelled.program
    lives = program.history.lives
    dropped = np.zeros(len(lives), dtype=np.bool_)
    dropped[rows] = True
    code, operand = program.code, program.operand
    is_alloc = code == Op.ALLOC
    is_kept = ~is_alloc
    is_kept[is_alloc] = ~dropped[operand[is_alloc]]
    begin = np.where(dropped, _NEVER, lives.begin)
    return Changed(
        modelled.settings,
        Requests(
            replace(program.history, lives=replace(lives, begin=begin)),
            code[is_kept],
            operand[is_kept],
            program.entry[is_kept],
        ),
    )


def with_smaller_blocks(modelled: Modelled, rows: Ints, divisor: int, *, with_last_failure: bool = False) -> Changed:
    """Some blocks, and the last request that failed where asked for, are a fraction of their size, rounded up."""
    program = modelled.program
    if with_last_failure:
        *others, (asked, stream) = program.history.failed
        failed = (*others, (round_size(-(-asked // divisor)), stream))
        program = replace(program, history=replace(program.history, failed=failed))
    size = program.history.lives.requested_bytes.copy()
    size[rows] = -(-size[rows] // divisor)
    lives = replace(program.history.lives, requested_bytes=size)
    return Changed(modelled.settings, replace(program, history=replace(program.history, lives=lives)))


def with_earlier_frees(modelled: Modelled, rows: Ints, entry: Ints) -> Changed:
    """Some blocks are freed right before an entry each; what frees them later finds nothing to free."""
    return _with_operations(modelled, Op.FREE, rows, entry)


def emptying_at(modelled: Modelled, entry: Ints) -> Changed:
    """The program empties the cache right before some entries."""
    return _with_operations(modelled, Op.RELEASE, np.zeros_like(entry), entry)


def _with_operations(modelled: Modelled, op: Op, operand: Ints, entry: Ints) -> Changed:
    program = modelled.program
    order = np.argsort(entry, kind="stable")
    at = np.searchsorted(program.entry, entry[order], side="left")
    changed = Requests(
        program.history,
        np.insert(program.code, at, int(op)),
        np.insert(program.operand, at, operand[order]),
        np.insert(program.entry, at, entry[order]),
    )
    return Changed(modelled.settings, changed)


Trial: TypeAlias = Literal["expandable segments", "split all", "one stream", "free at once"]
"""Segments that grow in place; no block kept whole; one stream and one pool; no free that waits for a stream."""


class TriedRequests:
    """Replays one device's recording under changes, each once, and only if it is asked for."""

    def __init__(self, device: ReplayedDevice) -> None:
        self._device = device
        self._found: dict[Trial, Need] = {}

    def serves(self, trial: Trial, entry: int) -> bool | None:
        """Return True if the request that failed at an entry is served under a change.

        Returns:
            None if a replay of the recording itself does not fail there, so that a replay with a change proves nothing,
            or if the change would have acted before the recording.
        """
        modelled = self._modelled
        if modelled is None or entry not in modelled.baseline.unserved:
            return None
        if modelled.is_from_start and trial not in _OF_REQUESTS:
            return None
        if trial not in self._found:
            self._found[trial] = _TRIALS[trial](modelled).outcome(modelled)
        outcome = self._found[trial]
        return entry not in outcome.unserved and (outcome.failure is None or outcome.failure.entry > entry)

    @cached_property
    def _modelled(self) -> Modelled | None:
        modelled = model_device(self._device)
        return None if modelled is None else modelled.as_it_failed


_OF_REQUESTS: Final[frozenset[Trial]] = frozenset({"free at once"})
_TRIALS: Final[dict[Trial, Callable[[Modelled], Changed]]] = {
    "expandable segments": with_expandable_segments,
    "split all": splitting_all,
    "one stream": on_one_stream,
    "free at once": freeing_at_once,
}
