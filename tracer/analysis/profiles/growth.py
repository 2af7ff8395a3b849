"""Whether memory grows from step to step although it should not, by how much, and which lines make what stays.

The total decides: a full ring buffer keeps something new in every step and lets go of as much, which is no growth,
and a list that grows from two lines in turn grows although neither line keeps something in every step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.profiles.survivors import Site, Survivors

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
    _take_off(blocks, ended)
    totals = {site: sum(size * count for size, count in sizes.items()) for site, sizes in blocks.items()}
    places = [GrowingPlace(*site, total // num_judged) for site, total in totals.items() if total]
    return Growth(net // num_judged, tuple(sorted(places, key=lambda place: -place.bytes_per_step)))


def _take_off(blocks: dict[Site, dict[int, int]], ended: dict[int, int]) -> None:
    """Subtract replaced blocks: for each one that ended, a new one of its size, from the largest group first."""
    for size, count in ended.items():
        for sizes in sorted((sizes for sizes in blocks.values() if size in sizes), key=lambda sizes: -sizes[size]):
            num_freed = min(count, sizes[size])
            sizes[size] -= num_freed
            count -= num_freed
