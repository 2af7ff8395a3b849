"""Two recordings' memory on one axis: the same step and phase of both lie at the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracer.arrays import Ints
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.timeline import Band, device_timeline


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Memory of one recording by kind, over its events."""

    position: Ints  # Of each row in the allocator's order, ascending [rows]
    levels: Mapping[str, Ints]  # Bytes in use from each row on, by kind [rows]
    stretches: tuple[Band, ...] = ()  # Steps and phases, in positions


@dataclass(frozen=True, slots=True, eq=False)
class AlignedCurves:
    """Two curves on one axis."""

    position: Ints  # [rows]
    levels: Mapping[str, tuple[Ints, Ints]]  # Bytes before and after, by kind [rows]
    stretches: tuple[Band, ...]  # Steps and phases that both have

    def totals(self) -> tuple[Ints, Ints]:
        """Bytes in use before and after [rows]."""
        zero = np.zeros(len(self.position), np.int64)
        old, new = (sum((sides[side] for sides in self.levels.values()), zero) for side in (0, 1))
        return old, new

    def growth_at(self, row: int) -> tuple[tuple[str, int], ...]:
        """Kinds with more bytes after than before at a row, the largest growth first."""
        grown = ((kind, int(new[row] - old[row])) for kind, (old, new) in self.levels.items())
        return tuple(sorted(((kind, more) for kind, more in grown if more > 0), key=lambda item: -item[1]))


def align(before: MemoryCurve, after: MemoryCurve) -> AlignedCurves:
    """Put two curves on one axis; where neither has steps or phases, beginning and end are the same places.

    Between two places that both have, the axis is as long as the longer side's stretch. Behind the last of them each
    side goes on as it is: more steps of one are not those of the other.
    """
    before, after = (replace(side, position=side.position - side.position[:1]) for side in (before, after))
    places = _places(before), _places(after)
    common = _in_order([(at, places[1][key], key) for key, at in places[0].items() if key in places[1]])
    ends = [int(side.position[-1]) + 1 if len(side.position) else 1 for side in (before, after)]
    anchors = np.array([(0, 0), *[(old, new) for old, new, _ in common], ends], np.int64).T
    axis = np.cumsum(np.append(0, np.diff(anchors, axis=1).max(axis=0)))
    own_ends = axis[-2] + np.diff(anchors, axis=1)[:, -1] if common else axis[[-1, -1]]
    rows = [
        np.interp(side.position, anchor, np.append(axis[:-1], end)).astype(np.int64)
        for side, anchor, end in zip((before, after), anchors, own_ends, strict=True)
    ]
    position = np.union1d(*rows)
    kinds = dict.fromkeys((*before.levels, *after.levels))
    levels = {
        kind: (_held(before.levels.get(kind), rows[0], position), _held(after.levels.get(kind), rows[1], position))
        for kind in kinds
    }
    at = {key: place for (_, _, key), place in zip(common, axis[1:-1].tolist(), strict=True)}
    stretches = tuple(
        replace(band, start=at[*name, 0], end=at[*name, 1])
        for band, name in zip(before.stretches, _names(before.stretches), strict=True)
        if (*name, 0) in at and (*name, 1) in at
    )
    return AlignedCurves(position, levels, stretches)


def curve_of_device(device: ReplayedDevice) -> MemoryCurve:
    """The curve of one device of a snapshot; its first row is the start of the recording."""
    timeline = device_timeline(device)
    position = np.arange(len(timeline.times), dtype=np.int64)
    levels = {kind.words: level for kind, level in timeline.levels.items()}
    return MemoryCurve(position, levels, positions_of(timeline.stretches, timeline.times, position))


Place = tuple[object, ...]


def _places(curve: MemoryCurve) -> dict[Place, int]:
    """The position at which each step and phase begins and ends."""
    return {
        (*name, edge): position
        for band, name in zip(curve.stretches, _names(curve.stretches), strict=True)
        for edge, position in ((0, band.start), (1, band.end))
    }


def _names(stretches: Sequence[Band]) -> list[Place]:
    """Each stretch by its kind, the number of optimizer steps before it, and its number among these; steps by name."""
    steps = np.sort(np.array([band.start for band in stretches if band.kind == "optimizer"], np.int64))
    counts: dict[Place, int] = {}
    names: list[Place] = []
    for band in stretches:
        turn = band.name if band.kind == "step" else int(np.searchsorted(steps, band.start, side="left"))
        number = counts[band.kind, turn] = counts.get((band.kind, turn), -1) + 1
        names.append((band.kind, turn, number))
    return names


def _in_order(places: Sequence[tuple[int, int, Place]]) -> list[tuple[int, int, Place]]:
    """Places by their position before; one that comes earlier after than the one before it is left out."""
    kept: list[tuple[int, int, Place]] = []
    for place in sorted(places, key=lambda place: place[:2]):
        if not kept or place[1] >= kept[-1][1]:
            kept.append(place)
    return kept


def _held(level: Ints | None, rows: Ints, position: Ints) -> Ints:
    """A level at each place of the axis: that of the side's last row up to there, 0 before its first."""
    if level is None or not len(level):
        return np.zeros(len(position), np.int64)
    row = np.searchsorted(rows, position, side="right") - 1
    return np.where(row >= 0, level[np.maximum(row, 0)], 0)


def positions_of(stretches: Sequence[Band], times: Ints, position: Ints) -> tuple[Band, ...]:
    """Stretches of time as stretches of positions.

    Args:
        times: Time of each row, ascending [rows].
        position: Position of each row [rows].
    """

    def at(time: int) -> int:
        return int(position[min(int(np.searchsorted(times, time)), len(position) - 1)]) - int(position[0])

    return tuple(replace(band, start=at(band.start), end=at(band.end)) for band in stretches) if len(position) else ()


def highest(level: Ints, position: Ints, band: Band) -> tuple[int, int]:
    """The row of the most bytes in a stretch, and its bytes."""
    first = int(np.searchsorted(position, band.start, side="right")) - 1
    last = max(int(np.searchsorted(position, band.end, side="left")), first + 1)
    row = max(first, 0) + int(np.argmax(level[max(first, 0) : last]))
    return row, int(level[row])
