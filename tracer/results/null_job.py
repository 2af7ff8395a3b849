"""Results of a job on the null GPU: which of its ranks ran, and the peak of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import CONTEXT_BYTES, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers


@dataclass(frozen=True, slots=True)
class RankRun:
    """A rank that ran."""

    rank: int
    status: int
    seconds: float
    peak_bytes: int | None = None  # Largest peak of its device; None if nothing was recorded
    reserved_bytes: int = 0  # Reserved from the driver at that moment; of its GPU's peak see `taken`
    categories: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""  # What ended its steps early, in words; empty if nothing did
    out_of_memory: bool = False  # Whether that was the device's memory
    nccl: NcclBuffers = field(default_factory=NcclBuffers)  # What a real NCCL would have taken memory for
    shared_bytes: int = 0  # Symmetric memory, which ranks map from each other and torch's allocator does not count
    line: SourceLine | None = None  # Line at which that arose; None where it is not known
    # [B] The most that it took at once of each GPU of its node, by the GPU's number there: what torch reserved,
    # symmetric memory and CUDA's context.
    taken: Mapping[int, int] = field(default_factory=dict)
    # The GPU on which it ran again with less memory, and what others take of it; None where it did not.
    crowded: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NullJob:
    """A job, some of whose ranks ran."""

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
        cached_bytes = self.cached_bytes(fullest)
        least_bytes, most_bytes = self.of_card_bytes(fullest)
        if least_bytes - cached_bytes > card_bytes:
            return False
        # A rank that ran again beside all that others take at least is known to fit there.
        is_served = most_bytes <= card_bytes or (fullest.crowded is not None and not fullest.nccl.most_bytes)
        return True if is_served else None

    @property
    def fullest(self) -> RankRun | None:
        """The first of those whose card may be fullest, NCCL's buffers among it."""
        known = [run for run in self.runs if run.peak_bytes is not None or run.taken]
        return max(known, key=lambda run: self.of_card_bytes(run)[1], default=None)

    def local(self, run: RankRun) -> int:
        """The number of a rank's own GPU on its node."""
        return run.rank % self.per_node

    def own_bytes(self, run: RankRun) -> int:
        """The most that a rank takes of its own GPU: what torch reserves, CUDA's context and symmetric memory."""
        reserved_bytes = max(run.reserved_bytes, run.peak_bytes or 0)
        return max(reserved_bytes + CONTEXT_BYTES + run.shared_bytes, run.taken.get(self.local(run), 0))

    def cached_bytes(self, run: RankRun) -> int:
        """Bytes of a rank's own GPU that torch has reserved beyond its peak, and can give back."""
        if run.peak_bytes is None:
            return 0
        return self.own_bytes(run) - run.peak_bytes - CONTEXT_BYTES - run.shared_bytes

    def others_bytes(self, run: RankRun) -> int:
        """Bytes that the other ranks of a node take of a rank's GPU, each at its most.

        A rank that did not run is taken to do as the nearest one that ran.
        """
        first = run.rank - self.local(run)
        others = range(first, min(first + self.per_node, self.devices.count))
        return sum(self._of_gpu_bytes(other, self.local(run)) for other in others if other != run.rank)

    def _of_gpu_bytes(self, rank: int, index: int) -> int:
        alike = min((run for run in self.runs if self.local(run)), key=lambda run: abs(run.rank - rank), default=None)
        alike = next((run for run in self.runs if run.rank == rank), alike)
        return 0 if alike is None or self.local(alike) == index else alike.taken.get(index, 0)

    @property
    def astray(self) -> list[tuple[RankRun, int, int]]:
        """Ranks that took memory of a GPU that is not their own, with its number on their node, and the bytes."""
        return [
            (run, index, size)
            for run in self.runs
            for index, size in run.taken.items()
            if size and index != self.local(run)
        ]

    def of_card_bytes(self, run: RankRun) -> tuple[int, int]:
        """Least and most of a rank's card that is taken: its own, what other ranks take, and NCCL's buffers."""
        known = self.own_bytes(run) + self.others_bytes(run)
        return known + run.nccl.least_bytes, known + run.nccl.most_bytes

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
