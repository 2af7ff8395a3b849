"""Which ranks of a job can differ, by the process groups that one of them is in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def ranks_that_differ(groups: Iterable[Sequence[int]], world_size: int, *, first: int = 0) -> list[int]:
    """Along each dimension of the device mesh the first rank, one between and the last; and the farthest of all.

    A dimension of the mesh is a process group of the first rank: along it a rank may have another stage of a pipeline,
    or the remainder of a tensor that does not divide. What lies off these lines has the coordinates of several of them;
    the farthest rank is last on all.

    Returns:
        In ascending order; the first alone where it is in no group with others.
    """
    lines = {tuple(sorted(group)) for group in groups if len(group) > 1 and first in group}
    # A group that others are made of, such as the whole world beside rows and columns of a mesh, is no line of its own.
    lines = {line for line in lines if not any(_is_across(line, other, lines) for other in lines)}
    ranks = {first}
    for line in lines:
        ranks |= {line[len(line) // 2], line[-1]}
    if lines:
        ranks.add(world_size - 1)
    return sorted(ranks)


def _is_across(line: tuple[int, ...], other: tuple[int, ...], lines: set[tuple[int, ...]]) -> bool:
    """Whether a line holds another and a third that have one rank in common, and is as large as their product."""
    inside = [part for part in lines if set(part) < set(line)]
    return other in inside and any(
        len(set(other) & set(third)) == 1 and len(other) * len(third) == len(line) for third in inside
    )
