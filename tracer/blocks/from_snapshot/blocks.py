"""The table of the blocks of a snapshot's device: what each is, how that is known, and the line that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracer.allocator.fragmentation import Fragmentation, fragmentation_after
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.kind_finder import KindFinder
from tracer.blocks.from_snapshot.sites import Site, Sites
from tracer.blocks.table import BEFORE, NOT_KNOWN, Blocks
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import Replay
from tracer.snapshot.stacks import NO_STACK


@dataclass(frozen=True, eq=False)
class ReplayedDevice:
    """A device of a snapshot: its state, its replay and the kinds of its blocks."""

    snapshot: Snapshot
    sites: Sites  # The lines behind the snapshot's stacks
    state: DeviceState
    replay: Replay
    kinds: KindFinder

    @property
    def num_events(self) -> int:
        """Number of entries."""
        return len(self.state.trace)

    @property
    def first_time_us(self) -> int:
        """Time of the first entry, microseconds since 1970, or -1."""
        return int(self.state.trace.time_us[0]) if self.num_events else -1

    @cached_property
    def end_memory(self) -> Fragmentation | None:
        """Reserved memory at the end; None where no caching allocator served the requests."""
        if not self.snapshot.has_allocator:
            return None
        return fragmentation_after(self.state, self.replay, self.num_events - 1)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of `replay.lives`, row by row."""
        lives, rows = self.replay.lives, np.arange(len(self.replay.lives))
        kind, evidence = self.kinds.kinds_and_evidence
        forward = self.kinds.backward_lines.forward_stacks(rows)
        stack = lives.stack.astype(np.int64)
        # One key, since numpy sorts rows of several columns 20 times slower.
        pair, place = np.unique(stack * (len(self.sites.facts) + 1) + forward + 1, return_inverse=True)
        is_before = (lives.begin < 0) & (len(self.state.trace) > 0)
        return Blocks.of(
            len(rows),
            made_at=lives.begin,
            freed_at=lives.end,
            size_bytes=lives.requested_bytes,
            requested_bytes=lives.requested_bytes,
            allocated_bytes=lives.allocated_bytes,
            address=lives.addr,
            row=rows,
            kind=kind,
            evidence=evidence,
            phase=np.where(is_before, BEFORE, NOT_KNOWN),
            stack=stack,
            forward=forward,
            place=place.reshape(-1),
            values=_Places(self.sites, np.divmod(pair, len(self.sites.facts) + 1)),
            sites=self.sites,
        )


def with_labelled_frees(replay: Replay, state: DeviceState, sites: Sites) -> Replay:
    """Give a block from before the recording the stack that frees it, where that has our label on top."""
    lives, stacks = replay.lives, state.trace.stack
    rows = np.flatnonzero((lives.stack == NO_STACK) & (lives.free_entry >= 0))
    rows = rows[sites.labels[stacks[lives.free_entry[rows]]] >= 0]
    if not len(rows):
        return replay
    stack = lives.stack.copy()
    stack[rows] = stacks[lives.free_entry[rows]]
    return replace(replay, lives=replace(lives, stack=stack))


class _Places(Sequence[Site]):
    """The line to blame for each pair of a stack and that of its operation of forward, worked out when asked for."""

    def __init__(self, sites: Sites, pairs: tuple[Ints, Ints]) -> None:
        self._sites, (self._stack, self._forward) = sites, pairs

    def __len__(self) -> int:
        return len(self._stack)

    def __getitem__(self, number: int) -> Site:  # type: ignore[override]
        return self._sites.site_of_backward(int(self._stack[number]), int(self._forward[number]) - 1)
