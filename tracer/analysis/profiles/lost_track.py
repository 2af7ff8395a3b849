"""Why torch lost track: the operator where its categories stopped, and how many bytes of the peak followed from it.

torch calls a result an activation only if every input has a category. A tensor that is made from nothing (`zeros`,
`arange`, `randn`) has none; written into and used, it takes the category from everything behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks, Cycle
from tracer.analysis.profiles.source_lines import PlaceInCode, place_of
from tracer.analysis.profiles.torch_categories import Categories, Category
from tracer.arrays import Int, PerKey, at, grouped
from tracer.capture.recording import Recording

_NOT_KNOWN = (Kind.UNKNOWN, Kind.BEFORE_RECORDING)


@dataclass(frozen=True, slots=True)
class LostTrack:
    """A line at which torch's categories stopped."""

    place: PlaceInCode  # What made the tensor without a category; no operator where it was there before
    bytes: int  # Bytes at the peak that have no category of torch's because of it
    count: int
    known_bytes: int  # The part of these bytes whose kind is known all the same


def find_lost_track(cycle: Cycle, blocks: ClassifiedBlocks) -> tuple[LostTrack, ...]:
    """Trace the peak's blocks without a category back to where the category was lost.

    Returns:
        Lines, largest first. Blocks that were never tensors have no data flow and are left out.
    """
    recording, attribution = cycle.recording, cycle.attribution
    origin = _origins(recording, cycle.categories)
    made_by = _allocation_of_key(recording)
    allocations = (recording.allocations.op, attribution.allocation_module, attribution.allocation_frame)
    untagged = np.flatnonzero((blocks.torch_category == Category.UNTAGGED) & (blocks.key >= 0))
    made = made_by[[origin.get(key, key) for key in blocks.key[untagged].tolist()]]
    places = grouped([at(column, made, -1) for column in allocations], partial(place_of, recording, attribution))
    size_bytes, is_known = blocks.size_bytes[untagged], ~np.isin(blocks.kind[untagged], _NOT_KNOWN)
    sums = zip(places.keys, places.sums(size_bytes), places.counts(), places.sums(size_bytes * is_known), strict=True)
    lost = [LostTrack(*row) for row in sums]
    return tuple(sorted(lost, key=lambda place: -place.bytes))


def _origins(recording: Recording, categories: Categories) -> dict[int, int]:
    """For each key written without a category, the key that it inherited this from, or itself.

    A tensor from nothing may have been given a wrong category, mostly PARAMETER, which stops activations just the same;
    so where every input has a category, an input that was made from nothing is to blame.
    """
    flow = categories.flow
    untagged = (categories.of_slot == Category.UNTAGGED).tolist()
    key_of = np.repeat(np.arange(len(recording.keys.id)), np.diff(flow.slot_offset)).tolist()
    from_nothing: set[int] = set()
    origin: dict[int, int] = {}
    nodes = zip(flow.inputs, flow.outputs, recording.flow.node_backward.tolist(), strict=True)
    for inputs, outputs, backward in nodes:
        if not inputs:
            from_nothing.update(key_of[slot] for slot in outputs)
        if backward:
            continue
        lost = (key_of[slot] for slot in inputs if untagged[slot])
        sources = (key_of[slot] for slot in inputs if key_of[slot] in from_nothing)
        source = next(lost, next(sources, -1))
        for slot in outputs:
            if untagged[slot]:
                key = key_of[slot]
                origin.setdefault(key, origin.get(source, source) if source >= 0 else key)
    return origin


def _allocation_of_key(recording: Recording) -> PerKey[Int]:
    allocations = recording.allocations
    allocation_of_key = np.full(len(recording.keys.id), -1, np.int64)
    rows = np.flatnonzero((allocations.key >= 0) & (allocations.size_bytes > 0))
    allocation_of_key[allocations.key[rows]] = rows
    return allocation_of_key
