"""What was reserved from the driver at each event of a recording, from the allocator's own history.

The history's entries and the recording's events are two lists of the same requests. Blocks that are in both say which
entry is which event; a segment that an entry between two of them reserved or gave back is there, or no longer there,
from the later one on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis.profiles.allocator_join import JoinedHistory, pairs_from_end
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.snapshots.address_space import AddressRanges, address_ranges
from tracer.arrays import Ints
from tracer.snapshot.actions import Action
from tracer.snapshot.replay import BEFORE


def reserved_ranges(history: JoinedHistory, lifetimes: BlockLifetimes) -> AddressRanges | None:
    """Follow the segments over the events of a recording; None if the history has none of these."""
    position, entry = _both(history, lifetimes)
    if not len(position):
        return None
    ranges = address_ranges(history.state)
    at = np.append(position, len(lifetimes.events))
    made_at = at[np.searchsorted(entry, ranges.begin, side="left")]
    return replace(
        ranges,
        begin=np.where(ranges.begin < entry[0], BEFORE, made_at),
        end=at[np.searchsorted(entry, ranges.end, side="left")],
        known_from=int(position[0]),
    )


def _both(history: JoinedHistory, lifetimes: BlockLifetimes) -> tuple[Ints, Ints]:
    """Events that are entries too, in order, and the entries."""
    trace, num_events = history.state.trace, len(lifetimes.events)
    entry_of = np.full(num_events, -1, np.int64)
    joined = history.entry >= 0
    entry_of[lifetimes.made_at[joined]] = history.entry[joined]
    freed = np.flatnonzero((lifetimes.freed_at < num_events) & ~lifetimes.died_unseen)
    freed = freed[np.argsort(lifetimes.freed_at[freed], kind="stable")]
    frees = trace.where(Action.FREE_REQUESTED)
    at, row = pairs_from_end(trace.addr[frees], lifetimes.address[freed])
    entry_of[lifetimes.freed_at[freed[row]]] = frees[at]
    position = np.flatnonzero(entry_of >= 0)
    return position, np.maximum.accumulate(entry_of[position])
