"""Memory that the processes of a node hold on each of its GPUs: the one sum that tells whether a GPU is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tracer.analysis.snapshots.job import RankPeak
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import CONTEXT_BYTES
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
        """All of it."""
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
        """With the least that NCCL takes."""
        return self.held_bytes + self.nccl.least_bytes

    @property
    def most_bytes(self) -> int:
        """With the most that NCCL takes."""
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
