"""Why memory ran out, from the allocator's history, with what the recording of the failing step knows of its blocks.

The history alone has the moment of the failure; what each block is, the recording knows better than any stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.allocator_join import JoinedHistory, join_history
from tracer.analysis.profiles.findings import CycleFindings, Findings
from tracer.analysis.profiles.held_now import held_at_failure
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.first_changes import FirstChanges, first_changes
from tracer.analysis.snapshots.modelled import model_device
from tracer.analysis.snapshots.oom import OutOfMemory, device_out_of_memory, in_evaluation, last_out_of_memory
from tracer.arrays import Bool, PerBlock
from tracer.capture.objects.known_storages import KnownStorages
from tracer.snapshot.columns import Snapshot

_UNSAID = (Kind.BEFORE_RECORDING, Kind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that a device had no memory for.

    Attributes:
        first: What to try first, replayed on the recorded requests; None where they cannot be replayed.
    """

    event: OutOfMemory
    first: FirstChanges | None


def failed_allocation(
    snapshot: Snapshot,
    findings: Findings | None,
    known: KnownStorages,
    *,
    device_type: str,
    was_evaluating: bool = False,
) -> FailedAllocation | None:
    """Explain the last allocation that a device had no memory for.

    Args:
        findings: Findings of the recording that the failure ended; None if nothing was recorded.
        device_type: Type of the devices in the history, such as `cuda`.

    Returns:
        None if no device ran out of memory.

    Raises:
        SnapshotError: The snapshot contradicts itself.
    """
    index = device_out_of_memory(snapshot)
    if index is None:
        return None
    device = f"{device_type}:{index}"
    held = known.words_at(device)
    if findings is not None and findings.device == device:
        snapshot, held = with_recorded_kinds(snapshot, findings.cycles[-1], held)
    now = held_at_failure(known, device, findings)
    replayed = replay_snapshot(snapshot, device=index, held=held, held_now={index: now})
    (one,) = replayed.devices
    event = last_out_of_memory(snapshot, one.state, one.replay, kinds=one.kinds, sites=replayed.sites)
    if was_evaluating:
        event = in_evaluation(event)
    modelled = model_device(snapshot, one.state, one.replay)
    return FailedAllocation(event, first_changes(replayed, one, modelled, in_evaluation=event.in_evaluation))


def with_recorded_kinds(
    snapshot: Snapshot, cycle: CycleFindings, held: Mapping[int, str]
) -> tuple[Snapshot, dict[int, str]]:
    """Say of each block that is in both what it is.

    Args:
        snapshot: Dumped at the end of the cycle, or at the failure that ended it.

    Returns:
        The snapshot, whose entries have the kinds as categories; and `held`, with what the recording knows of blocks
        from before the history.
    """
    joined = join_history(snapshot, cycle.peak.device, cycle.lifetimes)
    if joined is None:
        return snapshot, dict(held)
    old = _kinds_by_address(cycle, joined)
    trace, first = joined.state.trace, len(snapshot.texts)
    category = trace.category.copy() if len(trace.category) else np.full(len(trace), -1, np.int32)
    rows = np.flatnonzero(_is_said(cycle) & (joined.entry >= 0))
    category[joined.entry[rows]] = (first + cycle.blocks.kind[rows]).astype(np.int32)
    lives = joined.replay.lives
    for entry in lives.alloc_entry[(lives.end == len(trace)) & (lives.alloc_entry >= 0)].tolist():
        if category[entry] < 0 and (kind := old.get(int(trace.addr[entry]))) is not None:
            category[entry] = first + kind
    state = replace(joined.state, trace=replace(trace, category=category))
    devices = tuple(state if device.device == state.device else device for device in snapshot.devices)
    texts = (*snapshot.texts, *(kind.name.lower() for kind in Kind))
    words = {place: kind.words for place, kind in old.items()}
    return replace(snapshot, devices=devices, texts=texts), {**words, **held}


def _is_said(cycle: CycleFindings) -> PerBlock[Bool]:
    """[B] whether the recording says what a block is."""
    return ~np.isin(cycle.blocks.kind, np.array(_UNSAID, np.int64))


def _kinds_by_address(cycle: CycleFindings, joined: JoinedHistory) -> dict[int, Kind]:
    """What blocks are, by address, that the recording did not see being made and that were there at its end."""
    lifetimes = cycle.lifetimes
    alive = lifetimes.alive_at(len(lifetimes.events) - 1)
    old = alive[_is_said(cycle)[alive] & (joined.entry[alive] < 0) & (lifetimes.address[alive] >= 0)]
    pairs = zip(lifetimes.address[old].tolist(), cycle.blocks.kind[old].tolist(), strict=True)
    return {place: Kind(kind) for place, kind in pairs}
