"""The most host memory that a process and all that it has started held at once, and files that it loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HostPart:
    """Processes of one name."""

    name: str  # As the system has it, such as `pt_data_worker`
    num_processes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HostPeak:
    """Resident memory of a process and its descendants when together they held the most; the parts sum to it.

    Pages of mapped files are left out, which the system may drop. A page that several of the processes share counts
    once.
    """

    own_bytes: int  # Of the process itself
    others: tuple[HostPart, ...] = ()  # Of those that it has started, the largest first
    # On the null GPU: pinned by the process and written by nothing. A real driver has it taken from the beginning.
    unwritten_bytes: int = 0
    pinned_bytes: int = 0  # Most that torch has pinned for GPUs in this process, at whatever moment
    num_looks: int = 1  # Times that it was looked at

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.own_bytes + self.unwritten_bytes + sum(part.bytes for part in self.others)

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> HostPeak:
        """Return the peak that `dataclasses.asdict` has made these values of."""
        return cls(**values | {"others": tuple(HostPart(**part) for part in values["others"])})


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A file that a process has loaded whole into its host memory."""

    path: str
    bytes: int
