"""Results of a job: memory of all processes on each GPU, the one sum that tells whether it is full; which ranks ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tracer.answers.ranks import RankPeak
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import CONTEXT_BYTES, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory of one process on one GPU, each part at its largest."""

    rank: int
    is_own: bool  # Whether the GPU is this rank's; else it is another rank's
    torch_bytes: int  # Reserved by torch's allocator
    cached_bytes: int = 0  # Part of `torch_bytes` that it can give back
    context_bytes: int = CONTEXT_BYTES
    shared_bytes: int = 0  # Symmetric memory, which torch's allocator does not count
    line: SourceLine | None = None  # Line that holds most of it; None where it is not known
    is_assumed: bool = False  # Whether the rank did not run, and is taken to do as the nearest one that ran

    @property
    def bytes(self) -> int:
        """Memory of torch's allocator, of CUDA's context and symmetric memory together."""
        return self.torch_bytes + self.context_bytes + self.shared_bytes


@dataclass(frozen=True, slots=True)
class GpuSum:
    """Memory of all processes on one GPU, and NCCL's buffers."""

    node: int
    index: int  # Number of the GPU on its node
    holdings: tuple[Holding, ...]  # By rank
    nccl: NcclBuffers = field(default_factory=NcclBuffers)

    @property
    def held_bytes(self) -> int:
        """Without NCCL's buffers."""
        return sum(holding.bytes for holding in self.holdings)

    @property
    def least_bytes(self) -> int:
        """Bytes with the least that NCCL takes."""
        return self.held_bytes + self.nccl.least_bytes

    @property
    def most_bytes(self) -> int:
        """Bytes with the most that NCCL takes."""
        return self.held_bytes + self.nccl.most_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes that torch's allocators can give back."""
        return sum(holding.cached_bytes for holding in self.holdings)

    @property
    def own(self) -> Holding | None:
        """The holding of the rank whose GPU it is; None where that holds nothing, or is not known."""
        return next((holding for holding in self.holdings if holding.is_own), None)

    @property
    def guests(self) -> tuple[Holding, ...]:
        """Holdings of other ranks, the largest first."""
        return tuple(sorted((held for held in self.holdings if not held.is_own), key=lambda held: -held.bytes))

    def beside_bytes(self, rank: int) -> int:
        """Bytes of all processes but one."""
        return sum(holding.bytes for holding in self.holdings if holding.rank != rank)


def fullest(sums: Iterable[GpuSum]) -> GpuSum | None:
    """The first of those that may be fullest."""
    return max(sums, key=lambda gpu: gpu.most_bytes, default=None)


def sums_of(held: Mapping[tuple[int, int], Iterable[Holding]]) -> tuple[GpuSum, ...]:
    """Sum holdings up, in order of their GPUs.

    Args:
        held: By node and number of a GPU.
    """
    return tuple(
        GpuSum(node, index, tuple(sorted(held[node, index], key=lambda holding: holding.rank)))
        for node, index in sorted(held)
    )


def recorded_sums(ranks: Iterable[RankPeak]) -> tuple[GpuSum, ...]:
    """Sums of a real job's recordings, where the numbers of their devices tell whose each is.

    That is where each rank has memory on the device of its number on the node, such as rank 9 of nodes with 8 GPUs on
    device 1. Of ranks that see one GPU each, all recordings name device 0, and nothing is summed up.
    """
    known = [rank for rank in ranks if rank.rank is not None and rank.held]
    per_node = 1 + max((held.device for rank in known for held in rank.held), default=0)
    if per_node == 1 or len({rank.rank for rank in known}) < len(known):
        return ()
    sums: dict[tuple[int, int], list[Holding]] = {}
    for rank in known:
        assert rank.rank is not None
        node, local = divmod(rank.rank, per_node)
        if all(held.device != local for held in rank.held):
            return ()
        for held in rank.held:
            line = SourceLine.known(held.file, held.line)
            holding = Holding(rank.rank, held.device == local, held.reserved_bytes, line=line)
            sums.setdefault((node, held.device), []).append(holding)
    return sums_of(sums)


