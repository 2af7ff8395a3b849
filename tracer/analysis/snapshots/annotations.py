"""Which named region of the program was open at an entry, by time: nothing else joins annotations with entries."""

from __future__ import annotations

import numpy as np

from tracer.arrays import Ints
from tracer.snapshot.columns import Annotations, DeviceState, Int32s

OUTSIDE = -1


def innermost_region(state: DeviceState, entries: Ints) -> Int32s:
    """The innermost region that was open at each entry, as numbers of texts; -1 where none was.

    An entry in the microsecond of a start counts as inside, one in that of an end as outside. Ends without a start are
    ignored; a start without an end stays open.

    Args:
        state: One device.
        entries: Indices of entries, or -1 for none [rows].
    """
    none = np.full(len(entries), OUTSIDE, dtype=np.int32)
    notes = state.annotations
    if not len(notes) or not len(state.trace):
        return none
    order = np.argsort(notes.time_us, kind="stable")
    open_after = np.array([OUTSIDE, *_open_regions(notes, order.tolist())], dtype=np.int32)
    time_us = state.trace.time_us[np.maximum(entries, 0)]
    region = open_after[np.searchsorted(notes.time_us[order], time_us, side="right")]
    return np.where((entries >= 0) & (time_us >= 0), region, none)


def _open_regions(notes: Annotations, order: list[int]) -> list[int]:
    """The innermost open region after each annotation, in the given order."""
    opened: list[int] = []
    count: dict[int, int] = {}
    after = []
    names, starts = notes.name.tolist(), notes.is_start.tolist()
    for index in order:
        name = names[index]
        if starts[index]:
            opened.append(name)
            count[name] = count.get(name, 0) + 1
        elif count.get(name, 0):
            count[name] -= 1
            _close(opened, name)
        after.append(opened[-1] if opened else OUTSIDE)
    return after


def _close(opened: list[int], name: int) -> None:
    """Remove the last region of a name; regions of several threads need not nest."""
    for position in range(len(opened) - 1, -1, -1):
        if opened[position] == name:
            del opened[position]
            return
