"""Which line of forward each block of backward belongs to, where order, number and sizes leave no choice.

Autograd's engine has no Python frames, but evaluates the nodes in the reverse order of the operations of forward. An
operation that always makes new memory is seen in forward: the operations of a stretch must contain what backward runs,
read backwards, in its order. Two greedy readings, from either end, bound where in forward a run of equal nodes can lie;
where both agree it is found. Operations that may also write in place are left out: that would leave no trace.

Shapes: S stacks, L blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tracer.analysis.snapshots.autograd_frames import AutogradFrames
from tracer.analysis.snapshots.phases import Stretches
from tracer.arrays import Bools, Ints
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
class _Run:
    """Blocks in a row that belong to the same name."""

    name: int
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Matched:
    """What came of one backward pass.

    Attributes:
        forward: For a block of backward a block of its operation of forward.
        contradicted: Runs that were found and whose number or sizes cannot be those of the operations.
        found: Runs that were found.
    """

    forward: dict[int, int]
    contradicted: int = 0
    found: int = 0


class BackwardLines:
    """Finds the forward of backward's blocks, one backward pass at a time and only those asked for.

    Args:
        lives: Of one device.
        frames: Of every stack.
        backwards: The device's backward passes.
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
        self._matched: dict[int, Matched] = {}

    def forward_stacks(self, rows: Ints) -> Ints:
        """The stack of the operation that each block is backward of; -1 where it is none or not known."""
        found = np.full(len(rows), _NONE, dtype=np.int64)
        in_node = np.flatnonzero(self._frames.node[self._lives.stack[rows]] >= 0)
        passes = self._backwards.containing(self._lives.begin[rows[in_node]])
        for place, number in zip(in_node.tolist(), passes.tolist(), strict=True):
            forward = self.matched(number).forward.get(int(rows[place]), _NONE) if number >= 0 else _NONE
            if forward >= 0:
                found[place] = self._lives.stack[forward]
        return found

    def matched(self, number: int) -> Matched:
        """What came of one backward pass."""
        if number not in self._matched:
            self._matched[number] = self._match(number)
        return self._matched[number]

    def _match(self, number: int) -> Matched:
        start, end = int(self._backwards.start[number]), int(self._backwards.end[number])
        since = int(self._backwards.end[number - 1]) if number else 0
        before = np.searchsorted(self._steps.start, start) - 1
        is_open = True
        if before >= 0 and self._steps.end[before] >= since:
            since, is_open = min(int(self._steps.end[before]), start), False
        made, done = self._between(since, start), self._between(start, end)
        stack = self._lives.stack
        if self._frames.recomputes[stack[done]].any():
            return Matched({})
        operation, node = self._frames.operation[stack[made]], self._frames.node[stack[done]]
        forward = list(zip(made[operation >= 0].tolist(), operation[operation >= 0].tolist(), strict=True))
        backward = list(zip(done[node >= 0].tolist(), node[node >= 0].tolist(), strict=True))[::-1]
        return _Matching(self._lives, self._frames, forward, backward).run(is_open=is_open)

    def _between(self, start: int, end: int) -> Ints:
        low, high = np.searchsorted(self._begin, [max(start, 0), end])
        rows = self._order[low:high]
        return rows[~self._skipped[self._lives.stack[rows]]]


class _Matching:
    """One stretch of forward and its backward, the latter read backwards."""

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

    def run(self, *, is_open: bool) -> Matched:
        """Match them.

        Args:
            is_open: What was run before this stretch may belong to it; then its first run may have to do with that.
        """
        places = self._places()
        found: dict[int, int] = {}
        contradicted = 0
        pairs = [(made, done) for done, made in enumerate(places) if made >= 0]
        for made, done in pairs:
            part = self._shared_out(self._made[made], self._done[done])
            contradicted += part is None
            found |= part if part and (made or not is_open) else {}
        trusted = contradicted * _PAIRS_PER_CONTRADICTION <= len(pairs)
        return Matched(found if trusted else {}, contradicted, len(pairs))

    def _places(self) -> list[int]:
        """For each run of backward its only possible run of forward, else -1; none if they cannot all have one."""
        first = _embedded([run.name for run in self._done], [run.name for run in self._made])
        last = _embedded([run.name for run in self._done[::-1]], [run.name for run in self._made[::-1]])
        if first is None or last is None:
            return []
        last = [len(self._made) - 1 - place for place in last[::-1]]
        return [low if low == high else _NONE for low, high in zip(first, last, strict=True)]

    def _instances(self, rows: Sequence[int]) -> list[int]:
        """The first block of each operation: its stack comes again with the next one."""
        found: list[int] = []
        seen: set[int] = set()
        call = _NONE
        for row in rows:
            stack = int(self._stack[row])
            if int(self._call[stack]) != call or stack in seen:
                found.append(row)
                call, seen = int(self._call[stack]), set()
            seen.add(stack)
        return found

    def _shared_out(self, made: _Run, done: _Run) -> dict[int, int] | None:
        """The operation of each of backward's blocks, where it is certain; None if number or sizes contradict."""
        operations = self._instances(made.rows)
        name = self._names[made.name]
        most = _AT_MOST.get(name)
        full = None if most is None else most * len(operations)
        if full is not None and len(done.rows) > full:
            return None
        if most is not None and len(done.rows) == full:
            shared = {row: operations[place // most] for place, row in enumerate(done.rows)}
            return shared if self._fits(name, operations, done.rows, most) else None
        return dict.fromkeys(done.rows, operations[0]) if self._is_one_line(operations) else {}

    def _fits(self, name: str, operations: Sequence[int], rows: Sequence[int], share: int) -> bool:
        """Whether the sizes of gradients can be those of the operations' inputs."""
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

    def _is_one_line(self, operations: Sequence[int]) -> bool:
        return len({int(self._call[self._stack[row]]) for row in operations}) == 1


def _runs(blocks: Sequence[tuple[int, int]], wanted: set[int]) -> list[_Run]:
    runs: list[_Run] = []
    for row, name in blocks:
        if name in wanted:
            if not runs or runs[-1].name != name:
                runs.append(_Run(name))
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
