"""Why memory ran out, from the allocator's history, with what the recording of the failing step knows of its blocks.

The history alone has the moment of the failure; what each block is, the recording knows better than any stack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.profiles.held_now import held_at_failure, last_seen
from tracer.analysis.profiles.peak import PeakReport
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.first_changes import FirstChanges, first_changes, with_cause
from tracer.analysis.snapshots.modelled import model_device
from tracer.analysis.snapshots.oom import OutOfMemory, device_out_of_memory, in_evaluation, last_out_of_memory
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.objects.objects_at_failure import ObjectsAtFailure
from tracer.snapshot.columns import Snapshot


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that a device had no memory for."""

    event: OutOfMemory
    # What to try first, replayed on the recorded requests; None where they cannot be replayed.
    first: FirstChanges | None
    in_use: PeakReport | None  # All blocks of that moment, as of a peak; None where it was not recorded
    objects: ObjectsAtFailure | None = None

    def is_at(self, peak: PeakReport) -> bool:
        """Whether a peak was at that moment, so that its rows are what was in use then."""
        return self.in_use is peak


def failed_allocation(
    snapshot: Snapshot,
    findings: Findings | None,
    known: KnownStorages,
    objects: ObjectsAtFailure | None = None,
    *,
    device_type: str,
) -> FailedAllocation | None:
    """Explain the last allocation that a device had no memory for; None if no device ran out of memory.

    Args:
        device_type: Type of the devices in the history, such as `cuda`.

    Raises:
        SnapshotError: The snapshot contradicts itself.
    """
    index = device_out_of_memory(snapshot)
    if index is None:
        return None
    device = f"{device_type}:{index}"
    now = held_at_failure(known, device, findings)
    replayed = replay_snapshot(snapshot, device=index, held=last_seen(known, device), held_now={index: now})
    (one,) = replayed.devices
    event = last_out_of_memory(one)
    if objects is not None:
        event = in_evaluation(event) if objects.is_evaluating else event
        objects = replace(objects, is_evaluating=event.in_evaluation)
    modelled = model_device(one)
    first = first_changes(replayed, one, modelled, objects=objects)
    cycles = findings.cycles if findings is not None and findings.device == device else ()
    in_use = next((cycle.at_failure for cycle in cycles if cycle.at_failure is not None), None)
    return FailedAllocation(with_cause(event, first), first, in_use, objects)
