"""Why memory ran out, from the allocator's history, with what the recording of the failing step knows of its blocks.

The history alone has the moment of the failure; what each block is, the recording knows better than any stack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tracer.answers.findings import RunFindings
from tracer.answers.out_of_memory import (
    OutOfMemory,
    beside_others,
    device_out_of_memory,
    in_evaluation,
    last_out_of_memory,
)
from tracer.answers.peak import Peak
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.why.case import Case
from tracer.answers.why.first_changes import FirstChanges, first_changes, with_cause
from tracer.arrays import Rows
from tracer.blocks.from_recording.block_facts import KIND_OF_ROLE
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.kind_finder import NOTHING_HELD, HeldNow
from tracer.blocks.kinds import Kind
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.snapshot.columns import Snapshot


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that a device had no memory for."""

    event: OutOfMemory
    # What to try first, replayed on the recorded requests; None where they cannot be replayed.
    first: FirstChanges | None
    in_use: Peak | None  # All blocks of that moment, as of a peak; None where it was not recorded
    objects: ObjectsAtFailure | None = None

    @property
    def need(self) -> tuple[str, ...]:
        """Sentences on how much memory the program needs, where it ran a second time."""
        second = self.objects.second_run if self.objects is not None else None
        return second.need if second is not None else ()

    def is_at(self, peak: Peak) -> bool:
        """True if a peak was at that moment, so that its rows were in use then."""
        return self.in_use is peak


def failed_allocation(
    snapshot: Snapshot,
    findings: RunFindings | None,
    known: KnownStorages,
    objects: ObjectsAtFailure | None = None,
    *,
    device_type: str,
    device_bytes: int | None = None,
) -> FailedAllocation | None:
    """Explain the last allocation that a device had no memory for; None if no device ran out of memory."""
    index = device_out_of_memory(snapshot)
    if index is None:
        return None
    device = f"{device_type}:{index}"
    now = held_at_failure(known, device, findings)
    if objects is not None:  # as of a model that is being made
        now = replace(now, named={**dict.fromkeys(objects.parameters, Kind.PARAMETER), **now.named})
    (one,) = replay_snapshot(snapshot, device=index, held=last_seen(known, device), held_now={index: now}).devices
    event, first, objects = explain_failure(one, objects, device_bytes=device_bytes)
    cycles = findings.parts if findings is not None and findings.device == device else ()
    in_use = next((cycle.at_failure for cycle in cycles if cycle.at_failure is not None), None)
    return FailedAllocation(event, first, in_use, objects)


def explain_failure(
    device: ReplayedDevice, objects: ObjectsAtFailure | None, *, device_bytes: int | None, grows: bool = False
) -> tuple[OutOfMemory, FirstChanges | None, ObjectsAtFailure | None]:
    """Explain the last failure of a device; its objects count as evaluating only if the evaluation holds much.

    Args:
        grows: Whether the steps that were counted show that memory grows.
    """
    second = objects.second_run if objects is not None else None
    grows |= second is not None and second.grows
    event = last_out_of_memory(device, missing_bytes=second.missing_bytes if second is not None else 0, grows=grows)
    if objects is not None:
        case = Case(device, objects)
        is_idle = objects.is_evaluating and not case.reaches_backward
        event = in_evaluation(event, case.bytes(case.kept_for_backward)) if is_idle else event
        objects = replace(objects, is_evaluating=event.in_evaluation)
    first = first_changes(device, objects=objects, grows=grows)
    return beside_others(with_cause(event, first), device_bytes), first, objects


_KINDS: Final = {**KIND_OF_ROLE, Role.WORKSPACE: Kind.WORKSPACE, Role.BUCKET: Kind.COMMUNICATION}


def last_seen(known: KnownStorages, device: str | None = None) -> dict[int, Kind]:
    """The kind of the tensor that lay at each address when it was last observed.

    Args:
        device: Name; None is all, whose addresses differ under CUDA.
    """
    columns = zip(known.address.tolist(), known.role.tolist(), known.device.tolist(), strict=True)
    return {
        address: _KINDS[Role(role)]
        for address, role, at in columns
        if role in _KINDS and role != Role.WORKSPACE and device in (None, known.devices[at])
    }


def held_now(known: KnownStorages, device: str, rows: Rows | None = None) -> HeldNow:
    """Return the memory of a device that a walk found, by address.

    Args:
        known: Observations, of one look at all that Python can reach where `rows` is None.
    """
    named: dict[int, Kind] = {}
    saved: set[int] = set()
    reached: set[int] = set()
    unnamed = {Role.SAVED: saved, Role.HELD: reached, Role.LEAF: reached}
    at = known.devices.index(device) if device in known.devices else -1
    chosen = slice(None) if rows is None else rows
    columns = (known.address[chosen].tolist(), known.role[chosen].tolist(), known.device[chosen].tolist())
    for address, role, where in zip(*columns, strict=True):
        if where != at or role == Role.IDLE:
            continue
        if role in unnamed:
            unnamed[Role(role)].add(address)
        else:
            named.setdefault(address, _KINDS[Role(role)])
    return HeldNow(named, frozenset(saved), frozenset(reached))


def held_at_failure(known: KnownStorages, device: str, findings: RunFindings | None) -> HeldNow:
    """Memory that the program held when a step that was not recorded failed; nothing where nobody looked then."""
    if not len(known.walks_ns):
        return NOTHING_HELD
    walk_ns = known.walks_ns[-1]
    if findings is not None and walk_ns <= findings.parts[-1].source.recording.allocations.time_ns.max(initial=0):
        return NOTHING_HELD
    return held_now(known, device, (known.time_ns == walk_ns).nonzero()[0])
