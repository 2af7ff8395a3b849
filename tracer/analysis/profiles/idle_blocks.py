"""Blocks that are alive at the peak although nothing uses them any more, and what keeps each: columns for `waste`.

Steps are alike, and of the first in a recording least is known: what it finds was made before. So of all peaks that are
as high as the highest, but for a hundredth, the last step's is looked at.

A block is idle if no operator uses it from the operator in which the peak is until the block is freed, or the cycle
ends. What was made in an operator that is still at work is not.

Shapes: I blocks alive at the peak.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracer.analysis.kinds import Evidence, FactsOf, Kind
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.block_facts import Facts
from tracer.analysis.profiles.findings import CycleFindings
from tracer.analysis.profiles.peak import peak_position
from tracer.analysis.profiles.time_spans import TimeSpans, enclosing, merged
from tracer.arrays import Bool, Bools, Int, Ints, PerBlock, at

_FOREVER = np.iinfo(np.int64).max
_NEVER = -1
_ZEROING = ("aten::zero_", "aten::_foreach_zero_")
_CONVERTING = ("aten::to", "aten::_to_copy", "aten::float", "aten::type")
_OF_LOSSES = ("aten::cross_entropy_loss", "aten::log_softmax", "aten::_log_softmax", "aten::nll_loss_nd")
_NARROW = ("bfloat16", "float16", "c10::BFloat16", "c10::Half")
_WIDE = ("float32", "float")
# Known objects of the training, and what is no tensor.
_LASTING = (
    Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE, Kind.WORKSPACE, Kind.COMMUNICATION, Kind.KV_CACHE
)  # fmt: skip
_NO_COPIES = (Kind.OPTIMIZER_STATE, Kind.GRADIENT, Kind.WORKSPACE, Kind.COMMUNICATION, Kind.KV_CACHE)
_ENOUGH_OF_A_COPY = 0.9
_AS_HIGH = 0.99
_LEFT_BEHIND = 0.5  # Of what a backward pass used: more than that stays only if its graph does


def last_peak(cycle: CycleFindings) -> int:
    """Position in `BlockLifetimes.events` of the peak of the last step that is as high as any, but for a hundredth."""
    lifetimes = cycle.lifetimes
    total = lifetimes.allocator_bytes
    step = cycle.attribution.allocation_step[lifetimes.events]
    peak = peak_position(lifetimes)
    for number in range(len(cycle.attribution.step_names) - 1, -1, -1):
        rows = np.flatnonzero(step == number)
        if len(rows) and total[rows].max() >= _AS_HIGH * total[peak]:
            return int(rows[np.argmax(total[rows])])
    return peak


truth, number = FactsOf["IdleBlocks"].truth, FactsOf["IdleBlocks"].number


@dataclass(frozen=True, eq=False)
class IdleBlocks:
    """Facts for the rules of `waste`: blocks alive at a cycle's peak, columns [I]; -1 is none.

    In a cycle that was cut short the future of its last step is not known: there only what is from earlier steps can be
    idle.
    """

    cycle: CycleFindings

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def facts(self) -> Facts:
        """Facts of all blocks [B]."""
        cycle = self.cycle
        parts = (cycle.recording, cycle.categories, cycle.attribution, cycle.lifetimes, cycle.blocks.torch_category)
        return Facts(*parts, None, self.peak_ns)

    @cached_property
    def position(self) -> int:
        """Position of the peak in `BlockLifetimes.events`."""
        return last_peak(self.cycle)

    @property
    def event(self) -> int:
        """Its row in `Recording.allocations`."""
        return int(self.cycle.lifetimes.events[self.position])

    @property
    def peak_ns(self) -> int:
        """Its time."""
        return int(self.cycle.recording.allocations.time_ns[self.event])

    @cached_property
    def busy_since_ns(self) -> int:
        """Start of the outermost operator around the peak, which may use its inputs until it ends."""
        ops, op = self.cycle.recording.ops, int(self.cycle.recording.allocations.op[self.event])
        if op < 0:
            return self.peak_ns
        while ops.parent[op] >= 0:
            op = int(ops.parent[op])
        return int(ops.start_ns[op])

    block = number(lambda i: i.cycle.lifetimes.alive_at(i.position))  # Row in `CycleFindings.blocks`
    key = number(lambda i: i.cycle.lifetimes.key[i.block])
    kind = number(lambda i: i.cycle.blocks.kind[i.block])
    made_ns = number(lambda i: i.facts.made_ns[i.block])
    freed_ns = number(lambda i: i.facts.freed_ns[i.block])
    last_used_ns = number(lambda i: at(i.facts.uses.last_used_ns, i.key, _NEVER))
    edge_ns = number(lambda i: i.cycle.recording.flow.node_time_ns[i.cycle.recording.flow.edge_node])  # [X]
    # Made in an earlier step than that of the peak, or before
    is_from_earlier = truth(lambda i: i.facts.step[i.block] < int(i.cycle.attribution.allocation_step[i.event]))
    # All of the step in which it was made was recorded, and so what it was for
    is_whole = truth(lambda i: i.is_from_earlier | np.bool_(i.cycle.is_whole))
    outlives_step = truth(lambda i: i.facts.outlived_step[i.block])  # It lives on behind the end of its step
    # A graph from before the recording keeps it for backward
    kept_by_graph = truth(lambda i: i.cycle.blocks.evidence[i.block] == Evidence.HELD_BY_GRAPH)
    # The outermost call of a model in which it was made, a row of `Facts.model_calls`
    call = number(lambda i: i.facts.call[i.block])

    @truth
    def in_evaluation(self) -> Bools:
        """That call ran with gradients on, no backward goes back to it, and it has ended before the block."""
        calls = self.facts.model_calls
        in_evaluation = (self.call >= 0) & at(calls.records_grad & ~calls.went_back, self.call, False)
        return in_evaluation & (self.freed_ns > at(calls.end_ns, self.call, _FOREVER)) & self.is_whole

    @truth
    def is_idle(self) -> Bools:
        """No operator uses it any more, and it is no parameter, buffer, state, gradient or scratch memory."""
        last_ns = self.last_used_ns
        is_other = ~np.isin(self.kind, (*_LASTING, Kind.GRADIENT))
        is_seen = ~self.facts.is_made_unseen[self.block] & ~self.is_of_compiled
        is_made = self.made_ns < self.busy_since_ns
        # What was never used may be for a later step: a batch that was made ahead.
        is_for_later = (last_ns < 0) & (self.made_ns >= 0) & (self.kind == Kind.INPUT)
        # What an earlier step has made and each step reads, as a data set is, is read again when the cycle is over.
        is_over = last_ns < np.where(self.is_from_earlier, self.facts.step_start_ns, self.busy_since_ns)
        return np.asarray(is_other & is_seen & is_made & is_over & self.is_whole & ~is_for_later, np.bool_)

    @truth
    def is_read_later(self) -> Bools:
        """Some block that the same operator made at the same line was used in a later step than its own.

        As a store is, of which each step takes something: whose turn has not come is idle and not waste.
        """
        blocks, lifetimes = self.cycle.blocks, self.cycle.lifetimes
        starts = self.cycle.recording.step_starts_ns
        made_in = np.searchsorted(starts, self.facts.made_ns, side="right")
        used_in = np.searchsorted(starts, at(self.facts.uses.last_used_ns, lifetimes.key, _NEVER), side="right")
        _, place = np.unique(
            np.stack([at(self.cycle.recording.ops.name, blocks.op, _NEVER), blocks.frame]), axis=1, return_inverse=True
        )
        place = place.reshape(-1)
        is_read = np.zeros(int(place.max(initial=-1)) + 1, np.bool_)
        is_read[place[(lifetimes.allocation >= 0) & (used_in > made_in)]] = True
        return np.asarray(is_read[place[self.block]] & (self.made_ns >= 0), np.bool_)

    @truth
    def is_of_compiled(self) -> Bools:
        """Of what compiled code allocates or reads, operators tell nothing."""
        origins = self.cycle.attribution.origins
        if origins is None:
            return np.zeros(len(self.block), np.bool_)
        allocation = self.cycle.lifetimes.allocation[self.block]
        return np.asarray((at(origins.row, allocation, _NEVER) >= 0) | (allocation < 0), np.bool_)

    @number
    def used_in(self) -> PerBlock[Int]:
        """The last backward pass that used each [B]."""
        uses = self.facts.uses
        return enclosing(
            *self.facts.passes, at(uses.last_ns(uses.reads & uses.of_backward), self.cycle.lifetimes.key, _NEVER)
        )

    # That pass left it there [B]
    is_left = truth(lambda i: (i.used_in >= 0) & (i.facts.freed_ns > at(i.facts.passes[1], i.used_in, _FOREVER)))
    outlives_backward = truth(lambda i: i.is_left[i.block])  # A backward pass used it, and left it there

    @truth
    def is_left_by_backward(self) -> Bools:
        """Used by a backward pass that left most bytes of the activations that it used, and several of them."""
        used_in = np.where(self.cycle.blocks.kind == Kind.ACTIVATION, self.used_in, _NEVER)
        is_left = (used_in >= 0) & self.is_left

        def of_passes(chosen: PerBlock[Bool], weight: PerBlock[Int]) -> Ints:
            sums: Ints = np.zeros(len(self.facts.passes[0]), np.int64)
            np.add.at(sums, used_in[chosen], weight[chosen])
            return sums

        sizes, ones = self.cycle.lifetimes.size_bytes, np.ones(len(used_in), np.int64)
        leaves_most: Bools = of_passes(is_left, sizes) > _LEFT_BEHIND * of_passes(used_in >= 0, sizes)
        leaves_most &= of_passes(is_left, ones) > 1
        return at(leaves_most, used_in[self.block], False)

    @truth
    def is_idle_gradient(self) -> Bools:
        """A gradient between the optimizer's use of it and its end, or the next backward pass if set to zero."""
        is_gradient = np.asarray(self.kind == Kind.GRADIENT, np.bool_)
        if not is_gradient.any():
            return is_gradient
        is_zeroing = enclosing(*self._spans_of(_ZEROING), self.edge_ns) >= 0
        edge_key = self.cycle.recording.flow.edge_key
        edges = np.flatnonzero(self.facts.uses.reads & np.isin(edge_key, self.key[is_gradient]))
        edges = edges[np.argsort(self.edge_ns[edges], kind="stable")]
        uses: dict[int, list[tuple[int, bool]]] = {}
        columns = (edge_key[edges], self.edge_ns[edges], is_zeroing[edges])
        for key, time_ns, zeroes in zip(*(column.tolist() for column in columns), strict=True):
            uses.setdefault(key, []).append((time_ns, zeroes))
        rows = zip(is_gradient.tolist(), self.key.tolist(), self.is_from_earlier.tolist(), strict=True)
        is_idle = [gradient and self._is_idle_now(uses.get(key, []), earlier) for gradient, key, earlier in rows]
        return np.array(is_idle, np.bool_)

    def _is_idle_now(self, uses: list[tuple[int, bool]], is_from_earlier: bool) -> bool:
        """By the uses of one gradient in their order: when, and whether that sets it to zero."""
        before = [zeroes for time_ns, zeroes in uses if time_ns < self.busy_since_ns]
        after = [zeroes for time_ns, zeroes in uses if time_ns >= self.busy_since_ns]
        if not after:
            return is_from_earlier
        # Steps are alike: what was last done to it in the cycle was done before the cycle, too.
        was_zeroed = before[-1] if before else uses[-1][1] and is_from_earlier
        return after[0] or was_zeroed

    def _spans_of(self, names: tuple[str, ...]) -> TimeSpans:
        ops, rows = self.cycle.recording.ops, self.cycle.recording.ops_named(names.__contains__)
        # A node has the time of its operator's beginning, which an end at the same time would leave out.
        return merged(ops.start_ns[rows], ops.end_ns[rows] + 1)

    @truth
    def is_unused_copy(self) -> Bools:
        """One of a set of tensors of the parameters' sizes that no operator of the cycle uses."""
        is_unused = np.zeros(len(self), np.bool_)
        if self.cycle.attribution.origins is not None:
            return is_unused
        used = self.last_used_ns >= 0
        sizes = self.cycle.lifetimes.size_bytes[self.block]
        weights = Counter(sizes[(self.kind == Kind.PARAMETER) & used].tolist())
        was_there = (self.made_ns < 0) | self.is_from_earlier
        others = ~used & was_there & ~np.isin(self.kind, _NO_COPIES)
        left = Counter(sizes[others].tolist())
        wanted: Counter[int] = Counter()
        while len(weights) > 1 and _bytes_of(weights & left) >= _ENOUGH_OF_A_COPY * _bytes_of(weights):
            wanted += weights & left
            left -= weights & left
        for row in np.flatnonzero(others).tolist():
            if wanted[int(sizes[row])]:
                wanted[int(sizes[row])] -= 1
                is_unused[row] = True
        return is_unused & ~self.facts.is_made_unseen[self.block]

    @truth
    def is_widened(self) -> Bools:
        """A float32 copy, made by a conversion from something in 16 bits, and read by a loss."""
        recording, flow = self.cycle.recording, self.cycle.recording.flow
        name = at(recording.ops.name, self.facts.maker[self.block], _NEVER)
        sets = (_CONVERTING, _WIDE, _NARROW)
        converts, is_wide, is_narrow = (recording.is_text(texts.__contains__) for texts in sets)
        dtype = recording.keys.dtype
        candidates = converts[name] & is_wide[at(dtype, self.key, _NEVER)]
        if not candidates.any():
            return candidates
        of_loss = enclosing(*self._spans_of(_OF_LOSSES), self.edge_ns) >= 0
        in_loss = self.facts.uses.keys_of(self.facts.uses.reads & of_loss)
        narrow_nodes = self.facts.uses.nodes_with(self.facts.uses.reads & is_narrow[dtype[flow.edge_key]])
        from_narrow = self.facts.uses.keys_of(flow.edge_allocated & narrow_nodes[flow.edge_node])
        in_forward = self.cycle.blocks.phase[self.block] == Phase.FORWARD
        return np.asarray(candidates & in_forward & at(in_loss & from_narrow, self.key, False), np.bool_)


def _bytes_of(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())
