"""Facts of every block of a recording, from which the table of rules decides its kind.

A fact is one function, of the name that rules know, computed when it is first asked for and kept.

Shapes: B blocks, K storages, O operators.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from tracer.arrays import Bool, Bools, Int, Ints, PerBlock, PerKey, at
from tracer.block_sizes import MIN_BLOCK_BYTES
from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.collectives import given_to_reducer
from tracer.blocks.from_recording.observed_storages import DeviceRecording
from tracer.blocks.from_recording.storage_uses import (
    OutermostCalls,
    StorageUses,
    backward_passes,
    outermost_calls,
    records_grad,
)
from tracer.blocks.from_recording.time_spans import TimeSpans, enclosing, merged
from tracer.blocks.from_recording.torch_categories import Categories, Category
from tracer.blocks.kinds import Kind
from tracer.blocks.rules import FactOf
from tracer.blocks.table import Phase
from tracer.capture.objects.known_storages import BATCH, KnownStorages, Role
from tracer.capture.recording import Recording
from tracer.capture.torch_names import (
    BYTES,
    COLLECTIVE_OPERATORS,
    ENGINE_PREFIX,
    OPTIMIZER_PREFIXES,
    RECURRENT_OPERATORS,
    ZERO_GRAD_PREFIX,
    is_accumulate_grad,
)

NONE = -1
_FOREVER = np.iinfo(np.int64).max
_SMALL = 1 << 20
_ADDS = ("aten::add_", "aten::add")
_ELEMENT_BYTES = (1, 2, 4, 8, 16)
_MOST_ELEMENTS = 1 << 58  # More than any memory has; a file may say what it likes
KIND_OF_ROLE = {
    Role.PARAMETER: Kind.PARAMETER,
    Role.BUFFER: Kind.BUFFER,
    Role.GRADIENT: Kind.GRADIENT,
    Role.OPTIMIZER_STATE: Kind.OPTIMIZER_STATE,
    Role.INPUT: Kind.INPUT,
    Role.ARGUMENT: Kind.INPUT,
    Role.KV_CACHE: Kind.KV_CACHE,
}

truth = FactOf["Facts", Bool]
number = FactOf["Facts", Int]


@dataclass(frozen=True, slots=True)
class FailedStep:
    """The place at which the last step of a recording ran out of memory."""

    position: int  # Of the last event until then in `BlockLifetimes.events`
    phase: Phase  # The loss is FORWARD
    held_alone: frozenset[int] = frozenset()  # Addresses of what Python had then, and no graph; empty where unknown


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts of the blocks of one device, columns [B]."""

    recording: Recording
    categories: Categories
    attribution: Attribution
    lifetimes: BlockLifetimes
    category: PerBlock[Int]  # Torch's, at the moment
    known: KnownStorages | None
    time_ns: int  # The moment that is asked about, that of the peak
    failed: FailedStep | None = None

    def __len__(self) -> int:
        return len(self.category)

    # ---- what facts are made of --------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> DeviceRecording:
        """Observations of live tensors on the device."""
        return DeviceRecording(self.recording, self.known, self.lifetimes.device)

    @cached_property
    def uses(self) -> StorageUses:
        """Uses of each storage by operators."""
        return StorageUses(self.recording, self.categories, self.attribution)

    @cached_property
    def passes(self) -> TimeSpans:
        """Spans of backward passes."""
        return backward_passes(self.recording, self.attribution)

    def pass_of(self, times_ns: Ints) -> PerBlock[Int]:
        """The backward pass that each time lies in, -1 where none."""
        return enclosing(*self.passes, times_ns)

    @cached_property
    def model_calls(self) -> OutermostCalls:
        """The calls of whole models."""
        return outermost_calls(self.recording, self.attribution)

    def spans(self, prefix: str) -> TimeSpans:
        """Spans of the regions whose names begin so."""
        spans, rows = self.recording.spans, self.recording.spans_named(prefix)
        return merged(spans.start_ns[rows], spans.end_ns[rows])

    def freed_in(self, prefix: str) -> PerBlock[Bool]:
        """Return True for each block that was freed in a region whose name begins so."""
        return np.asarray(enclosing(*self.spans(prefix), self.freed_ns) >= 0, np.bool_)

    def of_key(self, column: PerKey[Bool]) -> PerBlock[Bool]:
        """A fact of the block's storage, for each block."""
        return at(column, self.lifetimes.key, False)

    def of_origin(self, name: str) -> PerBlock[Bool]:
        """A column of the places where compiled code makes blocks, for each block."""
        origins = self.attribution.origins
        return at(origins.column(name) if origins is not None else np.empty(0, np.bool_), self.allocation, False)

    @number
    def freed_by(self) -> PerBlock[Int]:
        """Row of the free in `Recording.allocations`, none where the block lives on."""
        lifetimes, end = self.lifetimes, len(self.lifetimes.events)
        return at(lifetimes.events, np.where(lifetimes.freed_at >= end, NONE, lifetimes.freed_at), NONE)

    allocation = number(lambda f: f.lifetimes.allocation)  # Row in `Recording.allocations`
    maker = number(lambda f: at(f.recording.allocations.op, f.allocation, NONE))  # Row in `Recording.ops`
    step = number(lambda f: at(f.attribution.allocation_step, f.allocation, NONE))
    made_with_grad = truth(lambda f: at(records_grad(f.recording), f.maker, False))
    made_ns = number(lambda f: at(f.recording.allocations.time_ns, f.allocation, NONE))
    made_in_pass = number(lambda f: f.pass_of(f.made_ns))  # The backward pass
    freed_ns = number(lambda f: at(f.recording.allocations.time_ns, f.freed_by, _FOREVER))
    # Row in `model_calls` of the call that it was made in
    call = number(lambda f: enclosing(f.model_calls.start_ns, f.model_calls.end_ns, f.made_ns))

    # ---- live tensors at the block's address -------------------------------------------------------------------------

    # `Role` of the strongest observation
    role = number(lambda f: at(f.device.known.role, f.lifetimes.observed_as, NONE))
    has_no_role = truth(lambda f: f.role == NONE)
    # The training has a name for it
    was_named = truth(lambda f: np.isin(f.role, (NONE, Role.SAVED, Role.WORKSPACE), invert=True))
    was_saved_before = truth(lambda f: f.role == Role.SAVED)  # A graph from before the recording keeps it
    is_librarys = truth(lambda f: f.role == Role.WORKSPACE)  # It has the size of a library's workspace there
    is_observed_argument = truth(lambda f: f.role == Role.ARGUMENT)  # Nobody said that it is the batch
    is_observed_gradient = truth(lambda f: f.role == Role.GRADIENT)
    # Known as a parameter or an argument, thus only while the program holds it as such
    is_parameter_or_argument = truth(lambda f: np.isin(f.role, (Role.PARAMETER, Role.ARGUMENT)))

    @truth
    def is_observed_batch(self) -> PerBlock[Bool]:
        """A model was called with it, or it is a leaf that nobody trains."""
        return np.asarray(np.isin(self.role, BATCH) | ((self.role == Role.LEAF) & ~self.is_trained), np.bool_)

    @number
    def kind_of_role(self) -> PerBlock[Int]:
        """An unobserved leaf is a parameter if it receives a gradient, else an input."""
        of_role = np.full(max(Role) + 1, Kind.UNKNOWN, np.int64)
        for role, kind in KIND_OF_ROLE.items():
            of_role[role] = kind
        of_leaf = np.where(self.is_trained, int(Kind.PARAMETER), int(Kind.INPUT))
        return np.where(self.role == Role.LEAF, of_leaf, of_role[self.role])

    @truth
    def is_reached(self) -> PerBlock[Bool]:
        """Blocks from before the recording where a walk found a tensor that Python can reach."""
        known, rows = self.device.known, self.device.observations_before
        held = known.address[rows[known.role[rows] == Role.HELD]]
        return (self.allocation < 0) & ~self.is_made_unseen & np.isin(self.lifetimes.address, held)

    # ---- when it was made and freed ----------------------------------------------------------------------------------

    # `Phase` in which a recorded allocation made it; none for what was not seen being made
    made = number(lambda f: at(f.attribution.allocation_phase, f.allocation, NONE))
    not_seen_made = truth(lambda f: f.made == NONE)  # From before, or where the profiler does not record
    in_forward = truth(lambda f: f.made == Phase.FORWARD)
    in_backward = truth(lambda f: f.made == Phase.BACKWARD)
    in_optimizer = truth(lambda f: f.made == Phase.OPTIMIZER)
    in_loop = truth(lambda f: f.made == Phase.OTHER)
    is_made_unseen = truth(lambda f: f.lifetimes.made_unseen)  # During the recording, and not seen
    # `Phase` of the free; none where it lives on
    freed = number(lambda f: at(f.attribution.allocation_phase, f.freed_by, NONE))
    freed_in_backward = truth(lambda f: f.freed == Phase.BACKWARD)
    freed_in_loop = truth(lambda f: f.freed == Phase.OTHER)

    # By the same operator
    freed_by_maker = truth(lambda f: (f.maker >= 0) & (f.maker == at(f.recording.allocations.op, f.freed_by, NONE)))
    # An optimizer's `zero_grad` freed it, and the operator that made it ran with gradients off
    freed_by_zero_grad = truth(lambda f: f.freed_in(ZERO_GRAD_PREFIX) & ~f.made_with_grad)
    # Freed in a later step than it was made in, or never
    outlived_step = truth(lambda f: (f.freed_by < 0) | (at(f.attribution.allocation_step, f.freed_by, NONE) > f.step))

    @truth
    def meets_step(self) -> PerBlock[Bool]:
        """Alive when an optimizer's step began, the next one behind the backward pass that made it."""
        begins, _ = self.spans(OPTIMIZER_PREFIXES[0])
        ended_ns = at(self.passes[1], self.made_in_pass, _FOREVER)
        begin_ns = np.append(begins, _FOREVER)[np.searchsorted(begins, ended_ns, side="left")]
        return np.asarray((self.made_in_pass >= 0) & (self.freed_ns > begin_ns), np.bool_)

    @truth
    def outlived_backward(self) -> PerBlock[Bool]:
        """Alive when the next backward pass after it had ended."""
        start_ns, end_ns = self.passes
        last = np.searchsorted(start_ns, self.made_ns, side="right")
        return np.asarray(self.freed_ns > np.append(end_ns, _FOREVER)[last], np.bool_)

    @truth
    def is_over(self) -> PerBlock[Bool]:
        """Alive at the moment, made before the step that it is in, and not used by any operator since that began."""
        starts_ns = self.recording.step_starts_ns
        start_ns = starts_ns[starts_ns <= self.time_ns].max(initial=NONE)
        last_ns = at(self.uses.last_used_ns, self.lifetimes.key, _FOREVER)
        # Compiled code reads without an operator: where there is some, a storage from before may have been read so.
        is_unseen_use = (last_ns < 0) & (self.made_ns < 0) & (self.attribution.origins is not None)
        is_of_before = (self.made_ns < start_ns) & (last_ns < start_ns) & ~is_unseen_use
        return np.asarray((self.freed_ns > self.time_ns) & is_of_before, np.bool_)

    @truth
    def is_replaced(self) -> PerBlock[Bool]:
        """Alive until the next step, behind a backward pass of its own step, and freed there before a model was called.

        In the last step, as large as such a block of the same operator.
        """
        step_ns, (start_ns, end_ns) = self.recording.step_starts_ns, self.passes
        calls_ns = np.sort(self.model_calls.start_ns)
        following = np.searchsorted(start_ns, self.made_ns, side="right")
        used_ns, released_ns = np.append(start_ns, _FOREVER)[following], np.append(end_ns, _FOREVER)[following]
        made_in = np.searchsorted(step_ns, self.made_ns, side="right")
        of_step = (self.made_ns >= 0) & (made_in == np.searchsorted(step_ns, used_ns, side="right"))
        call_ns = np.append(calls_ns, _FOREVER)[np.searchsorted(calls_ns, released_ns, side="right")]
        freed_in = np.searchsorted(step_ns, self.freed_ns, side="right")
        is_gone = of_step & (freed_in == made_in + 1) & (self.freed_ns < call_ns)
        # At the end of the recording the last batch is still there.
        name = at(self.recording.ops.name, self.maker, NONE)
        alike = self.lifetimes.size_bytes * (len(self.recording.strings) + 1) + name
        is_last = of_step & (self.freed_ns == _FOREVER) & (call_ns == _FOREVER) & np.isin(alike, alike[is_gone])
        return np.asarray(is_gone | is_last, np.bool_)

    @truth
    def is_past_release(self) -> PerBlock[Bool]:
        """The next backward pass after it let go of what forward had made."""
        start_ns, _ = self.passes
        released_in = self.pass_of(self.freed_ns[self.in_forward])
        releases: Bools = np.zeros(len(start_ns) + 1, np.bool_)
        releases[released_in[released_in >= 0]] = True
        return np.asarray(releases[np.searchsorted(start_ns, self.made_ns, side="right")], np.bool_)

    # ---- a step that failed ------------------------------------------------------------------------------------------

    def failed_in(self, phase: Phase) -> PerBlock[Bool]:
        """Blocks in use as the last step failed in this phase; none where none did."""
        is_there = self.failed is not None and self.failed.phase == phase
        position = self.failed.position if self.failed is not None else NONE
        alive = (self.lifetimes.made_at <= position) & (self.lifetimes.freed_at > position)
        return np.asarray(is_there & alive, np.bool_)

    @truth
    def awaits_backward(self) -> PerBlock[Bool]:
        """Blocks in use as a step failed, made for a backward that had not come to them.

        A failed backward is the last pass, and what was made between the one before and it is for it. Where forward or
        the loss failed, what was made since the last call of a model began is for a pass that never came.
        """
        start_ns, end_ns = (np.append(NONE, column) for column in self.passes)
        of_last_pass = (self.made_ns > end_ns[:-1].max(initial=NONE)) & (self.made_ns < start_ns[-1])
        called_ns = self.model_calls.start_ns.max(initial=NONE)
        since_call = (self.made_ns > max(called_ns, end_ns[-1])) & (called_ns >= 0)
        awaits = self.failed_in(Phase.BACKWARD) & of_last_pass | self.failed_in(Phase.FORWARD) & since_call
        return np.asarray(awaits, np.bool_)

    @truth
    def is_held_alone(self) -> PerBlock[Bool]:
        """In use as a backward failed, when Python had it and no graph: forward's own variables are gone by then."""
        held = self.failed.held_alone if self.failed is not None else ()
        return self.failed_in(Phase.BACKWARD) & np.isin(self.lifetimes.address, np.array([*held], np.int64))

    @truth
    def is_of_failed_optimizer(self) -> PerBlock[Bool]:
        """Blocks in use as an optimizer's step failed, made in that step, that its known state does not have."""
        knows_state = bool((self.role == Role.OPTIMIZER_STATE).any())
        is_last = self.step == self.step.max(initial=NONE)
        return np.asarray(self.failed_in(Phase.OPTIMIZER) & is_last & knows_state, np.bool_)

    @truth
    def is_unfinished(self) -> PerBlock[Bool]:
        """Made by the operator in which memory ended: what an operator has not returned yet is in no tensor.

        Scratch memory is what operators of its name, in the same phase, freed themselves in other calls, as large.
        """
        failed = self.failed
        brief = self.freed_by_maker & ~self.has_tensor
        if failed is None:
            return np.zeros(len(self), np.bool_)
        of_failure = brief & self.failed_in(failed.phase)
        name = at(self.recording.ops.name, self.maker, NONE)
        alike = np.stack([name, self.made, self.lifetimes.size_bytes], axis=1)
        scratch = set(map(tuple, alike[brief & ~of_failure & ~np.isin(self.maker, self.maker[of_failure])].tolist()))
        of_failure[of_failure] = [tuple(row) not in scratch for row in alike[of_failure].tolist()]
        return np.asarray(of_failure, np.bool_)

    # ---- who made it -------------------------------------------------------------------------------------------------

    # By a module that ran again inside backward
    is_recomputed = truth(lambda f: at(f.attribution.op_recomputed, f.maker, False))
    # Where FSDP, DDP or a pipeline makes the buffers of what is sent
    in_collective = truth(lambda f: at(f.attribution.allocation_is_collectives, f.allocation, False))

    @truth
    def went_back(self) -> PerBlock[Bool]:
        """Made in a call of a model that some backward pass went back to, or before one, outside of all calls."""
        start_ns, _ = self.passes
        is_followed = (np.searchsorted(start_ns, self.made_ns, side="right") < len(start_ns)) & (self.made_ns >= 0)
        return np.where(self.call >= 0, at(self.model_calls.went_back, self.call, False), is_followed)

    @truth
    def is_without_grad(self) -> PerBlock[Bool]:
        """Made by an operator that ran with gradients off, in a call of a model that did so throughout."""
        given = np.array([*(len(shapes) > 0 for shapes in self.recording.shapes), False], np.bool_)
        off = given[at(self.recording.ops.input_shapes, self.maker, NONE)] & ~self.made_with_grad
        return np.where(self.call >= 0, ~at(self.model_calls.records_grad, self.call, True), off) & (self.maker >= 0)

    is_compiled_buffer = truth(lambda f: f.of_origin("is_buffer"))  # Generated code asked for it, and named it

    @truth
    def is_saved_by_compiled(self) -> PerBlock[Bool]:
        """A compiled forward returns it for backward, and did not free it before it returned."""
        origins = self.attribution.origins
        end_ns = at(origins.invocation_end_ns, self.allocation, NONE) if origins is not None else NONE
        return self.of_origin("is_saved") & (self.freed_ns > end_ns)

    # A compiled backward computes a result of forward's again in it
    is_recomputed_by_compiled = truth(lambda f: f.of_origin("is_recomputed"))
    # A compiled backward has put something else where a saved buffer was
    is_taken_over_by_compiled = truth(lambda f: f.of_origin("is_taken_over"))

    # ---- what used it ------------------------------------------------------------------------------------------------

    has_tensor = truth(lambda f: f.lifetimes.key >= 0)  # An operator saw it as a tensor
    # Operators' tensors were recorded, so that "not used" means something
    knows_uses = truth(lambda f: np.full(len(f), f.recording.flow.has_uses))
    # As in `StorageUses`
    is_computed = truth(lambda f: f.of_key(f.uses.is_computed))
    is_source = truth(lambda f: f.of_key(f.uses.is_source))
    is_trained = truth(lambda f: f.of_key(f.uses.is_trained))
    is_target = truth(lambda f: f.of_key(f.uses.is_target))
    used_by_backward = truth(lambda f: f.of_key(f.uses.used_by_backward))

    @truth
    def used_by_later_backward(self) -> PerBlock[Bool]:
        """Made in one backward pass with gradients on, and used in a later one."""
        used_in = self.pass_of(at(self.uses.last_used_by_backward_ns, self.lifetimes.key, NONE))
        return (self.made_in_pass >= 0) & (used_in > self.made_in_pass) & self.made_with_grad

    # DDP's reducer filled or read what was not seen being made
    is_given_to_reducer = truth(lambda f: (f.allocation < 0) & f.of_key(given_to_reducer(f.recording)))
    # The random state of a recurrent layer's dropout, not seen being made
    is_dropout_state = truth(lambda f: (f.allocation < 0) & f.of_key(dropout_states(f.recording)))

    # ---- torch's data flow -------------------------------------------------------------------------------------------

    torch_says_parameter = truth(lambda f: f.category == Category.PARAMETER)
    torch_says_input = truth(lambda f: f.category == Category.INPUT)

    @number
    def kind_of_category(self) -> PerBlock[Int]:
        """Torch's categories have our kinds' names."""
        kinds = [Kind.__members__.get(category.name, Kind.UNKNOWN) for category in Category]
        return np.array(kinds, np.int64)[self.category]

    @truth
    def names_no_parameter(self) -> PerBlock[Bool]:
        """Nothing in the whole recording was listed or observed as a parameter."""
        return np.full(
            len(self), not len(self.recording.parameter_keys) and not (self.device.known.role == Role.PARAMETER).any()
        )

    @truth
    def is_listed(self) -> PerBlock[Bool]:
        """A module or an optimizer that was called listed it, as what `category` says.

        By the storage itself: torch's categories go by ids, and what is resized shares its id with others.
        """
        recording, key = self.recording, self.lifetimes.key
        listed = {
            Category.PARAMETER: recording.parameter_keys,
            Category.OPTIMIZER_STATE: recording.optimizer_state_keys,
            Category.GRADIENT: recording.gradient_keys,
        }
        is_listed: PerBlock[Bool] = np.zeros(len(key), bool)
        for which, keys in listed.items():
            is_listed |= (self.category == which) & np.isin(key, keys)
        # A gradient from before may be freed without a record, and its number be another block's, of any size.
        of_parameters = self.lifetimes.size_bytes[np.isin(key, recording.parameter_keys)]
        if self.device.is_cpu and len(of_parameters):
            is_listed &= (self.category != Category.GRADIENT) | np.isin(self.lifetimes.size_bytes, of_parameters)
        return is_listed

    # ---- gradients ---------------------------------------------------------------------------------------------------

    @truth
    def was_accumulated(self) -> PerBlock[Bool]:
        """AccumulateGrad was given it: that a module listed a gradient at its address says nothing.

        What lay there before the recording may have been freed without a record, and its number gone to this block.
        """
        recording, edges = self.recording, self.recording.flow
        rows = recording.ops_named(is_accumulate_grad)
        spans = merged(recording.ops.start_ns[rows], recording.ops.end_ns[rows])
        inside = (enclosing(*spans, edges.node_time_ns) >= 0)[edges.edge_node]
        keys = np.intersect1d(edges.edge_key[inside], recording.gradient_keys)
        return np.isin(self.lifetimes.key, keys)

    @truth
    def in_accumulate_grad(self) -> PerBlock[Bool]:
        """AccumulateGrad itself made it; what its hooks call is theirs."""
        recording = self.recording
        accumulates = recording.is_text(is_accumulate_grad)
        node = at(self.attribution.op_node, self.maker, NONE)
        name = at(recording.ops.name, node, NONE)
        call, call_of_node = at(recording.ops.call, self.maker, NONE), at(recording.ops.call, node, NONE)
        return np.asarray(accumulates[name] & (call == call_of_node), np.bool_)

    @truth
    def is_of_another_leaf(self) -> PerBlock[Bool]:
        """True for a block of no parameter's length, as where the gradient of an input is taken.

        One that no operator was given has a length for each size of its elements. Sharded parameters are gathered to
        lengths of their own: where there are collectives, nothing is said.
        """
        recording, lifetimes = self.recording, self.lifetimes
        of_parameter = np.isin(lifetimes.key, recording.parameter_keys) | (self.role == Role.PARAMETER)
        if not of_parameter.any() or any(text.startswith(COLLECTIVE_OPERATORS) for text in recording.strings):
            return np.zeros(len(self), np.bool_)
        numbers = [min(prod(shapes[0]), _MOST_ELEMENTS) if shapes else NONE for shapes in recording.shapes]
        lengths = np.array([*numbers, NONE], np.int64)
        length = lengths[at(recording.keys.shape, lifetimes.key, NONE)]
        size_bytes, elements = lifetimes.size_bytes, np.array(_ELEMENT_BYTES)[:, None]
        sizes = np.unique([elements * length[of_parameter], elements * (size_bytes[of_parameter] // elements)])
        # An accelerator's allocator rounds up, and hands out a whole block where little would be left of it.
        slack = 0 if self.device.is_cpu else np.where(size_bytes > _SMALL, _SMALL, MIN_BLOCK_BYTES)
        next_below = np.searchsorted(sizes, size_bytes, side="right") - 1
        is_alike = (next_below >= 0) & (size_bytes - sizes[next_below] <= slack)
        return np.asarray(np.where(length == NONE, ~is_alike, ~np.isin(length, length[of_parameter]) & ~is_alike))

    # AccumulateGrad made or took it, and it is as long as a parameter
    is_gradient = truth(lambda f: (f.was_accumulated | f.in_accumulate_grad) & ~f.is_of_another_leaf)
    # A parameter's, or one that backward makes on its way
    kind_of_gradient = number(lambda f: np.where(f.is_gradient, int(Kind.GRADIENT), int(Kind.AUTOGRAD_DETAIL)))

    @truth
    def is_of_gradients_size(self) -> PerBlock[Bool]:
        """Blocks as large as what AccumulateGrad took in their pass, of which no more than it took outlived the pass.

        What AccumulateGrad adds to a gradient that is there already does not stay. Where more blocks of a size outlive
        the pass than it took, some of them are no gradients, and nothing is said of any.
        """
        is_left, taken = np.zeros(len(self), np.bool_), self._taken()
        stayed = np.flatnonzero((self.made_in_pass >= 0) & (self.freed_ns > at(self.passes[1], self.made_in_pass, 0)))
        step = 1 if self.device.is_cpu else MIN_BLOCK_BYTES

        def num_taken(number: int, size: int) -> int:
            return sum(
                times
                for elements, times in taken[number].items()
                if any(-(-elements * width // step) * step == size for width in _ELEMENT_BYTES)
            )

        keys = list(zip(self.made_in_pass[stayed].tolist(), self.lifetimes.size_bytes[stayed].tolist(), strict=True))
        fits = {key: count <= num_taken(*key) for key, count in Counter(keys).items()}
        is_left[stayed] = [fits[key] for key in keys]
        return is_left

    def _taken(self) -> dict[int, Counter[int]]:
        """Count, by pass and number of elements, tensors that AccumulateGrad took as gradients without adding them."""
        recording, ops = self.recording, self.recording.ops
        adds = np.zeros(len(ops.name) + 1, np.bool_)
        adds[ops.parent[recording.ops_named(_ADDS.__contains__)]] = True
        rows = recording.ops_named(lambda text: is_accumulate_grad(text) and not text.startswith(ENGINE_PREFIX))
        rows = rows[~adds[rows]]
        number = self.pass_of(ops.start_ns[rows])
        sizes_by_pass: dict[int, Counter[int]] = defaultdict(Counter)
        for of_pass, shapes in zip(number.tolist(), ops.input_shapes[rows].tolist(), strict=True):
            sizes_by_pass[of_pass].update(prod(shape) for shape in recording.shapes[shapes][:1])
        return sizes_by_pass


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
