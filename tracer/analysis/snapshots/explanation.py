"""Why memory ran out in a recording, or grew: the short answer, for those who want no table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracer.analysis.snapshots.findings import ReplayedSnapshot, SnapshotFinding, explain_replayed, replay_snapshot
from tracer.analysis.snapshots.first_changes import first_changes, with_cause
from tracer.analysis.snapshots.modelled import model_device
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.snapshot.columns import Snapshot

_NO_CAUSES: Final = ("too little", "not known")
"""Causes of a failure that do not blame the allocator."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decisive cause and its change."""

    sentences: str  # The cause and what to change first; of a failure without one, the allocator's sentence
    cause: str = ""  # Name of the cause; empty where none is known
    file: str = ""  # Of the line at which memory ran out; empty where it did not, or where none is known
    line: int = 0  # Its number; 0 likewise


def worst_failure(replayed: ReplayedSnapshot, finding: SnapshotFinding) -> OutOfMemory | None:
    """The last failure of the worst device with its decisive cause; None if no request failed there."""
    if finding.worst is None or not finding.devices[finding.worst].oom:
        return None
    device = replayed.devices[finding.worst]
    modelled = model_device(device)
    return with_cause(finding.devices[finding.worst].oom[-1], first_changes(replayed, device, modelled))


def explanation_of(snapshot: Snapshot) -> Explanation | None:
    """Explain the last failure, or else why so much was in use; None where nothing is known.

    Raises:
        SnapshotError: The recording contradicts itself.
    """
    replayed = replay_snapshot(snapshot)
    finding = explain_replayed(replayed)
    if (failure := worst_failure(replayed, finding)) is not None:
        cause = failure.decisive or ("" if failure.cause in _NO_CAUSES else failure.cause)
        return Explanation(failure.advice, cause, failure.site.file or "", failure.site.line or 0)
    if finding.worst is None:
        return None
    device = replayed.devices[finding.worst]
    first = first_changes(replayed, device, model_device(device))
    if first is None or (change := first.decisive) is None:
        return None
    return Explanation(f"{change.sentence} {change.order}.", change.cause)
