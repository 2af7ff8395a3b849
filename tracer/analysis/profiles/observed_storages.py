"""Which observations of live tensors concern one cycle, and which of its blocks each of them saw.

An address proves something only for the life of the storage that was seen at it. So a cycle's own looks count, from the
walk right before it to the look at its end: at an earlier or later one, others may have lain at the same addresses.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from tracer.arrays import Bools, Int, Ints, PerBlock, PerEvent, PerUnrecorded, Rows
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording
from tracer.capture.torch_names import STEP_PREFIX

_FOREVER = int(np.iinfo(np.int64).max)


def observations_of(recording: Recording, known: KnownStorages | None, device: int) -> Rows:
    """Rows of `KnownStorages` on a device of a recording, in any cycle."""
    rows = _rows_on(recording, known, device)
    return rows[known.role[rows] != Role.IDLE] if known is not None else rows


def is_idle(
    recording: Recording, known: KnownStorages | None, device: int, events: PerEvent[Int], address: Ints
) -> Bools:
    """Whether each address lay in memory that is not allocated when last looked at before the cycle.

    Tensors that CUDA graphs leave behind lie in unused memory of a private pool, others of the CPU in a mapped file;
    operators use both.
    """
    rows = _rows_on(recording, known, device)
    if known is None or not len(rows):
        return np.zeros(len(address), np.bool_)
    since, first = _since_ns(recording, known, device, events), _first_ns(recording, events)
    time_ns = known.time_ns[rows]
    pieces = rows[(known.role[rows] == Role.IDLE) & (time_ns >= since) & (time_ns <= first)]
    pieces = pieces[known.time_ns[pieces] == known.time_ns[pieces].max(initial=0)]
    order = np.argsort(known.address[pieces])
    begin = known.address[pieces][order]
    end = begin + known.size_bytes[pieces][order]
    place = np.searchsorted(begin, address, side="right") - 1
    inside = place >= 0
    inside[inside] = address[inside] < end[place[inside]]
    return inside


def _rows_on(recording: Recording, known: KnownStorages | None, device: int) -> Rows:
    name = recording.devices[device]
    if known is None or name not in known.devices:
        return np.empty(0, np.int64)
    return np.flatnonzero(known.device == known.devices.index(name))


def observations_in(recording: Recording, known: KnownStorages | None, device: int, events: PerEvent[Int]) -> Rows:
    """Rows of `KnownStorages` on a device from the last look before a recording to the first one after it.

    Whoever looks finds something on some device: a session has a model or an optimizer.
    """
    rows = observations_of(recording, known, device)
    if known is None or not len(rows):
        return rows
    until = int(known.time_ns[known.time_ns >= _last_ns(recording)].min(initial=_FOREVER))
    time_ns = known.time_ns[rows]
    return rows[(time_ns >= _since_ns(recording, known, device, events)) & (time_ns <= until)]


def observed_before(
    recording: Recording, known: KnownStorages | None, device: int, events: PerEvent[Int]
) -> dict[int, int]:
    """Address and size of all that was observed in the last walk before the first event, or after it until then.

    Without a walk, of what was observed last before the first event.
    """
    rows = rows_before(recording, known, device, events)
    if known is None:
        return {}
    return dict(zip(known.address[rows].tolist(), known.size_bytes[rows].tolist(), strict=True))


def rows_before(recording: Recording, known: KnownStorages | None, device: int, events: PerEvent[Int]) -> Rows:
    """Rows of `KnownStorages` observed before a cycle's first event."""
    rows = observations_in(recording, known, device, events)
    return rows[known.time_ns[rows] <= _first_ns(recording, events)] if known is not None else rows


def last_walk_ns(recording: Recording, known: KnownStorages | None, events: PerEvent[Int]) -> int | None:
    """Time of the last walk over all reachable objects before a device's first event; None without a walk."""
    if known is None or not len(walks := known.walks_ns[known.walks_ns <= _first_ns(recording, events)]):
        return None
    return int(walks.max())


def let_go_at(
    recording: Recording, known: KnownStorages | None, device: int, events: PerEvent[Int], address: PerUnrecorded[Int]
) -> PerUnrecorded[Int]:
    """[U] position of the first event after a storage that a walk had found was seen to go; past the last if none.

    Args:
        address: [U] Addresses of the storages whose allocation was not recorded.
    """
    end, name = len(events), recording.devices[device]
    position = np.full(len(address), end, np.int64)
    since = last_walk_ns(recording, known, events)
    if known is None or since is None or name not in known.devices or not end:
        return position
    times = recording.allocations.time_ns[events]
    mine = np.flatnonzero((known.ends_device == known.devices.index(name)) & (known.ends_ns >= since))
    first: dict[int, int] = {}
    for addr, time_ns in zip(known.ends_address[mine].tolist(), known.ends_ns[mine].tolist(), strict=True):
        first.setdefault(addr, time_ns)
    for row, addr in enumerate(address.tolist()):
        if addr in first:
            position[row] = np.searchsorted(times, first[addr], side="left")
    return position


def observed_blocks(
    recording: Recording,
    known: KnownStorages | None,
    device: int,
    events: PerEvent[Int],
    address: PerBlock[Int],
    made_at: PerBlock[Int],
    freed_at: PerBlock[Int],
) -> PerBlock[Int]:
    """[B] the strongest observation of each block: the one alive at the address when it was looked at.

    That a tensor is reachable from Python says that it is there, and not what it is.

    Args:
        address: [B] Where each block begins.
        made_at: [B] Position in `events` at which it was made; -1 before them.
        freed_at: [B] Position in `events` at which it was freed; their number if it never was.
    """
    observed = np.full(len(address), -1, np.int64)
    rows = observations_in(recording, known, device, events)
    if known is None or not len(rows := rows[~np.isin(known.role[rows], (Role.HELD, Role.BUCKET))]):
        return observed
    position = np.searchsorted(recording.allocations.time_ns[events], known.time_ns[rows], side="right") - 1
    wanted = set(known.address[rows].tolist())
    blocks: dict[int, list[int]] = {}
    for block, addr in enumerate(address.tolist()):
        if addr in wanted:
            blocks.setdefault(addr, []).append(block)
    role = known.role.tolist()
    begins, freed = made_at.tolist(), freed_at.tolist()
    for row, addr, now in zip(rows.tolist(), known.address[rows].tolist(), position.tolist(), strict=True):
        # Blocks of one address follow each other, so only the last one made by now can be alive.
        candidates = blocks.get(addr, [])
        at = bisect_right(candidates, now, key=begins.__getitem__) - 1
        if at >= 0 and now < freed[candidates[at]]:
            block = candidates[at]
            if observed[block] < 0 or role[row] < role[observed[block]]:
                observed[block] = row
    return observed


def _since_ns(recording: Recording, known: KnownStorages, device: int, events: PerEvent[Int]) -> int:
    """The last walk before the first event, or else the last look."""
    walk = last_walk_ns(recording, known, events)
    if walk is not None:
        return walk
    time_ns = known.time_ns[observations_of(recording, known, device)]
    return int(time_ns[time_ns <= _first_ns(recording, events)].max(initial=0))


def _first_ns(recording: Recording, events: PerEvent[Int]) -> int:
    return int(recording.allocations.time_ns[events[0]]) if len(events) else _FOREVER


def _last_ns(recording: Recording) -> int:
    """End of the recording's last step, or of its last event where no step ended."""
    ends = recording.spans.end_ns[recording.spans_named(STEP_PREFIX)]
    return max(int(recording.allocations.time_ns.max(initial=0)), int(ends.max(initial=0)))
