"""Facts that blocks of one device prove of each other: equal stacks, equal sizes, and blocks that replace others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tracer.arrays import Bool, Bools, Int, Ints
from tracer.blocks.from_snapshot.block_facts import LARGE_WORKSPACE_BYTES, NONE, WORKSPACE_BYTES, LifeFacts
from tracer.blocks.from_snapshot.sizes import (
    SizeSets,
    as_many_as,
    copies_of,
    first_of_each,
    has_size_of,
    is_one_set,
    most_at_once,
    sets_of_sizes,
)
from tracer.blocks.kinds import Kind
from tracer.blocks.rules import FactOf, Rule, apply_rules
from tracer.snapshot.columns import Int32s
from tracer.snapshot.stacks import NO_STACK

SEVERAL = -2
# Measured with `python -m benchmarks.rule_gain numbers`: points of the bytes of a set of programs with another number.
_NUM_LATEST = 4
"""Blocks of a forward that may be temporary still: what a module has made and not handed on yet, and a residual.

With 2, 0.59 more are wrong of programs that end anywhere; with 0, 5.8 fewer are right of public recordings; with 8, 0.5
fewer of programs.
"""
_LEAST_KEPT = 3
"""One in so many of the earlier blocks is in use where a forward keeps them for backward.

With 2, 5.8 fewer are right of public recordings; with 5, 0.06 more are wrong of further programs: they keep a cache.
"""
_LEAST_SEEN = 12
"""Least number: with fewer, a cache of keys and values and what the first layer works with may be as many.

With 6, 0.1 more are wrong of further programs; with 24, 0.6 fewer are right of programs that end anywhere.
"""
_GONE_PER_HELD = 8
"""Results that a program holds are few; of two models in a step, the second backward's activations are as many.

