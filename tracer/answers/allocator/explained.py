"""A snapshot explained with the allocator's model: findings with what the model says, and the cause of a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracer.answers.allocator.allocator_finding import explain_allocator
from tracer.answers.findings import SnapshotFindings
from tracer.answers.out_of_memory import OutOfMemory
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.answers.why.first_changes import first_changes, with_cause
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.snapshot.columns import Snapshot


def with_allocator(
    findings: SnapshotFindings,
    *,
    settings: Sequence[str] = (),
    gpu_memory: int | None = None,
    objects: Mapping[int, ObjectsAtFailure] | None = None,
) -> SnapshotFindings:
    """Replay every device of a snapshot through the model, and add what it says.

    That is the cause of the last failure, too, and the bytes allocated at the peak where the model knows them.

    Args:
        settings: Other settings to try, in the spelling of PYTORCH_CUDA_ALLOC_CONF.
        gpu_memory: Bytes that the allocator can have on the GPU asked about; None asks about none.
        objects: By index of a device, facts of the program's objects at its last failure, where they are known.

    Raises:
        SettingsError: torch would not start with some of the settings.
    """
    parts = []
    for part in findings.parts:
        known = (objects or {}).get(part.source.state.device)
        answer = explain_allocator(part.source, settings=settings, gpu_memory=gpu_memory, objects=known)
        failures, peak = part.failures, part.peak
        memory = peak.fragmentation
        size = answer.modelled.most_in_use_bytes if answer.modelled is not None else None
        if failures:
            failures = (*failures[:-1], with_cause(failures[-1], answer.first))
        if memory is not None and size is not None:
            memory = replace(memory, allocated_bytes=size, free_bytes=memory.reserved_bytes - size)
            peak = replace(peak, fragmentation=memory)
        parts.append(replace(part, allocator=answer, failures=failures, peak=peak))
    return replace(findings, parts=tuple(parts))


_NO_CAUSES: Final = ("too little", "not known")
"""Causes of a failure that do not blame the allocator."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decisive cause and its change."""

    sentences: str  # The cause and what to change first; of a failure without one, the allocator's sentence
    cause: str = ""  # Name of the cause; empty where none is known
    file: str = ""  # Of the line at which memory ran out; empty where it did not, or where none is known
    line: int = 0  # Its number; 0 likewise


def worst_failure(findings: SnapshotFindings) -> OutOfMemory | None:
    """The last failure of the worst device with its decisive cause; None if no request failed there."""
    if not findings.parts or not (failures := findings.worst.failures):
        return None
    return with_cause(failures[-1], first_changes(findings.worst.source))


def explanation_of(snapshot: Snapshot) -> Explanation | None:
    """Explain the last failure, or else why so much was in use; None where nothing is known."""
    findings = explain_replayed(replay_snapshot(snapshot))
    if (failure := worst_failure(findings)) is not None:
        cause = failure.decisive or ("" if failure.cause in _NO_CAUSES else failure.cause)
        return Explanation(failure.advice, cause, failure.site.file or "", failure.site.line or 0)
    if not findings.parts:
        return None
    first = first_changes(findings.worst.source)
    if first is None or (change := first.decisive) is None:
        return None
    return Explanation(f"{change.sentence} {change.order}.", change.cause)
