"""Why an allocation failed: what was asked for, what was there, and whether it lay in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracer.analysis.snapshots.classify_blocks import NOT_KNOWN, KindFinder
from tracer.analysis.snapshots.fragmentation import Fragmentation, fragmentation_after
from tracer.analysis.snapshots.groups import Group, group_rows
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES, Site, Sites
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import Replay, replay
from tracer.units import MIB, format_bytes

# A program that catches the error may try again forever; its first failures say it all.
MAX_EXPLAINED = 50
_NUM_LINES = 3
_LASTING = "which no smaller batch shrinks: shard it (FSDP), or keep it in fewer bits."
_REMEDIES = {
    "activation": "activation: a smaller batch, torch.utils.checkpoint or bfloat16 shrinks it.",
    "parameter": f"parameters, {_LASTING}",
    "optimizer state": f"optimizer state, {_LASTING}",
    "gradient": "gradients: free them with zero_grad(set_to_none=True) before the next forward, or shard them (FSDP).",
    BEFORE_RECORDING: "from before the recording: record from the start of the program to see what it is.",
}


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One failed allocation.

    Attributes:
        entry: Its position in the trace.
        time_us: Its time, or -1 where the recording has none.
        asked_bytes: What the allocator wanted to reserve or serve.
        device_free_bytes: What the driver said was free on the device, for all processes.
        requested_bytes: In use at that moment, as asked for.
        allocated_bytes: In use, rounded.
        reserved_bytes: Reserved from the driver.
        unallocated_bytes: Reserved and not in use.
        largest_free_bytes: The largest piece of that within one segment.
        fits_without_fragmentation: What was reserved but unallocated and what the device had free would have sufficed.
        site: The line that asked.
        stack: Its stack for people.
        groups: What was in use, by line and kind; sums to `requested_bytes`.
        advice: The cause, and what to do first.
    """

    entry: int
    time_us: int
    asked_bytes: int
    device_free_bytes: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    unallocated_bytes: int
    largest_free_bytes: int
    fits_without_fragmentation: bool
    site: Site
    stack: tuple[str, ...]
    groups: tuple[Group, ...]
    advice: str


def explain_ooms(
    snapshot: Snapshot, state: DeviceState, replay: Replay, *, kinds: KindFinder, sites: Sites
) -> tuple[OutOfMemory, ...]:
    """Explain the out-of-memory events of one device, in order, the first `MAX_EXPLAINED` of them."""
    entries = state.trace.where(Action.OOM)[:MAX_EXPLAINED].tolist()
    return tuple(_explain(entry, snapshot, state, replay, kinds, sites) for entry in entries)


def last_failed_allocation(
    snapshot: Snapshot, device: int, *, held: Mapping[int, str] | None = None
) -> OutOfMemory | None:
    """Explain the last out-of-memory event of one device.

    Args:
        snapshot: With the device's history.
        device: Its index.
        held: Kinds by address of what the program held when the history began.

    Returns:
        None if there was no such event.

    Raises:
        SnapshotError: The snapshot contradicts itself.
    """
    state = next((state for state in snapshot.devices if state.device == device), None)
    if state is None or not len(entries := state.trace.where(Action.OOM)):
        return None
    sites = Sites(snapshot.stacks)
    kinds = KindFinder(snapshot, state, sites, held=held)
    return _explain(int(entries[-1]), snapshot, state, replay(state, snapshot.settings), kinds, sites)


def _explain(
    entry: int, snapshot: Snapshot, state: DeviceState, replay: Replay, kinds: KindFinder, sites: Sites
) -> OutOfMemory:
    trace, lives = state.trace, replay.lives
    memory = fragmentation_after(state, replay, entry)
    asked, device_free = int(trace.size[entry]), int(trace.addr[entry])
    groups = group_rows(lives, lives.alive_after(entry), kinds=kinds, sites=sites)
    stack = int(trace.stack[entry])
    is_expandable = bool(snapshot.settings.get("expandable_segments")) or bool(state.segments.is_expandable.any())
    return OutOfMemory(
        entry=entry,
        time_us=int(trace.time_us[entry]),
        asked_bytes=asked,
        device_free_bytes=device_free,
        requested_bytes=int(replay.requested_bytes[entry + 1]),
        allocated_bytes=memory.allocated_bytes,
        reserved_bytes=memory.reserved_bytes,
        unallocated_bytes=memory.free_bytes,
        largest_free_bytes=memory.largest_free_bytes,
        fits_without_fragmentation=memory.free_bytes + device_free >= asked,
        site=sites.site(stack),
        stack=sites.readable(stack),
        groups=groups,
        advice=_advice(asked, device_free, memory, is_expandable=is_expandable, groups=groups),
    )


def segment_bytes(asked: int) -> int:
    """What the allocator reserves from the driver for a request that no free block can serve.

    Source:
        `get_allocation_size` in `c10/cuda/CUDACachingAllocator.cpp`.
    """
    if asked <= MIB:
        return 2 * MIB
    if asked < 10 * MIB:
        return 20 * MIB
    return -(-asked // (2 * MIB)) * 2 * MIB


def _advice(
    asked: int, device_free: int, memory: Fragmentation, *, is_expandable: bool, groups: tuple[Group, ...]
) -> str:
    """What to do first; the causes in the order in which they rule each other out."""
    if device_free >= segment_bytes(asked):
        return (
            "The device had enough free memory, so a limit of this process stopped it: look for "
            "torch.cuda.set_per_process_memory_fraction, or memory that another process took and gave back."
        )
    missing = asked - memory.free_bytes - device_free
    if missing > 0:
        return (
            f"Fragmentation is not the cause: with all free memory in one piece, {format_bytes(missing)} would still "
            f"be missing. {_where_to_look(groups)}"
        )
    if memory.largest_free_bytes >= asked:
        return (
            f"A free block of {format_bytes(memory.largest_free_bytes)} is large enough, but belongs to another stream "
            "or pool (CUDA graphs have their own), which this request may not use: allocate and free on one stream, or "
            "call torch.cuda.empty_cache() between the two."
        )
    if not is_expandable:
        return (
            "It would have fit if the free memory were in one piece: "
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    return (
        "It would have fit if the free memory were in one piece, although segments are expandable: look for memory "
        "of other streams or private pools (CUDA graphs), which this request may not use."
    )


def _where_to_look(groups: tuple[Group, ...]) -> str:
    """The lines that hold most, and what shrinks the kind that holds most."""
    if not groups:
        return "Nothing else was in use: the request alone is too large."
    named = [group for group in groups if group.site.frame not in (BEFORE_RECORDING, NO_FRAMES)]
    lines = "; ".join(f"{_place(group)} with {format_bytes(group.bytes)}" for group in named[:_NUM_LINES])
    sums: dict[str, int] = {}
    for group in groups:
        is_unseen = group.is_before_recording and group.kind == NOT_KNOWN
        kind = BEFORE_RECORDING if is_unseen else group.kind
        sums[kind] = sums.get(kind, 0) + group.bytes
    kind, most = max(sums.items(), key=lambda item: item[1])
    remedy = _REMEDIES.get(kind)
    parts = [
        f"Look first at {lines}." if lines else "",
        f"{100 * most / sum(sums.values()):.0f} % of what was in use is {remedy}" if remedy and most else "",
    ]
    return " ".join(part for part in parts if part)


def _place(group: Group) -> str:
    if group.site.file is None:
        return group.site.frame
    return f"{group.site.frame} ({group.site.file}:{group.site.line})"
