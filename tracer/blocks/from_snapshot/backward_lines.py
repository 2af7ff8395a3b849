"""Lines of forward that blocks of backward belong to, where order, number and sizes leave no choice.

Autograd's engine has no Python frames, but evaluates the nodes in the reverse order of the operations of forward. An
operation that always makes new memory is seen in forward: the operations of a stretch must contain what backward runs,
read backwards, in its order. Two greedy readings, from either end, bound where in forward a run of equal nodes can lie;
where both agree it is found. So it is where there are as many blocks as all operations between the bounds make at most:
operations without a gradient may lie among them. What may also write in place is left out: that would leave no trace.

Shapes: S stacks, L blocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.frames import AutogradFrames
from tracer.blocks.from_snapshot.phases import Stretches
from tracer.snapshot.replay import Lives

_NONE: Final = -1
# Operations that always make new memory, in the spelling of their nodes: without a form that writes in place. Addmm and
# Gelu have one, which no layer of torch calls.
_ALWAYS_NEW: Final = frozenset(
    {
        "Mm",
        "Addmm",
        "Bmm",
        "Convolution",
        "CudnnConvolution",
        "Softmax",
        "LogSoftmax",
        "NativeLayerNorm",
        "NativeGroupNorm",
        "NativeBatchNorm",
        "CudnnBatchNorm",
        "NativeDropout",
        "Gelu",
        "Embedding",
        "Index",
        "IndexSelect",
        "Gather",
        "Mean",
        "Var",
        "Sum",
        "Logsumexp",
        "NllLoss",
        "NllLoss2D",
        "MseLoss",
        "MaxPool2DWithIndices",
        "AvgPool2D",
        "AdaptiveAvgPool2D",
        "UpsampleNearest2D",
        "UpsampleBilinear2D",
        "Max",
        "Min",
        "Kthvalue",
        "Amax",
        "Prod",
        "Norm",
        "LinalgVectorNorm",
        "FftR2C",
        "FftC2R",
        "FftC2C",
        "ScaledDotProductEfficientAttention",
        "ScaledDotProductFlashAttention",
        "ScaledDotProductCudnnAttention",
        "ScaledDotProductFlashAttentionForCpu",
    }
)
# How many blocks a node makes at most: one for each input that has a gradient, so that reaching it leaves no choice.
_AT_MOST: Final = {
    **dict.fromkeys(("Gelu", "Softmax", "LogSoftmax"), 1),
    **dict.fromkeys(("Mm", "Bmm"), 2),
    "Addmm": 3,
}
# With more contradictions than one in so many the order is not what it seems, and nothing is named.
_PAIRS_PER_CONTRADICTION: Final = 50
_PRODUCTS: Final = frozenset({"Mm", "Bmm"})


@dataclass(slots=True)
class _BackwardRun:
    """Blocks in a row that belong to the same name."""

    name: int
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Operations:
    """The operations of one name in forward."""

    rows: list[int] = field(default_factory=list)  # The first block of each, in their order
    places: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def append(self, place: int, rows: Sequence[int]) -> None:
        """Add a run of operations."""
        self.places.append(place)
        self.starts.append(len(self.rows))
        self.rows += rows

    def range(self, low: int, high: int) -> tuple[int, int]:
        """Numbers of the first operation of some runs, and of the one past their last."""
        past = bisect_right(self.places, high)
        end = self.starts[past] if past < len(self.starts) else len(self.rows)
        return self.starts[bisect_left(self.places, low)], end


class BackwardLines:
    """Finds the forward of backward's blocks, one backward pass at a time and only those asked for.

    Args:
        steps: The optimizer's steps, which forward does not reach across.
        skipped: Whether a stack makes what does not count, such as a library's workspace [stacks].
    """

    def __init__(
        self, lives: Lives, frames: AutogradFrames, backwards: Stretches, steps: Stretches, *, skipped: Bools
    ) -> None:
        self._skipped = skipped
        self._lives, self._frames, self._backwards, self._steps = lives, frames, backwards, steps
        self._order = np.argsort(lives.begin, kind="stable")
        self._begin = lives.begin[self._order]
        self._matched: dict[int, dict[int, int]] = {}

    def forward_stacks(self, rows: Ints) -> Ints:
        """The stack of the operation that each block is backward of; -1 where it is none or not known."""
        stacks = np.full(len(rows), _NONE, dtype=np.int64)
        in_node = np.flatnonzero(self._frames.node[self._lives.stack[rows]] >= 0)
        passes = self._backwards.containing(self._lives.begin[rows[in_node]])
        for place, number in zip(in_node.tolist(), passes.tolist(), strict=True):
            if number not in self._matched:
                self._matched[number] = self._match(number) if number >= 0 else {}
            if (forward := self._matched[number].get(int(rows[place]), _NONE)) >= 0:
                stacks[place] = self._lives.stack[forward]
        return stacks

    def _match(self, number: int) -> dict[int, int]:
        """Return, for each block of one backward pass, a block of its operation of forward."""
        start, end = int(self._backwards.start[number]), int(self._backwards.end[number])
        since = int(self._backwards.end[number - 1]) if number else 0
        before = np.searchsorted(self._steps.start, start) - 1
        is_open = True
        if before >= 0 and self._steps.end[before] >= since:
            since, is_open = min(int(self._steps.end[before]), start), False
        allocated, freed = self._between(since, start), self._between(start, end)
        stack = self._lives.stack
        if self._frames.recomputes[stack[freed]].any():
            return {}
        operation, node = self._frames.operation[stack[allocated]], self._frames.node[stack[freed]]
        forward = list(zip(allocated[operation >= 0].tolist(), operation[operation >= 0].tolist(), strict=True))
        backward = list(zip(freed[node >= 0].tolist(), node[node >= 0].tolist(), strict=True))[::-1]
        return _NodeMatching(self._lives, self._frames, forward, backward).run(is_open=is_open)

    def _between(self, start: int, end: int) -> Ints:
        low, high = np.searchsorted(self._begin, [max(start, 0), end])
        rows = self._order[low:high]
        return rows[~self._skipped[self._lives.stack[rows]]]


class _NodeMatching:
    """A stretch of forward and its backward, whose operations are read from last to first."""

    def __init__(
        self,
        lives: Lives,
        frames: AutogradFrames,
        forward: Sequence[tuple[int, int]],
        backward: Sequence[tuple[int, int]],
    ) -> None:
        self._size, self._stack, self._call = lives.requested_bytes, lives.stack, frames.call
        self._names = frames.names
        wanted = {name for _, name in backward}
        certain = {name for name in wanted if frames.names[name] in _ALWAYS_NEW}
        self._made, self._done = _runs(forward, certain), _runs(backward, certain)

    def run(self, *, is_open: bool) -> dict[int, int]:
        """Match operations of backward with operations of forward.

        Args:
            is_open: What was run before this stretch may belong to it; then its first run may have to do with that.
        """
        matches: dict[int, int] = {}
        contradicted = num_found = 0
        of_name: dict[int, _Operations] = {}
        for place, made in enumerate(self._made):
            of_name.setdefault(made.name, _Operations()).append(place, self._instances(made.rows))
        for run, (low, high) in zip(self._done, self._bounds(), strict=False):
            part = self._shared_out(of_name[run.name], run, low, high)
            contradicted += part is None
            num_found += low == high or part != {}
            matches |= part if part and (low or not is_open) else {}
        return matches if contradicted * _PAIRS_PER_CONTRADICTION <= num_found else {}

    def _bounds(self) -> list[tuple[int, int]]:
        """First and last run of forward that each run of backward may belong to; empty if they cannot match."""
        first = _embedded([run.name for run in self._done], [run.name for run in self._made])
        last = _embedded([run.name for run in self._done[::-1]], [run.name for run in self._made[::-1]])
        if first is None or last is None:
            return []
        last = [len(self._made) - 1 - place for place in last[::-1]]
        return list(zip(first, last, strict=True))

    def _instances(self, rows: Sequence[int]) -> list[int]:
        """The first block of each operation: its stack comes again with the next one."""
        instances: list[int] = []
        seen: set[int] = set()
        call = _NONE
        for row in rows:
            stack = int(self._stack[row])
            if int(self._call[stack]) != call or stack in seen:
                instances.append(row)
                call, seen = int(self._call[stack]), set()
            seen.add(stack)
        return instances

    def _shared_out(self, operations: _Operations, run: _BackwardRun, low: int, high: int) -> dict[int, int] | None:
        """The operation of each of backward's blocks, where it is certain; None if number or sizes contradict."""
        first, end = operations.range(low, high)
        name = self._names[run.name]
        most = _AT_MOST.get(name)
        full = None if most is None else most * (end - first)
        if full is not None and len(run.rows) > full:
            return None
        if most is not None and len(run.rows) == full:
            rows = operations.rows[first:end]
            shared = {row: rows[place // most] for place, row in enumerate(run.rows)}
            return shared if self._fits(name, rows, run.rows, most) else None
        if low < high:
            return {}
        rows = operations.rows[first:end]
        is_one_line = len({int(self._call[self._stack[row]]) for row in rows}) == 1
        return dict.fromkeys(run.rows, rows[0]) if is_one_line else {}

    def _fits(self, name: str, operations: Sequence[int], rows: Sequence[int], share: int) -> bool:
        """Return True if the sizes of gradients can be those of the operations' inputs."""
        results, sizes = self._size[operations], self._size[rows].reshape(len(operations), share)
        if share == 1:
            return bool((sizes[:, 0] == results).all())
        if name in _PRODUCTS:
            triples = [results, sizes[:, 0], sizes[:, 1]]
            return all(
                all(x * y % z == 0 for x, y, z in zip(*(part.tolist() for part in order), strict=True))
                for order in (triples, triples[1:] + triples[:1], triples[2:] + triples[:2])
            )
        return True


def _runs(blocks: Sequence[tuple[int, int]], wanted: set[int]) -> list[_BackwardRun]:
    runs: list[_BackwardRun] = []
    for row, name in blocks:
        if name in wanted:
            if not runs or runs[-1].name != name:
                runs.append(_BackwardRun(name))
            runs[-1].rows.append(row)
    return runs


def _embedded(few: Sequence[int], many: Sequence[int]) -> list[int] | None:
    """The earliest places at which one sequence lies within another; None if it does not."""
    places: list[int] = []
    at = 0
    for name in few:
        while at < len(many) and many[at] != name:
            at += 1
        if at == len(many):
            return None
        places.append(at)
        at += 1
    return places
