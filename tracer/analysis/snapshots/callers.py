"""Callers that tell apart the blocks of a line that much code goes through, such as a layer's forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer.analysis.snapshots.sites import Site, Sites


@dataclass(frozen=True, slots=True)
class CallerShare:
    """The blocks of a group that have one caller."""

    site: Site | None  # The caller's line; of blocks that have none, where others have one, None
    bytes: int  # What they were asked for, together
    count: int


def callers_of(stacks: Sequence[tuple[int, int, int]], sites: Sites) -> tuple[CallerShare, ...]:
    """Divide blocks of one line by the first frame above it in which their stacks differ; largest first.

    Returns:
        Shares that sum to the blocks; none where nothing differs.
    """
    if len(stacks) < 2:
        return ()
    of_stack = [sites.callers(stack) for stack, _, _ in stacks]
    depth = _first_difference(of_stack)
    if depth is None:
        return ()
    sums: dict[Site | None, tuple[int, int]] = {}
    for callers, (_, size, count) in zip(of_stack, stacks, strict=True):
        site = callers[depth] if depth < len(callers) else None
        total, number = sums.get(site, (0, 0))
        sums[site] = total + size, number + count
    shares = (CallerShare(site, size, count) for site, (size, count) in sums.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, str(share.site))))


def _first_difference(of_stack: Sequence[tuple[Site, ...]]) -> int | None:
    shortest, longest = min(map(len, of_stack)), max(map(len, of_stack))
    differing = (depth for depth in range(shortest) if len({callers[depth] for callers in of_stack}) > 1)
    return next(differing, shortest if shortest < longest else None)
