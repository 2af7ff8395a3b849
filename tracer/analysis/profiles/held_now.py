"""What a program holds at the moment of a snapshot, by the address of the memory, from a look at its objects."""

from __future__ import annotations

from typing import Final

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.block_facts import KIND_OF_ROLE
from tracer.analysis.profiles.findings import Findings
from tracer.analysis.snapshots.kind_finder import NOTHING_HELD, HeldNow
from tracer.arrays import Rows
from tracer.capture.objects.known_storages import KnownStorages, Role

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
    """What a walk says of the memory of a device, by address.

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


def held_at_failure(known: KnownStorages, device: str, findings: Findings | None) -> HeldNow:
    """Memory that the program held when a step that was not recorded failed; nothing where nobody looked then."""
    if not len(known.walks_ns):
        return NOTHING_HELD
    walk_ns = known.walks_ns[-1]
    if findings is not None and walk_ns <= findings.cycles[-1].recording.allocations.time_ns.max(initial=0):
        return NOTHING_HELD
    return held_now(known, device, (known.time_ns == walk_ns).nonzero()[0])
