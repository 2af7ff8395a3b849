"""Growth of a recorded run: the bytes that its steps leave in use, net of what ended, and the lines that make them.

The total decides: a full ring buffer keeps something new in every step and lets go of as much, which is no growth,
and a list that grows from two lines in turn grows although neither line keeps something in every step.

Other files ask other questions: `step_findings.py`, for a trend in the counters of thousands of steps; `why/growth.py`,
for the iterations that left what is in use when memory runs out, and the change; `outlived_groups` of
`from_snapshot/timeline.py`, for what is in use at the end of a watched run and older than its last whole step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracer.arrays import Ints, grouped
from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.cycle import Cycle
from tracer.blocks.from_recording.source_lines import line_of_frame
from tracer.blocks.kinds import Kind

# Known objects of the training, of which there are as many in one step as in another.
_LASTING = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)


class PlaceInCode(NamedTuple):
    """An operator, the module that called it and a line of the user's or a library's; None for what is not known."""

    op: str | None
    module: str | None
    file: str | None
    line: int | None


Site = tuple[Kind, PlaceInCode]  # The kind of blocks, and what made them


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """Blocks that survive judged steps, and older survivors that end there; parameters, buffers and state left out.

    A result that a loop variable holds dies in the next step, when the variable is set anew, and gradients that are
    cleared at the beginning of a step die there: neither survives. J judged steps, all whole steps but the last; S
    blocks.
    """

    num_judged: int  # J, 0 for a cycle of one step
    is_complete: bool  # Whether everything that was alive before the recording is known, so that its end is, too
    held_before_bytes: int  # Bytes from before the first step that are alive at its end
    step: Ints  # [survivors] Judged step that made the survivor, or in whose place an older one ended
    size_bytes: Ints  # [survivors] Negative of what ended
    site: Ints  # [survivors] Index in `sites`; -1 for what ended
    sites: tuple[Site, ...]

    def changes(self) -> tuple[Ints, Ints]:
        """Bytes and blocks by which the survivors become more in each judged step [judged steps]."""
        bytes_ = np.zeros(self.num_judged, np.int64)
        blocks = np.zeros(self.num_judged, np.int64)
        np.add.at(bytes_, self.step, self.size_bytes)
        np.add.at(blocks, self.step, np.sign(self.size_bytes))
        return bytes_, blocks


def find_survivors(cycle: Cycle) -> Survivors:
    """Find what the steps of one cycle leave behind.

    A step's survivors are known at the end of the step after it, so the last one is not judged, and where the cycle
    was cut short, the one before neither: its last step let go of nothing yet.
    """
    attribution, lifetimes, blocks = cycle.attribution, cycle.lifetimes, cycle.blocks
    ends = _last_events(attribution, lifetimes)[: len(attribution.step_names) - (not cycle.is_whole)]
    num_judged = max(0, len(ends) - 1)
    before = lifetimes.made_at < 0
    made_in = np.where(before, -1, np.searchsorted(ends, lifetimes.made_at))
    freed = np.searchsorted(ends, lifetimes.freed_at)
    counts = ~lifetimes.made_unseen & ~np.isin(blocks.kind, _LASTING)
    survives = np.flatnonzero(counts & (made_in >= 0) & (made_in < num_judged) & (freed > made_in + 1))
    # Alive at the end of step f - 1, made before it, freed in step f: in exchange for what step f - 1 made.
    ended = np.flatnonzero(counts & (freed >= 1) & (freed <= num_judged) & (made_in < freed - 1))

    def site(kind: int, operator: int, module: int, frame: int) -> Site:
        line = line_of_frame(cycle.recording, frame) or (None, None)
        return Kind(kind), PlaceInCode(blocks.value(operator), blocks.value(module), *line)

    sites = grouped([column[survives] for column in (blocks.kind, blocks.operator, blocks.module, blocks.frame)], site)
    return Survivors(
        num_judged=num_judged,
        is_complete=lifetimes.count.is_walked,
        held_before_bytes=int(lifetimes.size_bytes[before & (freed >= 1)].sum()) if num_judged else 0,
        step=np.concatenate([made_in[survives], freed[ended] - 1]),
        size_bytes=np.concatenate([lifetimes.size_bytes[survives], -lifetimes.size_bytes[ended]]),
        site=np.concatenate([sites.of_row, np.full(len(ended), -1, np.int64)]),
        sites=sites.keys,
    )


def _last_events(attribution: Attribution, lifetimes: BlockLifetimes) -> Ints:
    """[steps] position of the last event in each step, or before it in one without events."""
    last = np.full(len(attribution.step_names), -1, np.int64)
    step = attribution.allocation_step[lifetimes.events]
    inside = np.flatnonzero(step >= 0)
    np.maximum.at(last, step[inside], inside)
    return np.maximum.accumulate(last)


_ENOUGH_STEPS = 4  # From so many on it is no chance that each of them left something


@dataclass(frozen=True, slots=True)
class GrowingPlace:
    """Growth by blocks of one kind from one place."""

    kind: Kind
    place: PlaceInCode
    bytes_per_step: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Blocks that outlive the step after their own, more in every step or in every cycle."""

    bytes_per_step: int  # By which they become more: the mean over judged steps, which are all but each cycle's last
    # Which sites' blocks these are, largest first. What was let go of in exchange is taken off sites that made blocks
    # of the same size.
    places: tuple[GrowingPlace, ...]


