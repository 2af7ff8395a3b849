"""Will it fit: the answers of a rehearsal and of the null GPU."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.profiles.findings import Findings
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import Card, Devices
from tracer.rehearsal.device_memory import DeviceMemory
from tracer.rehearsal.rehearse import Rehearsal
from tracer.rehearsal.spread import Spread
from tracer.results.run_results import RunResults


@dataclass(frozen=True, slots=True)
class Place:
    """Where an allocation is asked for.

    Attributes:
        step: From 0; -1 before the first.
        phase: `forward` and so on.
        module: Dotted name, or empty.
        op: torch's name of the operator, or empty.
        line: Of the user or a library, or None.
    """

    step: int
    phase: str
    module: str
    op: str
    line: SourceLine | None


@dataclass(frozen=True, slots=True)
class ShapeNeed:
    """What inputs of one shape need.

    Attributes:
        inputs: As `--input` has them.
        allocated_bytes: At the peak.
        reserved_bytes: At the peak.
    """

    inputs: tuple[str, ...]
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """How much of a batch fits on a device.

    Attributes:
        batch_size: The largest that does; 0 where not even one sample fits.
        accumulated: Size and number of micro-batches that together are what was asked for, where that does not fit at
            once; None where it does, or where no number of them fits.
    """

    batch_size: int
    accumulated: tuple[int, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a step needs of a device.

    Attributes:
        rehearsal: Of the step.
        findings: What fills the device at the peak.
        card: The device; None where only the need is asked for.
        memory: What its allocator makes of it: peak allocated, peak reserved, where it runs out.
        unlimited: The same without a limit.
        spread: Of what is reserved.
        failed_at: Where it runs out of memory; None where it does not.
        assumptions: Sentences on what was assumed.
        by_shape: Where inputs vary, what the smallest and the largest need alone.
    """

    rehearsal: Rehearsal
    findings: Findings
    card: Card | None
    memory: DeviceMemory
    unlimited: DeviceMemory
    spread: Spread
    failed_at: Place | None
    assumptions: tuple[str, ...]
    by_shape: tuple[ShapeNeed, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether every allocation is served; None where no device is named."""
        return None if self.card is None else self.memory.failure is None


@dataclass(frozen=True, slots=True, eq=False)
class NullPrediction:
    """What a run on the null GPU needed.

    Attributes:
        devices: On which it ran.
        results: Of the run; its failure is the device's own out of memory.
        peak_allocated_bytes: The most that the allocator had handed out on the device, from the start of the process.
        peak_requested_bytes: The same before rounding.
        peak_reserved_bytes: The most that it had reserved.
        num_retries: How often it gave back its cache for a request.
        needed_bytes: What it reserves where memory does not end; None where it fits, or nobody looked.
    """

    devices: Devices
    results: RunResults
    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    needed_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether every allocation was served."""
        return self.results.failure is None

    @property
    def room_bytes(self) -> int:
        """What is left of the card beside what was reserved and CUDA's own context."""
        return self.devices.card.usable_bytes - self.peak_reserved_bytes

    @property
    def findings(self) -> Findings | None:
        """What filled the device at the peak; None if nothing was recorded."""
        return self.results.findings

    @property
    def failed_line(self) -> SourceLine | None:
        """The user's line that asked for what there was no memory for."""
        return self.results.failure.line if self.results.failure is not None else None
