"""A recorded cycle on one device: what was recorded, and its blocks, followed and classified once for all questions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.memory_timeline import CycleBreakdown, cycle_breakdown
from tracer.blocks.from_recording.torch_categories import Categories
from tracer.blocks.table import Blocks, Phase
from tracer.capture.recording import Recording

if TYPE_CHECKING:
    from tracer.blocks.from_recording.allocator_join import JoinedHistory

_SHOWN = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """Time and peak of one phase of one step."""

    step: str
    phase: str  # forward, backward or optimizer
    # Start of the first and end of the last operator of each stretch without another phase in between: one, or as many
    # as there are micro-batches, or evaluations by the optimizer.
    stretches_ns: tuple[tuple[int, int], ...]
    peak_bytes: int  # The most bytes in use during it, what is in use when it begins among them

    @property
    def start_ns(self) -> int:
        """Start of its first operator."""
        return self.stretches_ns[0][0]

    @property
    def end_ns(self) -> int:
        """End of its last operator."""
        return self.stretches_ns[-1][1]

    @property
    def duration_ns(self) -> int:
        """Time of all stretches, on the host."""
        return sum(end - start for start, end in self.stretches_ns)


def step_phases(recording: Recording, attribution: Attribution, lifetimes: BlockLifetimes) -> tuple[StepPhase, ...]:
    """Lay out the phases of every step: in each, that which ends first comes first."""
    event_step = attribution.allocation_step[lifetimes.events]
    event_phase = attribution.allocation_phase[lifetimes.events]
    stretches = _stretches(recording, attribution)
    phases = []
    for step, name in enumerate(attribution.step_names):
        for phase in _SHOWN:
            spans = stretches.get((step, phase))
            if spans is None:
                continue
            level = lifetimes.allocator_bytes[(event_step == step) & (event_phase == phase)]
            peak_bytes = int(np.max(level, initial=_in_use_at(spans[0][0], recording, lifetimes)))
            phases.append((step, StepPhase(name, phase.name.lower(), tuple(spans), peak_bytes)))
    return tuple(phase for _, phase in sorted(phases, key=lambda pair: (pair[0], pair[1].end_ns)))


def _in_use_at(time_ns: int, recording: Recording, lifetimes: BlockLifetimes) -> int:
    times_ns = np.maximum.accumulate(recording.allocations.time_ns[lifetimes.events])
    position = int(np.searchsorted(times_ns, time_ns, side="right")) - 1
    if position >= 0:
        return int(lifetimes.allocator_bytes[position])
    return int(lifetimes.size_bytes[lifetimes.alive_at(-1)].sum())


def _stretches(recording: Recording, attribution: Attribution) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end of each run of operators of one phase, by step and phase; what is in no phase ends none."""
    ops = recording.ops
    rows = np.flatnonzero((attribution.op_step >= 0) & (attribution.op_phase != Phase.OTHER))
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    step, phase = attribution.op_step[rows], attribution.op_phase[rows]
    begins = np.ones(len(rows), bool)
    begins[1:] = (step[1:] != step[:-1]) | (phase[1:] != phase[:-1])
    first = np.flatnonzero(begins)
    if not len(first):
        return {}
    end_ns = np.maximum.reduceat(ops.end_ns[rows], first)
    stretches: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for begin, end in zip(first.tolist(), end_ns.tolist(), strict=True):
        stretches.setdefault((int(step[begin]), int(phase[begin])), []).append((int(ops.start_ns[rows[begin]]), end))
    return stretches


@dataclass(frozen=True, eq=False)
class Cycle:
    """A recorded cycle on one device."""

    recording: Recording
    categories: Categories
    attribution: Attribution
    lifetimes: BlockLifetimes
    blocks: Blocks  # All of `lifetimes`, row by row
    is_whole: bool = True  # False if the end of the run, or a failure, cut it short
    history: JoinedHistory | None = None  # The allocator's own, joined with the blocks; None without one of this cycle

    @property
    def num_events(self) -> int:
        """Number of allocator events on the device."""
        return len(self.lifetimes.events)

    @cached_property
    def breakdown(self) -> CycleBreakdown:
        """The peak by torch's categories."""
        return cycle_breakdown(self.recording, self.categories, self.lifetimes)

    @cached_property
    def step_phases(self) -> tuple[StepPhase, ...]:
        """The phases of every step."""
        return step_phases(self.recording, self.attribution, self.lifetimes)
