"""Results of trials of a script's changes, and those with which it fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracer.null_gpu.nccl_buffers import NcclBuffers

if TYPE_CHECKING:
    from tracer.answers.allocator.explained import Explanation
    from tracer.capture.objects.later_uses import LaterUses


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
    failed_at_bytes: int = 0  # Allocated when memory ran out on the card
    pinned_bytes: int = 0  # Most host memory that the process, or a rank of a job, had pinned at once
    uses: LaterUses | None = None  # Of the blocks of a failed request that was to be followed
    explanation: Explanation | None = None  # Why memory ran out on the card, or grows; of the script as it is

    @property
    def not_applicable(self) -> frozenset[str]:
        """Names of changes that could not be made."""
        return frozenset(name for name in self.apply if any(note.startswith(f"{name}:") for note in self.notes))


@dataclass(frozen=True, slots=True)
class FitReport:
    """Everything to tell."""

    device: str
    usable_bytes: int  # Bytes of it that the allocator can use
    script: tuple[str, ...]
    trials: tuple[FitTrial, ...]  # The trials, in the order in which they were made
    best: FitTrial | None  # The trial with which it fits; None where nothing fits
