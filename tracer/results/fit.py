"""Results of trials of a script's changes, and those with which it fits."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.null_gpu.nccl_buffers import NcclBuffers


@dataclass(frozen=True, slots=True)
class RankTrial:
    """What came of a trial on one rank of a job.

    Attributes:
        allocated_bytes: At most; where it does not fit, until memory ran out.
        reserved_bytes: The same.
    """

    rank: int
    fits: bool
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class FitTrial:
    """What came of some changes.

    Attributes:
        apply: Names of them, as `run --apply` takes them; none for the script as it is.
        allocated_bytes: At most; where it does not fit, until memory ran out.
        reserved_bytes: The same.
        notes: What could not be made, a sentence each.
        has_ended_before: Whether the script ended before a step, otherwise than for want of memory: it does not bear
            the changes.
        arguments: Arguments that were put behind the script's own.
        worst_rank: The rank that these bytes are of, in a job; None for one process.
        ranks: All that ran, in a job.
        beside_bytes: Of that rank's card, symmetric memory and what other ranks take.
        nccl: What NCCL takes of it, too.
        flops: Floating point operations of a step, of the worst rank in a job; None where they were not counted.
    """

    apply: tuple[str, ...]
    fits: bool
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    notes: tuple[str, ...] = ()
    has_ended_before: bool = False
    arguments: tuple[str, ...] = ()
    worst_rank: int | None = None
    ranks: tuple[RankTrial, ...] = ()
    beside_bytes: int = 0
    nccl: NcclBuffers = field(default_factory=NcclBuffers)
    flops: int | None = None

    @property
    def in_vain(self) -> frozenset[str]:
        """Names of changes that could not be made."""
        return frozenset(name for name in self.apply if any(note.startswith(f"{name}:") for note in self.notes))


@dataclass(frozen=True, slots=True)
class FitReport:
    """Everything to tell.

    Attributes:
        usable_bytes: Bytes of it that the allocator can use.
        trials: The trials, in the order in which they were made.
        apply: Names of the changes with which it fits, none where it does as it is; None where nothing fits.
        arguments: With which it fits, behind the script's own.
    """

    device: str
    usable_bytes: int
    script: tuple[str, ...]
    trials: tuple[FitTrial, ...]
    apply: tuple[str, ...] | None
    arguments: tuple[str, ...] = ()
