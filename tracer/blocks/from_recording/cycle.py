"""A recorded cycle on one device: what was recorded, and its blocks, followed and classified once for all questions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracer.blocks.from_recording.allocator_join import JoinedHistory
from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.memory_timeline import CycleBreakdown, cycle_breakdown
from tracer.blocks.from_recording.step_phases import StepPhase, step_phases
from tracer.blocks.from_recording.torch_categories import Categories
from tracer.blocks.table import Blocks
from tracer.capture.recording import Recording


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
