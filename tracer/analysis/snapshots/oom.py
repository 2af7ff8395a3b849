"""Why an allocation failed: what was asked for, what was there, and whether it lay in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.changed_requests import TriedRequests
from tracer.analysis.snapshots.fragmentation import fragmentation_after, usable_after
from tracer.analysis.snapshots.groups import SnapshotRow, group_rows
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.oom_cause import Cause, FailureFacts, advice_on, cause_of, fits_without_fragmentation
from tracer.analysis.snapshots.sites import NO_FRAMES, Site
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.block_sizes import SMALL_BYTES, round_size
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.stacks import NO_STACK
from tracer.units import format_bytes

# A program that catches the error may try again forever; its first failures say it all.
MAX_EXPLAINED = 50
_LEAST_KEPT_SHARE: Final = 0.2
"""Of what was in use: less is not why an evaluation fails."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A failed allocation."""

    entry: int  # Its position in the trace
    time_us: int  # Its time, or -1 where the recording has none
    asked_bytes: int  # What the allocator wanted to reserve or serve
    # What the driver said was free on the device, for all processes; None if not recorded.
    device_free_bytes: int | None
    requested_bytes: int  # Bytes in use at that moment, as asked for
    allocated_bytes: int  # Bytes in use, rounded
    reserved_bytes: int
    unallocated_bytes: int  # Reserved and not in use
    largest_free_bytes: int  # The largest piece of that within one segment
    # The part of the unallocated bytes that this request could use: of its stream, pool and size.
    usable_free_bytes: int
    usable_largest_free_bytes: int  # The largest piece of the usable free bytes
    pending_free_bytes: int  # Freed by the program there, and not to be used until another stream is done with it
    fits_without_fragmentation: bool  # What it could use and what the device had free would have sufficed in one piece
    site: Site
    stack: tuple[str, ...]
    groups: tuple[SnapshotRow, ...]  # What was in use, by line and kind; sums to `requested_bytes`
    cause: Cause  # Cause in a word or two
    advice: str  # The cause in a sentence, and what to do first
    allocators_advice: str = ""  # The same without what filled the memory, for where that is said
    decisive: str = ""  # Name of the cause that the advice begins with, see `causes`; empty where none is known
    in_evaluation: bool = False  # The model was in evaluation mode, and kept much for a backward pass all the same


def in_evaluation(event: OutOfMemory) -> OutOfMemory:
    """The same of a model in evaluation mode; what it keeps for backward is said first.

    Without gradients forward keeps nothing: a validation that fails so, or the teacher of a distillation, has no
    `torch.no_grad()` around it.
    """
    kept_bytes = sum(group.bytes for group in event.groups if group.kind == Kind.ACTIVATION)
    if kept_bytes < _LEAST_KEPT_SHARE * event.requested_bytes:
        return event
    sentence = (
        f"The model is in evaluation mode, and forward keeps {format_bytes(kept_bytes)} for a backward pass: call it "
        "under `with torch.no_grad():`, and keep loss.item() in place of a loss."
    )
    return replace(event, in_evaluation=True, advice=f"{sentence} {event.advice}")


def explain_ooms(device: ReplayedDevice) -> tuple[OutOfMemory, ...]:
    """Explain the out-of-memory events of one device, in order, the first `MAX_EXPLAINED` of them."""
    trials = TriedRequests(device)
    return tuple(
        _explain(device, entry, trials) for entry in device.state.trace.where(Action.OOM)[:MAX_EXPLAINED].tolist()
    )


def last_out_of_memory(device: ReplayedDevice) -> OutOfMemory:
    """Explain the last out-of-memory event of one device, which has one."""
    entry = int(device.state.trace.where(Action.OOM)[-1])
    return _explain(device, entry, TriedRequests(device))


def distinct_failures(events: Sequence[OutOfMemory]) -> tuple[OutOfMemory, ...]:
    """The first failure of each line, as a program that tries again has little to add; of the last one's, the last."""
    of_line: dict[Site, OutOfMemory] = {}
    for event in events:
        of_line.setdefault(event.site, event)
    if events:
        of_line[events[-1].site] = events[-1]
    return tuple(of_line.values())


def device_out_of_memory(snapshot: Snapshot) -> int | None:
    """The index of the device whose memory ran out last; None if no entry says so.

    The histories of devices have no common order but their times.
    """
    last = [
        (int(state.trace.time_us[entries[-1]]), state.device)
        for state in snapshot.devices
        if len(entries := state.trace.where(Action.OOM))
    ]
    return max(last)[1] if last else None


def _site_of_failure(device: ReplayedDevice, entry: int) -> Site:
    """The line that asked; of a thread of autograd's, which has no stack, the line that called backward last."""
    stacks, sites = device.state.trace.stack, device.sites
    site = sites.site(int(stacks[entry]))
    if site.frame != NO_FRAMES:
        return site
    for stack in stacks[:entry][stacks[:entry] != NO_STACK][::-1].tolist():
        if has(sites.facts[stack], Fact.BACKWARD_CALL):
            called = sites.site(stack)
            return Site("backward", called.file, called.line)
        if sites.labels[stack] < 0:  # which are of what autograd's thread made
            break
    return site


def _explain(device: ReplayedDevice, entry: int, trials: TriedRequests) -> OutOfMemory:
    state, replay, sites, settings = device.state, device.replay, device.sites, device.snapshot.settings
    trace = state.trace
    asked_bytes, device_free = int(trace.size[entry]), int(trace.addr[entry])
    stack = int(trace.stack[entry])
    failure = FailureFacts(
        asked_bytes=asked_bytes,
        device_free_bytes=device_free if device_free >= 0 else None,
        memory=fragmentation_after(state, replay, entry),
        usable=usable_after(state, replay, entry, is_small=round_size(asked_bytes) <= SMALL_BYTES),
        is_expandable=bool(settings.get("expandable_segments")) or bool(state.segments.is_expandable.any()),
        groups=group_rows(device, replay.lives.alive_after(entry)),
        splits_all=settings.get("max_split_size") == -1,
        serves=lambda trial: trials.serves(trial, entry),
    )
    return OutOfMemory(
        entry=entry,
        time_us=int(trace.time_us[entry]),
        asked_bytes=asked_bytes,
        device_free_bytes=failure.device_free_bytes,
        requested_bytes=int(replay.requested_bytes[entry + 1]),
        allocated_bytes=failure.memory.allocated_bytes,
        reserved_bytes=failure.memory.reserved_bytes,
        unallocated_bytes=failure.memory.free_bytes,
        largest_free_bytes=failure.memory.largest_free_bytes,
        usable_free_bytes=failure.usable.free_bytes,
        usable_largest_free_bytes=failure.usable.largest_free_bytes,
        pending_free_bytes=failure.usable.pending_bytes,
        fits_without_fragmentation=fits_without_fragmentation(failure),
        site=_site_of_failure(device, entry),
        stack=sites.readable(stack),
        groups=tuple(failure.groups),
        cause=cause_of(failure),
        advice=advice_on(failure),
        allocators_advice=advice_on(replace(failure, is_explained=True)),
    )
