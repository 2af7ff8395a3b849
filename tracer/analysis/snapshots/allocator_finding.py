"""What a replay by the model of the allocator says of a snapshot: settings, and in short why memory ran out or grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracer.allocator.settings import recorded_settings
from tracer.analysis.snapshots.findings import ReplayedSnapshot, SnapshotFinding, explain_replayed, replay_snapshot
from tracer.analysis.snapshots.first_changes import FirstChanges, first_changes, with_cause
from tracer.analysis.snapshots.modelled import Modelled, agreement, model_device
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.analysis.snapshots.reserved import Reserved, reserved_at_end, reserved_at_peak
from tracer.analysis.snapshots.what_if import WhatIf, what_if
from tracer.snapshot.columns import Snapshot

NO_HISTORY = "There is no history to be replayed, so neither settings nor another GPU can be tried on it."
NO_ALLOCATOR = (
    "The recording is of a run without torch's caching allocator, such as one on the CPU: neither its settings nor "
    "another GPU can be tried on it."
)


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorFinding:
    """Answers of the model about one device."""

    device: int  # Its index
    modelled: Modelled | None  # The replay at the recorded settings; None without a history
    # How far it agrees with the recording, in sentences; or that what was asked cannot be answered.
    agreement: tuple[str, ...]
    at_peak: Reserved | None  # Why so much was reserved when the most was; None if the model cannot say
    at_end: Reserved  # Why so much was reserved when the snapshot was taken
    what_if: WhatIf | None  # Other settings and devices, if any were asked about
    first: FirstChanges | None = None  # What to try first; None where nothing can be replayed


def explain_allocator(
    replayed: ReplayedSnapshot,
    *,
    settings: Sequence[str] = (),
    search_settings: bool = False,
    gpu_memory: int | None = None,
) -> tuple[AllocatorFinding, ...]:
    """Replay every device of a snapshot through the model."""
    has_questions = bool(settings) or search_settings or gpu_memory is not None
    unasked = (NO_HISTORY if replayed.snapshot.has_allocator else NO_ALLOCATOR,) if has_questions else ()
    findings = []
    for device in replayed.devices:
        modelled = model_device(device)
        can_replay = modelled is not None and modelled.history.num_allocations > 0
        own = modelled.settings if modelled is not None else recorded_settings(replayed.snapshot.settings)
        findings.append(
            AllocatorFinding(
                device=device.state.device,
                modelled=modelled,
                agreement=tuple(agreement(modelled)) if modelled is not None else unasked,
                at_peak=reserved_at_peak(modelled, replayed.sites) if modelled is not None else None,
                at_end=reserved_at_end(device, own),
                what_if=what_if(modelled, settings, search=search_settings, gpu_memory=gpu_memory)
                if modelled is not None and can_replay and has_questions
                else None,
                first=first_changes(replayed, device, modelled),
            )
        )
    return tuple(findings)


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
    """Explain the last failure, or else why so much was in use; None where nothing is known."""
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
