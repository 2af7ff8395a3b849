"""Everything that a snapshot says about each of its devices: the findings behind `snapshot FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.answers.findings import DeviceFindings, Findings, ReplayedFindings, SnapshotFindings
from tracer.answers.out_of_memory import MAX_EXPLAINED, explain_ooms
from tracer.answers.peak import peak_of_device
from tracer.blocks.from_snapshot.blocks import ReplayedDevice, with_labelled_frees
from tracer.blocks.from_snapshot.counting import BlockFacts
from tracer.blocks.from_snapshot.kind_finder import NOTHING_HELD, HeldNow, KindFinder
from tracer.blocks.from_snapshot.sites import Sites
from tracer.blocks.kinds import Kind
from tracer.errors import SnapshotError
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.replay import Replay, replay
from tracer.units import format_bytes, some

# A peak of more than this many times the next one's is uneven.
_UNEVEN = 2
_MAX_NAMED = 7
_LEAST_RING = 1000
"""Entries: people ask for thousands."""
_STATES_AND_PARAMETERS = 2


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedSnapshot:
    """A snapshot with its devices replayed, for those who need more than the findings."""

    snapshot: Snapshot
    sites: Sites
    devices: tuple[ReplayedDevice, ...]


def replay_snapshot(
    snapshot: Snapshot,
    *,
    device: int | None = None,
    held: Mapping[int, Kind] | None = None,
    held_now: Mapping[int, HeldNow] | None = None,
) -> ReplayedSnapshot:
    """Replay the devices of a loaded snapshot.

    Args:
        held_now: By index of the device, what the program held when the snapshot was taken.

    Raises:
        SnapshotError: The snapshot has no such device, or its end state contradicts itself.
    """
    chosen = [state for state in snapshot.devices if device is None or state.device == device]
    if device is not None and not chosen:
        known = ", ".join(str(state.device) for state in snapshot.devices) or "none"
        raise SnapshotError(
            f"The snapshot has nothing of device {device}.", hint=f"Devices with memory or entries: {known}."
        )
    sites, facts, devices = Sites(snapshot.stacks), list[BlockFacts](), []
    for state in chosen:
        replayed = with_labelled_frees(replay(state, snapshot.settings), state, sites)
        now = (held_now or {}).get(state.device, NOTHING_HELD)
        finder = KindFinder(snapshot, state, replayed.lives, sites, held=held, held_now=now, devices=facts)
        devices.append(ReplayedDevice(snapshot, sites, state, replayed, finder))
    return ReplayedSnapshot(snapshot, sites, tuple(devices))


def explain_replayed(replayed: ReplayedSnapshot) -> SnapshotFindings:
    """Explain the devices of a replayed snapshot, in their order; those without memory and entries are left out."""
    parts = tuple(map(_explain_device, replayed.devices))
    empty = ("The snapshot is empty: no device has a segment or an entry.",) * (not replayed.snapshot.devices)
    notes = (*imbalance(parts), *empty, *replayed.snapshot.remarks)
    return Findings(parts, notes=notes, pinned_bytes=replayed.snapshot.pinned_bytes)


def _explain_device(device: ReplayedDevice) -> ReplayedFindings:
    return DeviceFindings(
        device,
        peak_of_device(device),
        failures=explain_ooms(device),
        notes=(*_device_notes(device), *_copies(device.kinds)),
    )


def imbalance(devices: Sequence[ReplayedFindings]) -> tuple[str, ...]:
    """A sentence if one device of the process uses far more memory than the others."""
    ranked = sorted(devices, key=lambda found: (-found.peak.peak_bytes, found.source.state.device))
    if len(ranked) < 2 or ranked[1].peak.peak_bytes * _UNEVEN >= ranked[0].peak.peak_bytes:
        return ()
    worst, *others = ranked
    named = sorted(others, key=lambda found: found.source.state.device)[:_MAX_NAMED]
    peaks = ", ".join(f"{format_bytes(found.peak.peak_bytes)} on {found.peak.device}" for found in named)
    more = f" and {len(others) - len(named)} more" if len(others) > len(named) else ""
    ran_out = ", and it ran out of memory" if worst.failures else ""
    return (
        f"The devices are used unevenly: {worst.peak.device} holds {format_bytes(worst.peak.peak_bytes)} at its "
        f"peak{ran_out}, beside {peaks}{more}.",
    )


def _copies(kinds: KindFinder) -> list[str]:
    """A sentence if blocks from before the recording look like parameters and optimizer state by number."""
    times, size = kinds.copies_per_gradient
    if times < _STATES_AND_PARAMETERS:
        return []
    return [
        f"Memory allocated before the recording includes {times} blocks for each gradient size, {format_bytes(size)}: "
        f"probably the parameters ({format_bytes(size // times)}) and the optimizer state "
        f"({format_bytes(size - size // times)})."
    ]


def _overlap(replayed: Replay, entry: int) -> tuple[int, int] | None:
    """Number and bytes of blocks in use after an entry that lie in memory of another one; None if none does."""
    lives = replayed.lives
    rows = lives.alive_after(entry)
    rows = rows[np.argsort(lives.addr[rows], kind="stable")]
    ends = np.maximum.accumulate(lives.addr[rows] + lives.requested_bytes[rows])
    inside = np.flatnonzero(lives.addr[rows][1:] < ends[:-1]) + 1
    return (len(inside), int(lives.requested_bytes[rows[inside]].sum())) if len(inside) else None


def _device_notes(device: ReplayedDevice) -> list[str]:
    state, replayed = device.state, device.replay
    odd, notes = replayed.oddities, list[str]()
    if not len(state.trace):
        notes.append("It has no history (no trace entries): what follows is the state when the snapshot was taken.")
    elif state.trace.time_us[0] < 0:
        notes.append("The entries have no times, but their order is exact.")
    # A full ring has a round number of entries, and begins with memory in use that they do not explain.
    is_round = len(state.trace) >= _LEAST_RING and len(state.trace) % _LEAST_RING == 0
    if is_round and replayed.requested_bytes[0]:
        notes.append(
            f"The history has exactly {len(state.trace):,} entries, probably its limit: earlier ones are lost. A "
            "larger max_entries of _record_memory_history keeps more."
        )
    if odd.has_no_allocs:
        notes.append("The recording has no allocations: everything counts as memory from before it.")
    if odd.frees_by_request:
        notes.append("The recording does not say when a free was completed: it counts from when it was requested.")
    if odd.num_missing_frees:
        size = format_bytes(odd.missing_free_bytes)
        noun = some(odd.num_missing_frees, "allocation")
        notes.append(f"{noun} ({size}) without a recorded end: left out of every sum.")
    if odd.num_missing_allocs:
        blocks = some(odd.num_missing_allocs, "block")
        notes.append(f"{blocks} without a recorded allocation: taken to be in use since the address was last freed.")
    if odd.num_size_mismatches:
        blocks = some(odd.num_size_mismatches, "block")
        notes.append(f"{blocks} with another size when freed than when allocated: the later one counts.")
    if overlap := _overlap(replayed, replayed.peak_entry):
        blocks = f"{overlap[0]:,} {'block lies' if overlap[0] == 1 else 'blocks lie'}"
        notes.append(
            f"The recording contradicts itself: at the peak {blocks} in memory of others "
            f"({format_bytes(overlap[1])}). Entries are missing, and the peak may be wrong."
        )
    if odd.num_unknown_actions:
        entries = some(odd.num_unknown_actions, "entry", "has/have")
        notes.append(f"{entries} an action that this version does not know, and are ignored.")
    if (num_ooms := len(state.trace.where(Action.OOM))) > MAX_EXPLAINED:
        notes.append(f"Of {num_ooms} out-of-memory events the first {MAX_EXPLAINED} are explained.")
    if device.snapshot.has_allocator and (replayed.reserved_bytes < replayed.requested_bytes).any():
        notes.append("At times less is reserved than in use: the recording lacks segment entries.")
    return notes
