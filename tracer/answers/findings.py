"""Findings about one device, in a cycle of a recording or in a snapshot, and about a whole run or file.

No torch is imported, so that reading a snapshot does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from tracer.answers.peak import Peak, size_of_peak
from tracer.answers.rows import Row, rows_of_lines
from tracer.blocks.table import Blocks
from tracer.capture.sources.compiled_code import NOTHING_COMPILED, CompiledCode

if TYPE_CHECKING:
    from tracer.answers.allocator.allocator_finding import AllocatorFinding
    from tracer.answers.growth import Growth
    from tracer.answers.operators.invocations import OpInstances
    from tracer.answers.operators.run_times import RunTimeRow
    from tracer.answers.out_of_memory import OutOfMemory
    from tracer.blocks.from_recording.cycle import Cycle
    from tracer.blocks.from_recording.memory_timeline import Breakdown
    from tracer.blocks.from_snapshot.blocks import ReplayedDevice

Source = TypeVar("Source", bound="Cycle | ReplayedDevice", covariant=True)


@dataclass(frozen=True, eq=False)
class DeviceFindings(Generic[Source]):
    """Findings about one device, in one cycle of a recording or in a snapshot."""

    source: Source  # What it was found in
    peak: Peak
    # Of a cycle: what was in use at the last failure in the allocator's history; None where nothing failed.
    at_failure: Peak | None = None
    # Of a snapshot:
    failures: tuple[OutOfMemory, ...] = ()  # Failed allocations, in order
    allocator: AllocatorFinding | None = None  # Answers of the allocator's model; None where it was not asked
    notes: tuple[str, ...] = ()  # What does not fit together or is not known, one sentence each

    @property
    def blocks(self) -> Blocks:
        """Blocks of the device."""
        return self.source.blocks

    @cached_property
    def never_freed(self) -> tuple[Row, ...]:
        """Rows of the blocks that were allocated in the recording and are in use at its end, by line and kind."""
        made_at, freed_at = self.blocks.made_at, self.blocks.freed_at
        return rows_of_lines(self.blocks.take((made_at >= 0) & (freed_at == self.source.num_events)))


@dataclass(frozen=True, slots=True)
class GraphPool:
    """A private pool in which CUDA graphs work."""

    num_graphs: int  # Graphs that share it and are alive
    reserved_bytes: int  # Reserved for it; nothing else may use it
    allocated_bytes: int  # Of that in blocks that torch counts, such as results that the program holds
    first_cycle: int  # The first recorded cycle whose peak came when all had been captured; their number if none did
    has_backward: bool  # Whether a backward pass is replayed, or may be
    # In use at the peak of the capture at which most was, with what earlier ones had left; 0 where none was recorded.
    peak_bytes: int
    rows: tuple[Row, ...]  # What that was, the largest first; they sum to it

    @property
    def uncounted_bytes(self) -> int:
        """Reserved for it and in no block that torch counts: what replays work in."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, eq=False)
class Findings(Generic[Source]):
    """Findings about one device in each cycle of a run, or about each device of a file."""

    parts: tuple[DeviceFindings[Source], ...]  # Of a run its cycles in order, one or more; of a file its devices
    # Of a run:
    growth: Growth | None = None  # What stays from step to step, or None
    # The most that the allocator of each other accelerator had handed out, by name, largest first.
    other_devices: Mapping[str, int] = field(default_factory=dict)
    compiled: CompiledCode = NOTHING_COMPILED
    graph_pools: tuple[GraphPool, ...] = ()  # What CUDA graphs work in, the largest first
    # Of a file:
    notes: tuple[str, ...] = ()  # Sentences on the whole file
    pinned_bytes: int = 0  # Pinned host memory at the end

    @property
    def worst(self) -> DeviceFindings[Source]:
        """The part with the largest peak, of those that ran out of memory if any did.

        Of equal ones the first with allocator history, else the first.
        """
        return max(self.parts, key=lambda part: (part.failures != (), *size_of_peak(part.peak)))

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """The peak of each part."""
        return tuple(part.peak for part in self.parts)

    @property
    def device(self) -> str:
        """The device of a run, named as `str(torch.device)` writes it."""
        return self.parts[0].peak.device

    @property
    def averaged(self: Findings[Cycle]) -> tuple[DeviceFindings[Cycle], ...]:
        """Cycles that means are taken over: the whole ones, as a cut one may have missed its peak; all if none is."""
        return tuple(cycle for cycle in self.parts if cycle.source.is_whole) or self.parts

    @property
    def breakdown(self: Findings[Cycle]) -> Breakdown:
        """The peak by torch's categories: means over the cycles in `averaged`."""
        from tracer.blocks.from_recording.memory_timeline import Breakdown

        means = tuple(cycle.source.breakdown for cycle in self.averaged)
        return Breakdown(self.device, means, len(self.parts) - len(means))

    @cached_property
    def instances(self: Findings[Cycle]) -> tuple[OpInstances, ...]:
        """Operator invocations of each cycle."""
        from tracer.answers.operators.invocations import op_instances

        return tuple(op_instances(cycle.source.recording, cycle.source.attribution) for cycle in self.parts)

    @cached_property
    def run_times(self: Findings[Cycle]) -> tuple[RunTimeRow, ...]:
        """Run times of operators, averaged over all cycles."""
        from tracer.answers.operators.run_times import run_times

        recorded = [(cycle.source.recording, cycle.source.attribution) for cycle in self.parts]
        return run_times(recorded, instances=self.instances)

    @property
    def graph_bytes(self) -> int:
        """Bytes that CUDA graphs use and torch counts as free, at the largest peak."""
        return self.graph_bytes_in(self.parts.index(self.worst))

    def graph_bytes_in(self, cycle: int) -> int:
        """Return the bytes that CUDA graphs use and torch counts as free, at the peak of one cycle, by its number."""
        peak = self.peaks[cycle]
        size_bytes = sum(pool.uncounted_bytes for pool in self.graph_pools if pool.first_cycle <= cycle)
        return min(size_bytes, max(0, peak.reserved_bytes - peak.peak_bytes)) if peak.reserved_bytes else size_bytes


CycleFindings: TypeAlias = "DeviceFindings[Cycle]"
RunFindings: TypeAlias = "Findings[Cycle]"
ReplayedFindings: TypeAlias = "DeviceFindings[ReplayedDevice]"
SnapshotFindings: TypeAlias = "Findings[ReplayedDevice]"