# ---- on the null GPU -------------------------------------------------------------------------------------------------


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
    lines: Mapping[int, SourceLine] = field(default_factory=dict)  # [B] Line that holds most of each; where known
    # The GPU on which it ran again with less memory, and what others take of it; None where it did not.
    crowded: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NullJob:
    """A job, some of whose ranks ran."""

    devices: Devices
    per_node: int
    runs: tuple[RankRun, ...]
    is_distributed: bool = True  # Whether the script opens a process group

    @property
    def words(self) -> str:
        """Words for the number of ranks of the job, its cards, and the number that ran."""
        devices = f"{self.devices.count:,} ranks on {self.devices.words}"
        return f"{devices}, {self.per_node} to a node: {len(self.runs)} ran"

    @property
    def worst(self) -> RankRun | None:
        """The first of those with the largest peak; one that ran out of memory comes before all others."""
        known = [run for run in self.runs if run.peak_bytes is not None or run.out_of_memory]
        return max(known, key=lambda run: (run.out_of_memory, run.peak_bytes or 0), default=None)

    @property
    def fits(self) -> bool | None:
        """True if every rank that ran has room on its GPU.

        None if a rank has ended for another reason, if none was recorded, or if it depends on NCCL's memory.
        """
        if any(run.out_of_memory for run in self.runs):
            return False
        gpu, card_bytes = self.fullest, self.devices.card.memory_bytes
        if gpu is None:
            return None
        if gpu.least_bytes - gpu.cached_bytes > card_bytes:
            return False
        if self.status:
            return None
        # A rank that ran again beside all that others take at least is known to fit there.
        ran_again = any(
            run.crowded is not None and run.crowded[0] == gpu.index and run.rank // self.per_node == gpu.node
            for run in self.runs
        )
        return True if gpu.most_bytes <= card_bytes or (ran_again and not gpu.nccl.most_bytes) else None

    @property
    def fullest(self) -> GpuSum | None:
        """The first of the GPUs that may be fullest, NCCL's buffers among it."""
        return fullest(self.gpus)

    @property
    def gpus(self) -> tuple[GpuSum, ...]:
        """Memory on each GPU of a rank that ran, or that such a rank took memory of.

        A rank that did not run is taken to do as the nearest one that ran.
        """
        ran = {run.rank: run for run in self.runs if run.peak_bytes is not None or run.taken}
        places = {
            (rank // self.per_node, index) for rank, run in ran.items() for index in (self.local(run), *run.taken)
        }
        sums = sums_of({place: list(self._holdings(ran, *place)) for place in places})
        return tuple(
            replace(gpu, nccl=ran[gpu.own.rank].nccl) if gpu.own and gpu.own.rank in ran else gpu for gpu in sums
        )

    def _holdings(self, ran: Mapping[int, RankRun], node: int, index: int) -> Iterator[Holding]:
        first = node * self.per_node
        for rank in range(first, min(first + self.per_node, self.devices.count)):
            is_own = rank - first == index
            # A node's first rank has its own GPU where others may be guests: only those tell what others do.
            alike = [run for run in ran.values() if is_own or self.local(run)]
            run = ran.get(rank) or min(alike, key=lambda run: abs(run.rank - rank), default=None)
            if run is None or (not is_own and (self.local(run) == index or not run.taken.get(index))):
                continue
            holding = self._own(run) if is_own else _guest(run, index)
            yield replace(holding, rank=rank, is_assumed=rank not in ran)

    def _own(self, run: RankRun) -> Holding:
        """Memory of a rank on its own GPU, by the driver's count if that is known; its peak may be of another GPU."""
        index, peak_bytes = self.local(run), run.peak_bytes or 0
        taken_bytes = max(0, run.taken.get(index, 0) - CONTEXT_BYTES - run.shared_bytes)
        torch_bytes = taken_bytes if run.taken else max(run.reserved_bytes, peak_bytes)
        cached_bytes = 0 if run.peak_bytes is None else max(0, torch_bytes - peak_bytes)
        return Holding(run.rank, True, torch_bytes, cached_bytes, shared_bytes=run.shared_bytes)

    def local(self, run: RankRun) -> int:
        """The number of a rank's own GPU on its node."""
        return run.rank % self.per_node

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


def _guest(run: RankRun, index: int) -> Holding:
    """Memory of a rank on another rank's GPU; if its memory ended there, the line is that of its failure."""
    has_failed_there = run.out_of_memory and f"GPU {index} has" in run.failure
    line = run.line if has_failed_there else run.lines.get(index)
    return Holding(run.rank, False, run.taken[index] - CONTEXT_BYTES, line=line)
