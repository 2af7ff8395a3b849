"""What a failed request would have come to under a change: the recording again, with the memory that it had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np

from tracer.allocator.blocks import DEFAULT_POOL
from tracer.allocator.history import Op
from tracer.allocator.replay import Outcome, Program
from tracer.analysis.snapshots.modelled import Modelled, model_device
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import Replay

Trial: TypeAlias = Literal["expandable segments", "split all", "one stream", "free at once"]
"""Segments that grow in place; no block kept whole; one stream and one pool; no free that waits for a stream."""


class Trials:
    """Replays one device's recording under changes, each once, and only if it is asked for.

    Args:
        snapshot: The whole one.
        state: The device.
        replayed: What was in use when.
    """

    def __init__(self, snapshot: Snapshot, state: DeviceState, replayed: Replay) -> None:
        self._parts = snapshot, state, replayed
        self._found: dict[Trial, Outcome] = {}

    def serves(self, trial: Trial, entry: int) -> bool | None:
        """Whether the request that failed at an entry is served under a change.

        Returns:
            None where a replay of the recording itself does not fail there, so that one with a change tells nothing.
        """
        modelled = self._modelled
        if modelled is None or not _fails(modelled.baseline, entry):
            return None
        if trial not in self._found:
            self._found[trial] = _TRIALS[trial](modelled)
        found = self._found[trial]
        return not _fails(found, entry) and (found.failure is None or found.failure.entry > entry)

    @cached_property
    def _modelled(self) -> Modelled | None:
        return model_device(*self._parts)


def _fails(outcome: Outcome, entry: int) -> bool:
    return entry in outcome.unserved


def _expandable(modelled: Modelled) -> Outcome:
    return modelled.at_capacity(replace(modelled.settings, expandable_segments=True), modelled.capacity)


def _split_all(modelled: Modelled) -> Outcome:
    return modelled.at_capacity(replace(modelled.settings, max_split_size=None), modelled.capacity)


def _one_stream(modelled: Modelled) -> Outcome:
    program = modelled.program
    history = replace(
        program.history,
        stream=np.zeros_like(program.history.stream),
        pool=np.zeros_like(program.history.pool),
        pools=(DEFAULT_POOL,),
        failed=tuple((size, 0) for size, _ in program.history.failed),
    )
    return modelled.at_capacity(modelled.settings, modelled.capacity, program=replace(program, history=history))


def _free_at_once(modelled: Modelled) -> Outcome:
    program = modelled.program
    rows = [
        (int(Op.FREE) if code == Op.REQUEST_FREE else code, operand, entry)
        for code, operand, entry in zip(program.code, program.operand, program.entry, strict=True)
        if code != Op.COMPLETE_FREE or program.history.waits_at_start[operand]
    ]
    code, operand, entry = map(list, zip(*rows, strict=True))
    changed = Program(program.history, code, operand, entry)
    return modelled.at_capacity(modelled.settings, modelled.capacity, program=changed)


_TRIALS: Final[dict[Trial, Callable[[Modelled], Outcome]]] = {
    "expandable segments": _expandable,
    "split all": _split_all,
    "one stream": _one_stream,
    "free at once": _free_at_once,
}
