"""Blocks that outlive the step after their own, and blocks that are freed in exchange, step by step.

A result or batch that a loop variable holds dies in the next step, when the variable is set anew, and gradients that
are cleared at the beginning of a step die there: neither survives.

Shapes: J judged steps, all of a cycle's whole steps but the last; S blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.classify_blocks import Cycle
from tracer.analysis.profiles.source_lines import PlaceInCode, place_of
from tracer.arrays import Ints, grouped

# Known objects of the training, of which there are as many in one step as in another.
_LASTING = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)


Site = tuple[Kind, PlaceInCode]  # The kind of blocks, and what made them


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """Blocks that survive judged steps, and older survivors that end there; parameters, buffers and state left out."""

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


def find_survivors(cycle: Cycle, *, is_whole: bool = True) -> Survivors:
    """Find what the steps of one cycle leave behind.

    A step's survivors are known at the end of the step after it, so the last one is not judged, and where the cycle
    was cut short, the one before neither: its last step let go of nothing yet.
    """
    attribution, lifetimes, blocks = cycle.attribution, cycle.lifetimes, cycle.blocks
    ends = _last_events(attribution, lifetimes)[: len(attribution.step_names) - (not is_whole)]
    num_judged = max(0, len(ends) - 1)
    before = lifetimes.made_at < 0
    made_in = np.where(before, -1, np.searchsorted(ends, lifetimes.made_at))
    freed = np.searchsorted(ends, lifetimes.freed_at)
    counts = ~lifetimes.made_unseen & ~np.isin(blocks.kind, _LASTING)
    survives = np.flatnonzero(counts & (made_in >= 0) & (made_in < num_judged) & (freed > made_in + 1))
    # Alive at the end of step f - 1, made before it, freed in step f: in exchange for what step f - 1 made.
    ended = np.flatnonzero(counts & (freed >= 1) & (freed <= num_judged) & (made_in < freed - 1))
    sites = grouped(
        [column[survives] for column in (blocks.kind, blocks.op, blocks.module, blocks.frame)],
        lambda kind, *rows: (Kind(kind), place_of(cycle.recording, attribution, *rows)),
    )
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