def find_growth(cycles: Sequence[Survivors]) -> Growth | None:
    """Decide whether the memory of a run grows; None where it does not grow.

    It does if every judged step of every cycle, two at least, leaves more bytes and more blocks than there were; of
    fewer than four steps, if one site has a part in each, since two may each make what only they make. It also does if
    every cycle, two at least, leaves more, one site among what it leaves, and the next cycle begins with that still
    there: something is kept in every second step. Of what only the first step makes, none holds.
    """
    judged = [cycle for cycle in cycles if cycle.num_judged]
    if _grows_in_every_step([cycle for cycle in judged if cycle.num_judged > 1]):
        return _growth([cycle for cycle in judged if cycle.num_judged > 1])
    if _grows_in_every_cycle(judged):
        return _growth(judged)
    return None


def _grows_in_every_step(cycles: Sequence[Survivors]) -> bool:
    changes = [cycle.changes() for cycle in cycles]
    if not changes or not all((in_bytes > 0).all() and (in_blocks > 0).all() for in_bytes, in_blocks in changes):
        return False
    of_each = [
        {cycle.sites[site] for site in cycle.site[cycle.step == step].tolist() if site >= 0}
        for cycle in cycles
        for step in range(cycle.num_judged)
    ]
    return len(of_each) >= _ENOUGH_STEPS or bool(set.intersection(*of_each))


def _grows_in_every_cycle(cycles: Sequence[Survivors]) -> bool:
    if len(cycles) < 2 or not all(cycle.is_complete for cycle in cycles):
        return False
    nets = [tuple(int(change.sum()) for change in cycle.changes()) for cycle in cycles]
    stays = (
        after.held_before_bytes - before.held_before_bytes >= net_bytes
        for before, after, (net_bytes, _) in zip(cycles, cycles[1:], nets, strict=False)
    )
    of_each = [{cycle.sites[row] for row in set(cycle.site.tolist()) if row >= 0} for cycle in cycles]
    return all(min(net) > 0 for net in nets) and all(stays) and bool(set.intersection(*of_each))


def _growth(cycles: Sequence[Survivors]) -> Growth:
    num_judged = sum(cycle.num_judged for cycle in cycles)
    net = sum(int(cycle.changes()[0].sum()) for cycle in cycles)
    blocks: dict[Site, dict[int, int]] = defaultdict(lambda: defaultdict(int))  # blocks by site and size
    ended: dict[int, int] = defaultdict(int)  # blocks by size
    for cycle in cycles:
        for site, size in zip(cycle.site.tolist(), cycle.size_bytes.tolist(), strict=True):
            if site >= 0:
                blocks[cycle.sites[site]][size] += 1
            else:
                ended[-size] += 1
    _subtract_ended(blocks, ended)
    totals = {site: sum(size * count for size, count in sizes.items()) for site, sizes in blocks.items()}
    places = [GrowingPlace(*site, total // num_judged) for site, total in totals.items() if total]
    return Growth(net // num_judged, tuple(sorted(places, key=lambda place: -place.bytes_per_step)))


def _subtract_ended(blocks: dict[Site, dict[int, int]], ended: dict[int, int]) -> None:
    """Subtract replaced blocks: for each one that ended, a new one of its size, from the largest group first."""
    for size, count in ended.items():
        for sizes in sorted((sizes for sizes in blocks.values() if size in sizes), key=lambda sizes: -sizes[size]):
            num_freed = min(count, sizes[size])
            sizes[size] -= num_freed
            count -= num_freed
