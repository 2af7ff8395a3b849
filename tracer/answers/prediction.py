"""Will it fit, and with which changes: results of trials, and the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import Card
from tracer.null_gpu.nccl_buffers import NcclBuffers

if TYPE_CHECKING:
    from tracer.answers.allocator.explained import Explanation
    from tracer.answers.findings import RunFindings
    from tracer.answers.run_results import RunResults
    from tracer.capture.objects.later_uses import LaterUses


_MOST_STEPS: Final = 1_000_000  # No training has more


@dataclass(frozen=True, slots=True)
class RankTrial:
    """Result of a trial on one rank of a job."""

    rank: int
    fits: bool
    allocated_bytes: int  # At most, as of the trial
    reserved_bytes: int  # The same


@dataclass(frozen=True, slots=True)
class FitTrial:
    """Result of some changes.

    Bytes of a trial that does not fit are those of a run in which memory does not end.
    """

    apply: tuple[str, ...]  # Names of them, as `run --apply` takes them; none for the script as it is
    fits: bool
    allocated_bytes: int = 0  # At most
    reserved_bytes: int = 0  # The same
    notes: tuple[str, ...] = ()  # What could not be made, a sentence each
    # Whether the script ended before a step, otherwise than for want of memory: it does not bear the changes.
    has_ended_before: bool = False
    arguments: tuple[str, ...] = ()  # Arguments that were put behind the script's own
    worst_rank: int | None = None  # The rank that these bytes are of, in a job; None for one process
    ranks: tuple[RankTrial, ...] = ()  # All that ran, in a job
    beside_bytes: int = 0  # Of that rank's card, symmetric memory and what other ranks take
    nccl: NcclBuffers = field(default_factory=NcclBuffers)  # What NCCL takes of it, too
    # Floating point operations of a step, of the worst rank in a job; None where they were not counted.
    flops: int | None = None
    is_whole: bool = True  # Whether the bytes are of whole steps; False if they are known only until memory ran out
    built_bytes: int = 0  # Allocated when the first step began; the peak before a module was called, if that is higher
    num_steps: int = 0  # Steps that ended
    growth_bytes: int = 0  # By how much more each of the last steps left in use; 0 where memory does not grow
    # Number of the step, from 0, in which memory ran out on the card; -1 before the first, None where it did not.
    failed_in: int | None = None
    failed_at_bytes: int = 0  # The most that was allocated until memory ran out on the card
    pinned_bytes: int = 0  # Most host memory that the process, or a rank of a job, had pinned at once
    uses: LaterUses | None = None  # Of the blocks of a failed request that was to be followed
    explanation: Explanation | None = None  # Why memory ran out on the card, or grows; of the script as it is

    @property
    def not_applicable(self) -> frozenset[str]:
        """Names of changes that could not be made."""
        return frozenset(name for name in self.apply if any(note.startswith(f"{name}:") for note in self.notes))

    def is_filled_by_growth(self, usable_bytes: int) -> bool:
        """True if growth alone fills the device, by now or within `_MOST_STEPS`; losses in a list do not."""
        left_bytes = usable_bytes - self.beside_bytes - self.reserved_bytes
        if self.fits:
            return self.growth_bytes * _MOST_STEPS > left_bytes
        # Without what has grown, it would have fitted.
        return self.growth_bytes > 0 and self.growth_bytes * self.num_steps > -left_bytes


@dataclass(frozen=True, slots=True)
class FitReport:
    """Result of a search for changes."""

    device: str
    usable_bytes: int  # Bytes of it that the allocator can use
    script: tuple[str, ...]
    trials: tuple[FitTrial, ...]  # The trials, in the order in which they were made
    best: FitTrial | None  # The trial with which it fits; None where nothing fits
    changes: tuple[str, ...] = ()  # What the changes of that one do, a sentence each
    is_each: bool = False  # Whether each change was tried alone, and the least is not asked for
    is_whole: bool = True  # Whether the search came to its end

    @property
    def base(self) -> FitTrial | None:
        """The script as it is; None where values of its options were tried."""
        return next((trial for trial in self.trials if not trial.apply and not trial.arguments), None)


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
