"""Will it fit: the answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.answers.findings import RunFindings
from tracer.answers.fit import FitTrial
from tracer.answers.run_results import RunResults
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import Card
from tracer.null_gpu.nccl_buffers import NcclBuffers


@dataclass(frozen=True, slots=True)
class OutOfMemoryAt:
    """The allocation that fails because memory runs out."""

    size_bytes: int | None  # Bytes that could not be allocated; None where that is not known
    step: int  # Number of the step, from 0; -1 before the first
    line: SourceLine | None  # Line of the user's code or a library's, or None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of an allocator."""

    peak_allocated_bytes: int  # The most in use, rounded as the allocator does: `max_memory_allocated`
    peak_requested_bytes: int  # The most in use, as asked for
    peak_reserved_bytes: int  # The most taken from the driver: `max_memory_reserved`
    num_retries: int  # How often it gave back its cache for a request


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Memory that a step needs of a device."""

    results: RunResults  # Results of the steps, as of a run: what fills the device, with its files
    card: Card | None  # The device; None where only the need is asked for
    # Peaks of the steps without a limit on memory; of a script that runs out of memory, its peaks until then.
    need: Sizes
    memory: Sizes  # Their peaks on the card
    failed_at: OutOfMemoryAt | None  # Where the card runs out of memory; None where it does not
    assumptions: tuple[str, ...]  # Sentences on what was assumed of this program
    num_cards: int = 1  # How many of them the program sees
    is_whole: bool = True  # Whether `need` is that of whole steps
    without_end: FitTrial | None = None  # Of a script that runs out of memory: its steps where memory does not end
    rank: int | None = None  # The rank of a job that it is about alone; None where it is about the whole program
    nccl: NcclBuffers = field(default_factory=NcclBuffers)  # What NCCL takes memory for, beside torch's

    @property
    def fits(self) -> bool | None:
        """True if every allocation is served; None if no device is named, or if it depends on NCCL's memory.

        For a single rank, NCCL's memory is left out: it is counted over all ranks.
        """
        if self.card is None:
            return None
        if self.failed_at is not None:
            return False
        return True if self.rank is not None or self.room_bytes[0] >= 0 or not self.nccl.most_bytes else None

    @property
    def room_bytes(self) -> tuple[int, int]:
        """Least and most of the card that is left beside what torch reserves, CUDA's context and NCCL's buffers."""
        assert self.card is not None
        room = self.card.usable_bytes - self.memory.peak_reserved_bytes
        return (room, room) if self.rank is not None else (room - self.nccl.most_bytes, room - self.nccl.least_bytes)

    @property
    def findings(self) -> RunFindings | None:
        """Findings on the contents of the device at the peak; None if nothing was recorded."""
        return self.results.findings
