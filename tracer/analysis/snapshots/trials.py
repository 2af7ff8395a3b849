"""What a failed request would have come to under a change: the recording again, with the memory that it had."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, Literal, TypeAlias

from tracer.allocator.replay import Outcome
from tracer.analysis.snapshots.changed_requests import (
    Changed,
    freeing_at_once,
    on_one_stream,
    splitting_all,
    with_expandable_segments,
)
from tracer.analysis.snapshots.modelled import Modelled, model_device
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import Replay

Trial: TypeAlias = Literal["expandable segments", "split all", "one stream", "free at once"]
"""Segments that grow in place; no block kept whole; one stream and one pool; no free that waits for a stream."""


class Trials:
    """Replays one device's recording under changes, each once, and only if it is asked for."""

    def __init__(self, snapshot: Snapshot, state: DeviceState, replayed: Replay) -> None:
        self._parts = snapshot, state, replayed
        self._found: dict[Trial, Outcome] = {}

    def serves(self, trial: Trial, entry: int) -> bool | None:
        """Whether the request that failed at an entry is served under a change.

        Returns:
            None where a replay of the recording itself does not fail there, so that one with a change tells nothing,
            and where the change would have acted before the recording.
        """
        modelled = self._modelled
        if modelled is None or not _fails(modelled.baseline, entry):
            return None
        if modelled.is_from_start and trial not in _OF_REQUESTS:
            return None
        if trial not in self._found:
            self._found[trial] = _TRIALS[trial](modelled).outcome(modelled)
        outcome = self._found[trial]
        return not _fails(outcome, entry) and (outcome.failure is None or outcome.failure.entry > entry)

    @cached_property
    def _modelled(self) -> Modelled | None:
        modelled = model_device(*self._parts)
        return None if modelled is None else modelled.as_it_failed


def _fails(outcome: Outcome, entry: int) -> bool:
    return entry in outcome.unserved


_OF_REQUESTS: Final[frozenset[Trial]] = frozenset({"free at once"})
_TRIALS: Final[dict[Trial, Callable[[Modelled], Changed]]] = {
    "expandable segments": with_expandable_segments,
    "split all": splitting_all,
    "one stream": on_one_stream,
    "free at once": freeing_at_once,
}
