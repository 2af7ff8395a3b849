"""Results of a job on the null GPU: which of its ranks ran, and the peak of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracer.null_gpu.cards import CONTEXT_BYTES, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers


@dataclass(frozen=True, slots=True)
class RankRun:
    """A rank that ran.

    Attributes:
        rank: Its number.
        status: Exit status of its process.
        seconds: How long it took.
        peak_bytes: Largest peak of its device; None if nothing was recorded.
        reserved_bytes: Reserved from the driver at that moment.
        categories: Bytes of the peak by category.
        failure: What ended its steps early, in words; empty if nothing did.
        out_of_memory: Whether that was the device's memory.
        nccl: What a real NCCL would have taken memory for.
        shared_bytes: Symmetric memory, which ranks map from each other and torch's allocator does not count.
    """

    rank: int
    status: int
    seconds: float
    peak_bytes: int | None = None
    reserved_bytes: int = 0
    categories: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""
    out_of_memory: bool = False
    nccl: NcclBuffers = field(default_factory=NcclBuffers)
    shared_bytes: int = 0

    @property
    def of_card_bytes(self) -> tuple[int, int]:
        """Least and most of the card at the peak: torch's, CUDA's context, symmetric memory, and what NCCL takes."""
        known = (self.peak_bytes or 0) + CONTEXT_BYTES + self.shared_bytes
        return known + self.nccl.least_bytes, known + self.nccl.most_bytes


@dataclass(frozen=True, slots=True)
class NullJob:
    """A job, some of whose ranks ran.

    Attributes:
        devices: One for each rank.
        per_node: How many ranks a node has.
        runs: By rank.
    """

    devices: Devices
    per_node: int
    runs: tuple[RankRun, ...]

    @property
    def words(self) -> str:
        """How many ranks the job has, on which cards, and how many ran."""
        devices = f"{self.devices.count:,} ranks on {self.devices.words}"
        return f"{devices}, {self.per_node} to a node: {len(self.runs)} ran"

    @property
    def worst(self) -> RankRun | None:
        """The first of those with the largest peak; one that ran out of memory comes before all others."""
        known = [run for run in self.runs if run.peak_bytes is not None or run.out_of_memory]
        return max(known, key=lambda run: (run.out_of_memory, run.peak_bytes or 0), default=None)

    @property
    def fits(self) -> bool | None:
        """Whether all ranks that ran have room on the card.

        None where one has ended for another reason, none was recorded, or it hangs on how much NCCL takes.
        """
        if any(run.out_of_memory for run in self.runs):
            return False
        fullest, card_bytes = self.fullest, self.devices.card.memory_bytes
        if fullest is None or self.status:
            return None
        least_bytes, most_bytes = fullest.of_card_bytes
        if least_bytes > card_bytes:
            return False
        return True if most_bytes <= card_bytes else None

    @property
    def fullest(self) -> RankRun | None:
        """The first of those whose card may be fullest, NCCL's buffers among it."""
        known = [run for run in self.runs if run.peak_bytes is not None]
        return max(known, key=lambda run: run.of_card_bytes[1], default=None)

    @property
    def groups(self) -> tuple[tuple[RankRun, ...], ...]:
        """Ranks that hold the same at their peaks, to the byte, and ended alike; the largest peak first."""
        alike: dict[tuple[object, ...], list[RankRun]] = {}
        for run in self.runs:
            key = (run.peak_bytes, tuple(sorted(run.categories.items())), bool(run.failure), run.status)
            alike.setdefault(key, []).append(run)
        groups = map(tuple, alike.values())
        return tuple(sorted(groups, key=lambda group: (not group[0].failure, -(group[0].peak_bytes or 0))))

    @property
    def status(self) -> int:
        """Exit status of the whole: 0 where all ended well, else that of the first which did not."""
        return next((run.status if run.status > 0 else 1 for run in self.runs if run.status), 0)
