"""Memory of a process in the phases of its program, such as a rollout and a training step that take turns on a GPU."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Final, Self

BETWEEN: Final = "(between phases)"
"""Stands for all that a program does outside of its phases."""


@dataclass(frozen=True, slots=True)
class MemoryLevels:
    """Memory of a process on a device at one moment, in bytes."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    held_bytes: int = 0  # On the device, CUDA's context included
    outside_bytes: int = 0  # Of it what is not torch's

    def at_most(self, other: MemoryLevels) -> MemoryLevels:
        """Return the larger of each part."""
        return MemoryLevels(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """Memory of a process on one device in a phase: each part at its most in all times that it was in the phase."""

    name: str
    device: int  # Number of the device
    num_times: int  # Of which the ledger looks at the first ones, and then at few
    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int  # On the device and not torch's: CUDA's context, libraries
    held_bytes: int  # On the device
    begin_bytes: int  # On the device where the phase last began
    end_bytes: int  # On the device where it last ended

    @property
    def cached_bytes(self) -> int:
        """Reserved beside what is allocated."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def unmapped_bytes(self) -> int:
        """Reserved by torch and not on the device, as while an engine sleeps.

        Allocated, cached and outside without it are what is held.
        """
        return self.reserved_bytes + self.outside_bytes - self.held_bytes

    @classmethod
    def of_visit(cls, name: str, device: int, levels: list[MemoryLevels], peak: MemoryLevels) -> Self:
        """Return the memory of one time.

        Memory that is reserved and freed between two moments was on the device, too: 10 reserved and 12 held at the
        beginning and at the end, and a peak of 15 reserved: 17 held.

        Args:
            levels: At its beginning, at moments in between, and at its end, in order.
            peak: Peaks of the allocator's counters in it; what is held is not read.
        """
        reserved = max(level.reserved_bytes for level in levels)
        most_reserved = max(reserved, peak.reserved_bytes)
        return cls(
            name=name,
            device=device,
            num_times=1,
            allocated_bytes=max(peak.allocated_bytes, *(level.allocated_bytes for level in levels)),
            reserved_bytes=most_reserved,
            outside_bytes=max(level.outside_bytes for level in levels),
            held_bytes=max(level.held_bytes for level in levels) + most_reserved - reserved,
            begin_bytes=levels[0].held_bytes,
            end_bytes=levels[-1].held_bytes,
        )

    def followed_by(self, later: PhaseMemory) -> PhaseMemory:
        """Return this together with another time of the same phase."""
        return replace(
            later,
            num_times=self.num_times + later.num_times,
            allocated_bytes=max(self.allocated_bytes, later.allocated_bytes),
            reserved_bytes=max(self.reserved_bytes, later.reserved_bytes),
            outside_bytes=max(self.outside_bytes, later.outside_bytes),
            held_bytes=max(self.held_bytes, later.held_bytes),
        )


@dataclass(frozen=True, slots=True)
class ProcessPhases:
    """Phases of one process."""

    process: int  # Its number
    name: str  # Such as its script
    phases: tuple[PhaseMemory, ...]  # What is between them is last

    @property
    def has_phases(self) -> bool:
        """True if the process's program has phases, besides the time between them."""
        return any(phase.name != BETWEEN for phase in self.phases)


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process at the moment when all processes together held the most of a GPU."""

    process: int  # Its number
    name: str  # Such as its script; empty where it is not known
    bytes: int
    phase: str  # Its phase then; empty where it was in none


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """The most that the processes of a run held of a GPU at once."""

    device: int  # Number of the GPU
    holders: tuple[GpuHolder, ...]  # The largest first

    @property
    def held_bytes(self) -> int:
        """Bytes that all processes held together."""
        return sum(holder.bytes for holder in self.holders)