4 and 16 are the same, with 1 it is 0.05 of further programs: no number between is better than another.
"""


def kinds_of_stacks(stack: Int32s, kind: Ints, num_stacks: int) -> Ints:
    """The kind of all blocks of each stack that have one; `NONE`, or `SEVERAL` where they differ [stacks]."""
    rows = np.flatnonzero((kind != Kind.UNKNOWN) & (stack != NO_STACK))
    low, high = np.full(num_stacks, len(Kind), dtype=np.int64), np.full(num_stacks, NONE, dtype=np.int64)
    np.minimum.at(low, stack[rows], kind[rows])
    np.maximum.at(high, stack[rows], kind[rows])
    return np.where(high == NONE, NONE, np.where(low == high, high, SEVERAL))


def agreed(parts: Iterable[Ints]) -> Ints:
    """Combine the kinds that several devices prove of the same stacks [stacks]."""
    first, *others = parts
    common = first
    for part in others:
        same = (common == part) | (part == NONE)
        common = np.where(common == NONE, part, np.where(same, common, SEVERAL))
    return common


truth = FactOf["BlockFacts", Bool]
number = FactOf["BlockFacts", Int]


@dataclass(frozen=True, eq=False)
class BlockFacts(LifeFacts):
    """Facts of each block, columns [lives]."""

    proofs: Sequence[Rule[BlockFacts]]  # `PROOFS` of the table
    devices: list[BlockFacts] = field(default_factory=list)  # All of the snapshot, this one among them

    # ---- parameters as their constructors made them, and what took their place ---------------------------------------

    @truth
    def is_constructed(self) -> Bools:
        """Made by constructors, kept or freed by a step, and there are as many gradients of its size."""
        constructed = self.in_constructor & (self.is_at_end | self.freed_in_step)
        constructed &= ~has_size_of(self.size, self.size[self.in_module_setup])
        constructed &= self._is_of_first_maker(constructed)
        facts = type(self)
        of_places = {facts.takes_buffers_place, facts.takes_parameters_place, facts.is_replacing}
        kind, _ = apply_rules([rule for rule in self.proofs if not of_places & {*rule.when}], self)
        return as_many_as(constructed, self.size, *self.gradients_at_once(kind))

    def _is_of_first_maker(self, chosen: Bools) -> Bools:
        """Mark blocks with the maker of the first block of their size: a model is made before its optimizer."""
        size, maker, begin = self.size, self.constructor, self.begin
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(begin[rows], kind="stable")]
        sizes, first, rank = np.unique(size[rows], return_index=True, return_inverse=True)
        is_of_first = np.zeros(len(size), dtype=np.bool_)
        is_of_first[rows] = maker[rows] == maker[rows[first]][rank.reshape(-1)] if len(sizes) else False
        return is_of_first

    @truth
    def is_replacing(self) -> Bools:
        """Made by the stack that made what took the place of a known parameter.

        `p.data = p.data - ...` makes the new one and lets go of the old one right away: of the blocks of its size, the
        last one made before the old one went is the new one.
        """
        is_replaced = (self.data_was_set & ~self.in_backward) | self.in_module_setup | self.is_constructed
        olds, stacks = np.flatnonzero(self.freed_in_step & is_replaced), [np.zeros(0, dtype=np.int32)]
        while len(olds):
            news = self._made_before_free(olds)
            news = news[(news >= 0) & (news != olds) & self.in_optimizer[news]]
            stacks.append(self.lives.stack[news[self.outlives_step[news]]])
            # What was assigned and does not outlive the step was replaced in it: decay first, then the update.
            olds = news[~self.outlives_step[news] & self.freed_in_step[news]]
        distinct = np.unique(np.concatenate(stacks))
        return self.outlives_step & np.isin(self.lives.stack, distinct[distinct != NO_STACK])

    @truth
    def takes_parameters_place(self) -> Bools:
        """A line outside of steps put it in the place of what a module had set up, or of what `.data =` freed.

        So does `weight.data = weight.data * 0.9`: it makes the new one and frees the old one.
        """
        of_setup = self.in_module_setup & self.freed_by_program & ~self.freed_in_step
        return self._put_by_line(of_setup | self.data_was_set)

    # It took the place of a buffer
    takes_buffers_place = truth(lambda f: f._put_by_line(f.buffer_was_set & ~f.freed_by_autograd))

    def _put_by_line(self, chosen: Bools) -> Bools:
        """Mark blocks that a line put in the place of the chosen ones, and of those in turn."""
        lives, is_new = self.lives, np.zeros(len(self), dtype=np.bool_)
        olds = np.flatnonzero(chosen & ~self.freed_in_step & self.is_freed)
        while len(olds):
            cast = self._cast_before_free(olds)
            news = np.where(cast != NONE, cast, self._made_before_free(olds))
            may_be = (news != NONE) & (news != olds)
            may_be[may_be] &= (self.outside & ~self.in_module_setup & ~is_new)[news[may_be]]
            may_be[may_be] &= lives.end[news[may_be]] > lives.free_entry[olds[may_be]]
            olds, news = olds[may_be], news[may_be]
            freed, made = self.state.trace.stack[lives.free_entry[olds]].tolist(), lives.stack[news].tolist()
            lines = self.sites.users_lines  # of the program's own
            same = (lines(one)[:1] == lines(other)[:1] != () for one, other in zip(freed, made, strict=True))
            is_of_line = np.array([*same], dtype=np.bool_)
            is_new[news[is_of_line]] = True
            olds = np.unique(news[is_of_line])
            olds = olds[(self.freed_by_program | self.data_was_set | self.buffer_was_set)[olds]]
        return is_new

    def _made_before_free(self, rows: Ints) -> Ints:
        """The last block of each row's size that was made before the row was freed, or `NONE`."""
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        rank, span, order, key = self._by_size_and_begin
        wanted = rank[rows] * span + self.lives.free_entry[rows] + 1
        news = order[np.maximum(np.searchsorted(key, wanted) - 1, 0)]
        return np.where(rank[news] == rank[rows], news, NONE)

    def _cast_before_free(self, rows: Ints) -> Ints:
        """The last block made before a row's `.data =`, if 2 to 8 times as large or as small; or `NONE`.

        `p.data = p.data.to(torch.float32)` makes the new one right before it frees the old one.
        """
        order = np.argsort(self.begin, kind="stable")
        news = order[np.maximum(np.searchsorted(self.begin[order], self.lives.free_entry[rows]) - 1, 0)]
        small, large = (pick(self.size[rows], self.size[news]) for pick in (np.minimum, np.maximum))
        is_cast = self.data_was_set[rows] & ((large == 2 * small) | (large == 4 * small) | (large == 8 * small))
        return np.where(is_cast, news, NONE)

    @cached_property
    def _by_size_and_begin(self) -> tuple[Ints, int, Ints, Ints]:
        """The rank of each block's size, a number beyond all entries, and the order and the keys by both."""
        _, rank = np.unique(self.size, return_inverse=True)
        rank, span = rank.reshape(-1), int(self.end.max(initial=0)) + 2
        key = rank * span + self.begin + 1
        order = np.argsort(key, kind="stable")
        return rank, span, order, key[order]

    # ---- what is proved, and what has the stack of that --------------------------------------------------------------

    @cached_property
    def proved(self) -> Ints:
        """The `Kind` that a proof says of each block, or `Kind.UNKNOWN`."""
        return apply_rules(self.proofs, self)[0]

    @cached_property
    def proved_of_stacks(self) -> Ints:
        """Kinds that the blocks of each stack are proved to have on this device, see `kinds_of_stacks` [stacks]."""
        return kinds_of_stacks(self.lives.stack, self.proved, len(self.sites.facts))

    @number
    def stack_kind(self) -> Ints:
        """The `Kind` that every proved block of the same stack has, on all devices.

        -1 where they differ, and where it cannot be that: temporary is nothing that has outlived what made it.
        """
        of_stacks = agreed(device.proved_of_stacks for device in self.devices or [self])
        stack_kind = np.maximum(of_stacks[self.lives.stack], NONE)
        stays = self.is_at_end & (self.in_optimizer | self.outlives_backward | self.meets_backward | self.meets_step)
        stays &= ~(self.in_backward & ~self.outlives_backward & ~self.meets_step)
        # What forward made and outlived backward and the step is held by somebody.
        stays |= self.outside & self.meets_backward & self.meets_step
        stays |= self.outlives_backward & self.meets_step
        # What a second derivative saved has outlived its backward; of a backward that is not over, that is not known.
        is_open = self.in_backward & ~self.outlives_backward & ~self.in_module & ~self.in_recompute
        is_none = (stays & (stack_kind == Kind.TEMPORARY)) | (is_open & (stack_kind == Kind.ACTIVATION))
        return np.where(self.has_stack & ~is_none, stack_kind, NONE)

    has_stack_kind = truth(lambda f: f.stack_kind != NONE)

    @truth
    def stack_made_temporaries(self) -> Bools:
        """Some blocks of its stack and size were freed again before any backward ran.

        A line like `down(act(up(x)))` makes several.
        """
        gone = self.outside & ~self.is_at_end & ~self.may_meet_backward & (self.proved == Kind.UNKNOWN)
        return self.has_stack & np.isin(self.stack_and_size, self.stack_and_size[gone])

    @cached_property
    def stack_and_size(self) -> Ints:
        """A number for each stack and size: one key, since numpy sorts rows of several columns 20 times slower."""
        sizes, size = np.unique(self.size, return_inverse=True)
        _, pair = np.unique(self.lives.stack.astype(np.int64) * len(sizes) + size.reshape(-1), return_inverse=True)
        numbers: Ints = pair.reshape(-1)
        return numbers

    # ---- gradients, and as many parameters ---------------------------------------------------------------------------

    def staying(self, is_not_known: Bools) -> Bools:
        """Return blocks from before that are never freed, and may belong to the model or to its optimizer."""
        return self.is_before & self.is_at_end & is_not_known & ~self.has_stack & ~self.is_workspace_kept

    is_staying = truth(lambda f: f.staying(f.proved == Kind.UNKNOWN))
    # By all that is proved, kept by a model or its optimizer: sizes of parameters
    of_parameters = number(lambda f: f.size[f.is_staying | (f.is_at_end & (f.proved == Kind.PARAMETER))])

    @cached_property
    def derives_twice(self) -> bool:
        """True if a backward left a block that autograd saved for another one, or that may be saved by its size."""
        left, sizes = self.in_backward & self.outlives_backward, self.of_parameters
        no_gradient = left & ~self.in_accumulate & ~has_size_of(self.size, sizes) & (len(sizes) > 0)
        return bool((no_gradient | (left & self.freed_as_saved)).any())

    @truth
    def is_left_by_backward(self) -> Bools:
        """Backward made it and nothing freed it, and its size is a parameter's and no other's.

        Gradients of forward's results are on their way to the next node while backward runs, and never freed where the
        recording ends. Of a second derivative, what is not over is on its way, or saved for it.
        """
        is_left = (self.in_backward | self.is_stackless) & ~self.is_before & self.is_at_end & ~self.in_module
        of_results = has_size_of(self.size, self.size[self.outside & self.in_module])
        is_left &= has_size_of(self.size, self.of_parameters) & (self.outlives_backward | ~of_results)
        is_left &= ~self.others_are_no_gradients
        return is_left & ~(self.in_backward & ~self.outlives_backward & self.derives_twice)

    @truth
    def others_are_no_gradients(self) -> Bools:
        """Blocks of the same stack and size are proved to be temporary or saved, and none to be a gradient.

        What a weight gets from its first use waits for the second one's, of the size of its gradient; not past the end
        of backward: there the others were added to a gradient that was there.
        """
        pair, has_stack = self.stack_and_size, self.lives.stack != NO_STACK
        temporary, saved, gradients = (
            np.bincount(pair[has_stack & (self.proved == each)], minlength=len(pair))[pair] > 0
            for each in (Kind.TEMPORARY, Kind.ACTIVATION, Kind.GRADIENT)
        )
        no_gradients: Bools = (saved | (temporary & ~self.outlives_backward)) & ~gradients
        return no_gradients

    def gradients_at_once(self, kind: Ints) -> tuple[Ints, Ints]:
        """The sizes of gradients and the most of each that were in use at once, likely ones of Python's stacks too."""
        rows = np.flatnonzero((kind == Kind.GRADIENT) | (self.is_stackless & self.meets_step))
        return most_at_once(self.size[rows], self.begin[rows], self.end[rows])

    @cached_property
    def gradients(self) -> tuple[Ints, Ints]:
        """`gradients_at_once` of the proved gradients and of the blocks that backward left."""
        return self.gradients_at_once(np.where(self.is_left_by_backward, Kind.GRADIENT, self.proved))

    @cached_property
    def is_backward_over(self) -> bool:
        """True if there was a backward."""
        return bool((self.outlives_backward | (self.is_stackless & self.meets_step)).any())

    @truth
    def is_as_many_as_gradients(self) -> Bools:
        """Blocks from before, never freed, of a size of which there are as many gradients.

        A step that is not over has replaced a part of the state: what it has let go of counts too.
        """
        others = self.size[self.is_before & self.freed_in_open_step]
        are_some = not self.is_backward_over
        return as_many_as(self.is_staying, self.size, *self.gradients, others=others, are_some=are_some)

    @truth
    def is_of_parameters_size(self) -> Bools:
        """Blocks of the size of a parameter, by all that is known."""
        known = self.is_as_many_as_gradients | self.is_constructed | (self.proved == Kind.PARAMETER)
        return has_size_of(self.size, self.size[known])

    # A block of its size was there before and is never freed
    has_size_of_staying = truth(lambda f: f.is_of_parameters_size | has_size_of(f.size, f.size[f.is_staying]))

    @cached_property
    def sets(self) -> SizeSets:
        """Two or three blocks for each gradient, of those that were there before."""
        return sets_of_sizes(self.size[self.is_staying & self.is_backward_over], *self.gradients)

    @truth
    def is_first_set(self) -> Bools:
        """Blocks from before, never freed, of a size with two or three for each gradient, which were made first."""
        is_first = np.zeros(len(self), dtype=np.bool_)
        if self.sets.times:
            rows = np.flatnonzero(self.is_staying & has_size_of(self.size, self.sets.sizes))
            is_first[first_of_each(rows, self.size, self.lives.addr, self.sets.times, self.state.segments)] = True
        return is_first

    @truth
    def is_later_set(self) -> Bools:
        """Blocks of such a size that were made later, or the state of parameters that lie in one block."""
        sizes = np.append(self.sets.sizes, self.sets.of_parts)
        return self.is_staying & has_size_of(self.size, sizes) & ~self.is_first_set

    @cached_property
    def num_layers(self) -> float:
        """Number of layers of one weight each that a forward calls, by the least called line; 0: none is seen.

        Of each line counts the size that it makes most often: a workspace may come with it.
        """
        rows = np.flatnonzero((self.layer != NONE) & ~self.in_workspace)
        if not len(rows):
            return 0.0
        pairs, calls = np.unique(np.stack([self.layer[rows], self.size[rows]]), axis=1, return_counts=True)
        _, first = np.unique(pairs[0], return_index=True)
        of_line = np.maximum.reduceat(calls, first)
        return float(of_line.sum() / of_line.min())

    # There before and never freed, and such blocks are as many as the layers that forward calls, or have sizes of which
    # none repeat as copies would
    is_one_set = truth(lambda f: f.is_staying & is_one_set(f.size, f.size[f.is_staying], f.num_layers))

    @truth
    def is_frozen_set(self) -> Bools:
        """Like `is_one_set`, of blocks without a gradient of their size after a backward that left gradients."""
        is_seen = self.is_backward_over and len(self.gradients[0]) > 0 and self.num_layers > 0
        frozen = self.is_staying & ~has_size_of(self.size, self.gradients[0]) & is_seen
        return frozen & is_one_set(self.size, self.size[frozen], self.num_layers)

    def copies_per_gradient(self, is_not_known: Bools) -> tuple[int, int]:
        """Return the blocks from before the recording for each gradient of their size, and their bytes.

        More than one are parameters and an optimizer's state of their size, which nothing tells apart; 0 and 0 where
        the numbers are not the same for every size.

        Args:
            is_not_known: Whether nothing names each block: no rule, not the recording, not the program.
        """
        return copies_of(self.size[self.staying(is_not_known)], *self.gradients_at_once(self.proved))

    # ---- what forward and backward were at work with -----------------------------------------------------------------

    of_forward = truth(lambda f: f.outside & (f.in_module | f.in_functional))

    @truth
    def is_in_flight(self) -> Bools:
        """Backward made it and was not over at the end, and nothing of another origin has its size then.

        A gradient has its parameter's size, however made. Blocks of modules and of functions of torch.nn do not count.
        """
        others = self.is_at_end & ~self.in_backward & ~self.of_forward
        made = self.in_backward & ~self.in_recompute & self.is_at_end & ~self.is_before & ~self.outlives_backward
        is_in_flight = made & others.any() & ~has_size_of(self.size, self.size[others])
        return is_in_flight & np.bool_(not self.derives_twice)

    @truth
    def is_held_of_few(self) -> Bools:
        """Blocks in use at the end, past a backward and a step, where autograd freed almost all else of their forward.

        That is of eight times as many blocks at least.
        """
        made = self.of_forward & self.meets_backward
        # Forwards are told apart by how many blocks of backward came before.
        of_backward = np.sort(self.begin[self.in_backward | self.is_stackless])
        forward = np.searchsorted(of_backward, self.begin)
        may_be_workspace = ~self.has_cpp & np.isin(self.size, (WORKSPACE_BYTES, LARGE_WORKSPACE_BYTES))
        kept = made & self.meets_step & self.is_at_end & ~self.is_long_lived & ~may_be_workspace
        gone = made & (self.freed_by_autograd | self.freed_stackless)
        num_kept, num_gone = (np.bincount(forward[rows], minlength=len(of_backward) + 1) for rows in (kept, gone))
        return kept & (num_kept * _GONE_PER_HELD <= num_gone)[forward]

    @truth
    def is_kept_alone(self) -> Bools:
        """Blocks in use after the next call of the model; all else of their call was freed before any backward.

        That is eight blocks or more: an output that the program keeps.
        """
        made = self.outside & (self.call != NONE) & ~self.in_workspace & ~self.is_brief_workspace
        num_calls = int(self.call.max(initial=NONE)) + 1
        kept, gone = (
            np.bincount(self.call[chosen], minlength=num_calls + 1)[self.call]
            for chosen in (made & self.is_at_end, made & ~self.is_at_end & ~self.may_meet_backward)
        )
        is_alone: Bools = made & self.is_at_end & (kept == 1) & (gone >= _GONE_PER_HELD)
        return is_alone & self.is_called_again & ~self.meets_backward

    @truth
    def is_kept_by_forward(self) -> Bools:
        """Blocks in use after modules made several more, as is a third of a dozen or more made as early.

        A compiled forward that a backward is to follow lets go at once of all else, whatever its share. Inference keeps
        the latest alone, and a cache. Where none of several was freed, forward keeps the latest too.
        """
        last = self.begin[self.in_backward].max(initial=NONE)
        is_result = self.outside & self.in_module & ~self.in_collective
        is_result &= ~self.in_workspace & ~self.is_brief_workspace
        rows = np.flatnonzero(is_result & ~self.meets_backward & (self.begin > last))
        rows = rows[np.argsort(self.begin[rows], kind="stable")]
        keeps_all = len(rows) > _NUM_LATEST and bool(self.is_at_end[rows].all())
        earlier = rows if keeps_all else rows[:-_NUM_LATEST]
        is_kept = np.zeros(len(self), dtype=np.bool_)
        lasting = earlier[self.is_at_end[earlier]]
        are_enough = keeps_all or len(earlier) >= _LEAST_SEEN
        are_many = len(lasting) * _LEAST_KEPT >= len(earlier)
        is_kept[lasting] = are_enough & (are_many | self.in_compiled_forward[lasting])
        return is_kept
