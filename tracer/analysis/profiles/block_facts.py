"""What is known of every block before it is said what it is: the columns that the table of rules looks at."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.backward_passes import backward_passes, outermost_calls, records_grad
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.collectives import given_to_reducer
from tracer.analysis.profiles.conditions import NONE, Conditions
from tracer.analysis.profiles.left_gradients import (
    BLOCK_BYTES,
    ELEMENT_BYTES,
    freed_by_zero_grad,
    met_a_step,
    of_gradients_sizes,
)
from tracer.analysis.profiles.observed_storages import DeviceRecording
from tracer.analysis.profiles.storage_uses import StorageUses, storage_uses
from tracer.analysis.profiles.time_spans import enclosing, merged
from tracer.analysis.profiles.torch_categories import Categories, Category
from tracer.arrays import Bool, Bools, ColumnTable, Int, Ints, PerAllocation, PerBlock, PerKey, PerOp, at
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording
from tracer.capture.torch_names import BYTES, COLLECTIVE_OPERATORS, RECURRENT_OPERATORS, is_accumulate_grad

_Value = TypeVar("_Value", bound=np.generic)

_FOREVER = np.iinfo(np.int64).max
_SMALL = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Facts(Conditions, ColumnTable):
    """The facts that the rules look at, columns [B]; -1 is none. Conditions of numbers are in `Conditions`."""

    role: PerBlock[Int]  # `Role` of the strongest observation of a live tensor at the block's address
    is_reached: PerBlock[Bool]  # There before the recording, where a walk found a tensor that Python can reach
    made: PerBlock[Int]  # `Phase` in which a recorded allocation made it; -1 for what was not seen being made
    is_made_unseen: PerBlock[Bool]  # Made during the recording, where the profiler does not record
    freed: PerBlock[Int]  # `Phase` of the free; -1 where it lives on
    outlived_step: PerBlock[Bool]  # Freed in a later step than it was made in, or never
    has_tensor: PerBlock[Bool]  # An operator saw it as a tensor
    freed_by_maker: PerBlock[Bool]  # The operator that made it freed it
    is_listed: PerBlock[Bool]  # A module or an optimizer that was called listed it, as what `category` says
    is_gradient: PerBlock[Bool]  # AccumulateGrad made or took it, and it is as long as a parameter
    # An optimizer's `zero_grad` freed it, and the operator that made it ran with gradients off.
    freed_by_zero_grad: PerBlock[Bool]
    # Alive when an optimizer's step began, the next one behind the backward pass that made it.
    meets_step: PerBlock[Bool]
    # As large as what AccumulateGrad took in that pass, and no more of that size outlived it.
    is_of_gradients_size: PerBlock[Bool]
    is_recomputed: PerBlock[Bool]  # Made by a module that ran again inside backward
    category: PerBlock[Int]
    names_no_parameter: PerBlock[Bool]  # Nothing in the whole recording was listed or observed as a parameter
    is_computed: PerBlock[Bool]  # Made by a module or out of other tensors, as in `StorageUses`
    is_source: PerBlock[Bool]  # Data that the loop got from outside, as in `StorageUses`
    is_trained: PerBlock[Bool]  # As in `StorageUses`
    is_target: PerBlock[Bool]  # As in `StorageUses`
    is_over: PerBlock[Bool]  # Made before the step in which the peak is, and not used by any operator since that began
    knows_uses: PerBlock[Bool]  # Operators' tensors were recorded, so that "not used" means something
    used_by_backward: PerBlock[Bool]  # An autograd node used it or let go of it
    used_by_later_backward: PerBlock[Bool]  # Made in one backward pass with gradients on, and used in a later one
    outlived_backward: PerBlock[Bool]  # Alive when the next backward pass after it had ended
    # Alive until the next step, behind a backward pass of its own step, and freed there before a model was called; in
    # the last step, as large as such a block of the same operator.
    is_replaced: PerBlock[Bool]
    is_past_release: PerBlock[Bool]  # The next backward pass after it let go of what forward had made
    # Made in a call of a model that some backward pass went back to, or before one, outside of all calls.
    went_back: PerBlock[Bool]
    # Made by an operator that ran with gradients off, in a call of a model that did so throughout.
    is_without_grad: PerBlock[Bool]
    is_of_collective: PerBlock[Bool]  # Made where FSDP, DDP or a pipeline makes the buffers of what is sent
    is_given_to_reducer: PerBlock[Bool]  # Not seen being made, and DDP's reducer filled or read it
    is_dropout_state: PerBlock[Bool]  # Not seen being made, and the random state of a recurrent layer's dropout
    is_compiled_buffer: PerBlock[Bool]  # Generated code asked for it, and named it
    is_saved_by_compiled: PerBlock[Bool]  # It is a buffer that a compiled forward returns for backward
    # It is a buffer in which a compiled backward computes a result of forward's again.
    is_recomputed_by_compiled: PerBlock[Bool]
    is_taken_over_by_compiled: PerBlock[Bool]  # A compiled backward has put something else where that was


def facts_of(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    lifetimes: BlockLifetimes,
    category: PerBlock[Int],
    known: KnownStorages | None,
    time_ns: int,
) -> Facts:
    """The columns of facts that the rules look at."""
    return _Finder(recording, attribution, lifetimes, storage_uses(recording, categories, attribution)).facts(
        category, known, time_ns
    )


class _Finder:
    def __init__(
        self, recording: Recording, attribution: Attribution, lifetimes: BlockLifetimes, uses: StorageUses
    ) -> None:
        self.recording, self.attribution, self.lifetimes, self.uses = recording, attribution, lifetimes, uses
        self.allocation: PerBlock[Int] = lifetimes.allocation
        self.freed_by = _freed_by(lifetimes)
        self.made_ns = at(recording.allocations.time_ns, self.allocation, NONE)
        self.freed_ns = at(recording.allocations.time_ns, self.freed_by, _FOREVER)
        self.maker = at(recording.allocations.op, self.allocation, NONE)
        self.passes = backward_passes(recording, attribution)

    def facts(self, category: PerBlock[Int], known: KnownStorages | None, time_ns: int) -> Facts:
        recording, lifetimes, uses = self.recording, self.lifetimes, self.uses
        phase, step = self.attribution.allocation_phase, self.attribution.allocation_step
        roles = known.role if known is not None else np.empty(0, np.int64)
        freer = at(recording.allocations.op, self.freed_by, NONE)
        records = records_grad(recording)
        freed_inside = self._freed_inside_compiled()
        went_back, is_without_grad = self._calls(records)
        names_none = not len(recording.parameter_keys) and not (roles == Role.PARAMETER).any()
        return Facts(
            role=at(roles, lifetimes.observed_as, NONE),
            is_reached=self._is_reached(known),
            made=at(phase, self.allocation, NONE),
            is_made_unseen=lifetimes.made_unseen,
            freed=at(phase, self.freed_by, NONE),
            outlived_step=(self.freed_by < 0) | (at(step, self.freed_by, NONE) > at(step, self.allocation, NONE)),
            has_tensor=lifetimes.key >= 0,
            freed_by_maker=(self.maker >= 0) & (self.maker == freer),
            is_listed=self._is_listed(category),
            is_gradient=(self._was_accumulated() | self._in_accumulate_grad()) & ~self._is_of_another_leaf(roles),
            freed_by_zero_grad=freed_by_zero_grad(recording, self.freed_ns) & ~at(records, self.maker, False),
            meets_step=met_a_step(recording, self.passes, self.made_ns, self.freed_ns),
            is_of_gradients_size=of_gradients_sizes(recording, lifetimes, self.passes, self.made_ns, self.freed_ns),
            is_recomputed=at(self.attribution.op_recomputed, self.maker, False),
            category=category,
            names_no_parameter=np.full(len(self.allocation), names_none),
            is_computed=self._of_key(uses.is_computed),
            is_source=self._of_key(uses.is_source),
            is_trained=self._of_key(uses.is_trained),
            is_target=self._of_key(uses.is_target),
            is_over=self._is_over(time_ns),
            knows_uses=np.full(len(self.allocation), recording.flow.has_uses),
            used_by_backward=self._of_key(uses.used_by_backward),
            used_by_later_backward=self._used_by_later_backward(records),
            outlived_backward=self._outlived_backward(),
            is_replaced=self._is_replaced(),
            is_past_release=self._is_past_release(phase),
            went_back=went_back,
            is_without_grad=is_without_grad,
            is_of_collective=at(self.attribution.allocation_is_collectives, self.allocation, False),
            is_given_to_reducer=(self.allocation < 0) & self._of_key(given_to_reducer(recording)),
            is_dropout_state=(self.allocation < 0) & self._of_key(dropout_states(recording)),
            is_compiled_buffer=self._of_origin("is_buffer"),
            is_saved_by_compiled=self._of_origin("is_saved") & ~freed_inside,
            is_recomputed_by_compiled=self._of_origin("is_recomputed"),
            is_taken_over_by_compiled=self._of_origin("is_taken_over"),
        )

    def _is_reached(self, known: KnownStorages | None) -> PerBlock[Bool]:
        """[B] whether it is from before, and a walk found a tensor there."""
        device = DeviceRecording(self.recording, known, self.lifetimes.device)
        rows = device.observations_before
        held = device.known.address[rows[device.known.role[rows] == Role.HELD]]
        is_from_before = (self.allocation < 0) & ~self.lifetimes.made_unseen
        return np.asarray(is_from_before & np.isin(self.lifetimes.address, held), np.bool_)

    def _of_origin(self, name: str) -> PerBlock[Bool]:
        """[B] a truth of the compiled origins, by name."""
        origins = self.attribution.origins
        return at(origins.column(name) if origins is not None else np.empty(0, np.bool_), self.allocation, False)

    def _freed_inside_compiled(self) -> PerBlock[Bool]:
        origins = self.attribution.origins
        if origins is None:
            return np.zeros(len(self.allocation), np.bool_)
        return np.asarray(self.freed_ns <= at(origins.invocation_end_ns, self.allocation, NONE), np.bool_)

    def _of_key(self, column: PerKey[Bool]) -> PerBlock[Bool]:
        return at(column, self.lifetimes.key, False)

    def _is_listed(self, category: PerBlock[Int]) -> PerBlock[Bool]:
        """By the storage itself: torch's categories go by ids, and what is resized shares its id with others."""
        recording, key = self.recording, self.lifetimes.key
        listed = {
            Category.PARAMETER: recording.parameter_keys,
            Category.OPTIMIZER_STATE: recording.optimizer_state_keys,
            Category.GRADIENT: recording.gradient_keys,
        }
        is_listed: PerBlock[Bool] = np.zeros(len(key), bool)
        for which, keys in listed.items():
            is_listed |= (category == which) & np.isin(key, keys)
        # A gradient from before may be freed without a record, and its number be another block's, of any size.
        of_parameters = self.lifetimes.size_bytes[np.isin(key, recording.parameter_keys)]
        if recording.devices[self.lifetimes.device] == "cpu" and len(of_parameters):
            is_listed &= (category != Category.GRADIENT) | np.isin(self.lifetimes.size_bytes, of_parameters)
        return is_listed

    def _was_accumulated(self) -> PerBlock[Bool]:
        """[B] whether AccumulateGrad was given it: that a module listed a gradient at its address says nothing.

        What lay there before the recording may have been freed without a record, and its number gone to this block.
        """
        recording, edges = self.recording, self.recording.flow
        rows = recording.ops_named(is_accumulate_grad)
        spans = merged(recording.ops.start_ns[rows], recording.ops.end_ns[rows])
        inside = (enclosing(*spans, edges.node_time_ns) >= 0)[edges.edge_node]
        keys = np.intersect1d(edges.edge_key[inside], recording.gradient_keys)
        return np.isin(self.lifetimes.key, keys)

    def _in_accumulate_grad(self) -> PerBlock[Bool]:
        """[B] whether AccumulateGrad itself made it; what its hooks call is theirs."""
        recording, attribution = self.recording, self.attribution
        accumulates = recording.is_text(is_accumulate_grad)
        node = at(attribution.op_node, self.maker, NONE)
        name = at(recording.ops.name, node, NONE)
        call, call_of_node = at(recording.ops.call, self.maker, NONE), at(recording.ops.call, node, NONE)
        return np.asarray(accumulates[name] & (call == call_of_node), np.bool_)

    def _is_of_another_leaf(self, roles: Ints) -> PerBlock[Bool]:
        """[B] whether it has no parameter's length, as where the gradient of an input is taken.

        One that no operator was given has a length for each size of its elements. Sharded parameters are gathered to
        lengths of their own: where there are collectives, nothing is said.
        """
        recording, lifetimes = self.recording, self.lifetimes
        of_parameter = np.isin(lifetimes.key, recording.parameter_keys) | (
            at(roles, lifetimes.observed_as, NONE) == Role.PARAMETER
        )
        if not of_parameter.any() or any(text.startswith(COLLECTIVE_OPERATORS) for text in recording.strings):
            return np.zeros(len(self.allocation), np.bool_)
        lengths = np.array([prod(shapes[0]) if shapes else NONE for shapes in recording.shapes] + [NONE], np.int64)
        length = lengths[at(recording.keys.shape, lifetimes.key, NONE)]
        size_bytes, elements = lifetimes.size_bytes, np.array(ELEMENT_BYTES)[:, None]
        sizes = np.unique([elements * length[of_parameter], elements * (size_bytes[of_parameter] // elements)])
        # An accelerator's allocator rounds up, and hands out a whole block where little would be left of it.
        slack = (
            0 if recording.devices[lifetimes.device] == "cpu" else np.where(size_bytes > _SMALL, _SMALL, BLOCK_BYTES)
        )
        next_below = np.searchsorted(sizes, size_bytes, side="right") - 1
        is_alike = (next_below >= 0) & (size_bytes - sizes[next_below] <= slack)
        return np.asarray(np.where(length == NONE, ~is_alike, ~np.isin(length, length[of_parameter]) & ~is_alike))

    def _is_over(self, time_ns: int) -> PerBlock[Bool]:
        """[B] alive at the moment, and last used before the step began that the moment is in."""
        starts = self.recording.step_starts_ns
        start_ns = int(starts[starts <= time_ns].max(initial=NONE))
        last_ns = at(self.uses.last_used_ns, self.lifetimes.key, _FOREVER)
        # What compiled code reads, no operator reads: of storages from before it says nothing that none did.
        is_unseen_use = (last_ns < 0) & (self.made_ns < 0) & (self.attribution.origins is not None)
        is_of_before = (self.made_ns < start_ns) & (last_ns < start_ns) & ~is_unseen_use
        return np.asarray((self.freed_ns > time_ns) & is_of_before, np.bool_)

    def _used_by_later_backward(self, records: PerOp[Bool]) -> PerBlock[Bool]:
        made_in = enclosing(*self.passes, self.made_ns)
        used_in = enclosing(*self.passes, at(self.uses.last_used_by_backward_ns, self.lifetimes.key, NONE))
        return np.asarray((made_in >= 0) & (used_in > made_in) & at(records, self.maker, False), np.bool_)

    def _outlived_backward(self) -> PerBlock[Bool]:
        start_ns, end_ns = self.passes
        last = np.searchsorted(start_ns, self.made_ns, side="right")
        return np.asarray(self.freed_ns > np.append(end_ns, _FOREVER)[last], np.bool_)

    def _is_replaced(self) -> PerBlock[Bool]:
        step_ns, (start_ns, end_ns) = self.recording.step_starts_ns, self.passes
        calls_ns = np.sort(outermost_calls(self.recording, self.attribution).start_ns)
        following = np.searchsorted(start_ns, self.made_ns, side="right")
        used_ns, let_go_ns = np.append(start_ns, _FOREVER)[following], np.append(end_ns, _FOREVER)[following]
        made_in = np.searchsorted(step_ns, self.made_ns, side="right")
        of_step = (self.made_ns >= 0) & (made_in == np.searchsorted(step_ns, used_ns, side="right"))
        call_ns = np.append(calls_ns, _FOREVER)[np.searchsorted(calls_ns, let_go_ns, side="right")]
        freed_in = np.searchsorted(step_ns, self.freed_ns, side="right")
        is_gone = of_step & (freed_in == made_in + 1) & (self.freed_ns < call_ns)
        # At the end of the recording the last batch is still there.
        name = at(self.recording.ops.name, self.maker, NONE)
        alike = self.lifetimes.size_bytes * (len(self.recording.strings) + 1) + name
        is_last = of_step & (self.freed_ns == _FOREVER) & (call_ns == _FOREVER) & np.isin(alike, alike[is_gone])
        return np.asarray(is_gone | is_last, np.bool_)

    def _is_past_release(self, phase: PerAllocation[Int]) -> PerBlock[Bool]:
        start_ns, end_ns = self.passes
        of_forward = at(phase, self.allocation, NONE) == Phase.FORWARD
        let_go_in = enclosing(start_ns, end_ns, self.freed_ns[of_forward])
        releases: Bools = np.zeros(len(start_ns) + 1, np.bool_)
        releases[let_go_in[let_go_in >= 0]] = True
        return np.asarray(releases[np.searchsorted(start_ns, self.made_ns, side="right")], np.bool_)

    def _calls(self, records: PerOp[Bool]) -> tuple[PerBlock[Bool], PerBlock[Bool]]:
        """[B] whether a backward pass went back to where it was made, and whether gradients were off there."""
        calls = outermost_calls(self.recording, self.attribution)
        call = enclosing(calls.start_ns, calls.end_ns, self.made_ns)
        start_ns, _ = self.passes
        following = np.searchsorted(start_ns, self.made_ns, side="right")
        is_followed = (following < len(start_ns)) & (self.made_ns >= 0)
        given = np.array([*(len(shapes) > 0 for shapes in self.recording.shapes), False], np.bool_)
        is_given = given[at(self.recording.ops.input_shapes, self.maker, NONE)]
        off = is_given & ~at(records, self.maker, False)
        return (
            np.where(call >= 0, at(calls.went_back, call, False), is_followed),
            np.where(call >= 0, ~at(calls.records_grad, call, True), off) & (self.maker >= 0),
        )


def _freed_by(lifetimes: BlockLifetimes) -> PerBlock[Int]:
    """[B] row of the free in `Recording.allocations`, or -1 where the block lives on."""
    end = len(lifetimes.events)
    lives_on = lifetimes.freed_at >= end
    return np.where(lives_on, NONE, lifetimes.events[np.where(lives_on, 0, lifetimes.freed_at)] if end else NONE)


def dropout_states(recording: Recording) -> PerKey[Bool]:
    """[K] whether it is bytes that a recurrent layer was given: its other tensors are floats.

    The reserve that forward leaves for backward is bytes as well; but that the layer makes itself.
    """
    keys, edges, ops = recording.keys, recording.flow, recording.ops
    rows = recording.ops_named(RECURRENT_OPERATORS.__contains__)
    inside = enclosing(*merged(ops.start_ns[rows], ops.end_ns[rows]), edges.node_time_ns) >= 0
    is_given = np.zeros(len(keys.id), np.bool_)
    is_given[edges.edge_key[inside[edges.edge_node] & ~edges.edge_allocated]] = True
    is_bytes = recording.is_text(BYTES.__eq__)
    return np.asarray(is_given & is_bytes[keys.dtype], np.bool_)
