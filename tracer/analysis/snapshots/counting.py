"""What the blocks of one device say about each other: equal stacks, equal sizes, and what took whose place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.block_facts import BlockFacts
from tracer.analysis.snapshots.size_sets import first_of_each, sets_of_sizes
from tracer.analysis.snapshots.sizes import as_many_as, copies_of, has_size_of, is_one_set, most_at_once
from tracer.analysis.snapshots.workspaces import LARGE_WORKSPACE_BYTES, WORKSPACE_BYTES
from tracer.arrays import Bools, Ints
from tracer.snapshot.columns import Int32s, Segments
from tracer.snapshot.replay import Lives
from tracer.snapshot.stacks import NO_STACK

NONE, SEVERAL = -1, -2
# To one parameter's .data in one step: weight decay, momentum, the update.
_MAX_ASSIGNMENTS = 4
_NUM_LATEST = 4
"""Blocks of a forward that may be temporary still: what a module has made and not handed on yet, and a residual."""
_LEAST_KEPT = 3  # One in so many of the earlier blocks is in use where a forward keeps them for backward
_LEAST_SEEN = 12  # Of fewer, a cache of keys and values and what the first layer works with may be as many
_GONE_PER_HELD = 8
"""Results that a program holds are few; of two models in a step, the second backward's activations are as many."""


def kinds_of_stacks(stack: Int32s, kind: Ints, num_stacks: int) -> Ints:
    """The kind of all blocks of each stack that have one; `NONE`, or `SEVERAL` where they differ [stacks].

    Args:
        stack: Stack of each block [lives].
        kind: What it is proved to be, or `Kind.UNKNOWN` [lives].
    """
    rows = np.flatnonzero((kind != Kind.UNKNOWN) & (stack != NO_STACK))
    low, high = np.full(num_stacks, len(Kind), dtype=np.int64), np.full(num_stacks, NONE, dtype=np.int64)
    np.minimum.at(low, stack[rows], kind[rows])
    np.maximum.at(high, stack[rows], kind[rows])
    return np.where(high == NONE, NONE, np.where(low == high, high, SEVERAL))


def agreed(parts: Iterable[Ints]) -> Ints:
    """What several devices say of the same stacks [stacks]."""
    first, *others = parts
    common = first
    for part in others:
        same = (common == part) | (part == NONE)
        common = np.where(common == NONE, part, np.where(same, common, SEVERAL))
    return common


def with_counts(facts: BlockFacts, lives: Lives, kind: Ints, stack_kind: Ints, segments: Segments) -> BlockFacts:
    """The facts, and what counting adds to them."""
    size = lives.requested_bytes
    staying = _is_staying(facts, kind == Kind.UNKNOWN)
    of_parameters = size[staying | (facts.is_at_end & (kind == Kind.PARAMETER))]
    derives_twice = _derives_twice(facts, size, of_parameters)
    is_left = _is_left_by_backward(facts, size, of_parameters) & ~_others_are_no_gradients(facts, lives, kind)
    # Of a second derivative, what is not over is on its way, or saved for it.
    is_left &= ~(facts.in_backward & ~facts.outlives_backward & derives_twice)
    gradients = _gradients_at_once(facts, lives, np.where(is_left, Kind.GRADIENT, kind))
    # A step that is not over has replaced a part of the state: what it has let go of counts too.
    others = size[facts.is_before & facts.freed_in_open_step]
    is_over = bool((facts.outlives_backward | (facts.in_silence & facts.meets_step)).any())
    as_many = as_many_as(staying, size, *gradients, others=others, are_some=not is_over)
    num_layers = _num_layers(facts, lives)
    # What has no gradient once backward is over, where something else has.
    frozen = staying & ~has_size_of(size, gradients[0]) & (is_over and len(gradients[0]) > 0 and num_layers > 0)
    parameters = size[as_many | facts.is_constructed | (kind == Kind.PARAMETER)]
    is_first_set, is_later_set = _of_sets(facts, lives, staying & is_over, gradients, segments)
    return replace(
        facts,
        is_first_set=is_first_set,
        is_later_set=is_later_set,
        stack_kind=_stack_kinds(facts, np.maximum(stack_kind[lives.stack], NONE)),
        is_kept_by_forward=_is_kept_by_forward(facts, lives),
        stack_made_temporaries=facts.has_stack & _are_alike(lives, _is_freed_before_backward(facts, kind)),
        is_left_by_backward=is_left,
        is_in_flight=_is_in_flight(facts, size) & np.bool_(not derives_twice),
        is_held_of_few=_is_held_of_few(facts, lives),
        is_kept_alone=_is_kept_alone(facts),
        has_size_of_staying=has_size_of(size, np.append(size[staying], parameters)),
        is_as_many_as_gradients=as_many,
        is_of_parameters_size=has_size_of(size, parameters),
        is_one_set=staying & is_one_set(size, size[staying], num_layers),
        is_frozen_set=frozen & is_one_set(size, size[frozen], num_layers),
    )


def _of_sets(
    facts: BlockFacts, lives: Lives, staying: Bools, gradients: tuple[Ints, Ints], segments: Segments
) -> tuple[Bools, Bools]:
    """Which blocks are of the first of two or three sets of the gradients' sizes, and which of a later one."""
    size = lives.requested_bytes
    sets = sets_of_sizes(size[staying], *gradients)
    of_sets = staying & np.isin(size, sets.sizes)
    is_first = np.zeros(len(facts), dtype=np.bool_)
    if sets.times:
        is_first[first_of_each(np.flatnonzero(of_sets), size, lives.addr, sets.times, segments)] = True
    return is_first, (of_sets & ~is_first) | (staying & np.isin(size, sets.of_parts))


def _is_staying(facts: BlockFacts, is_not_known: Bools) -> Bools:
    """What was there before, is never freed, and may be of the model or of its optimizer."""
    return facts.is_before & facts.is_at_end & is_not_known & ~facts.has_stack & ~facts.is_workspace_kept


def _is_left_by_backward(facts: BlockFacts, size: Ints, of_parameters: Ints) -> Bools:
    """What backward made and nobody freed, of a parameter's size; and of no result's of forward, while backward runs.

    Gradients of results are on their way to the next node then, and never freed where the recording ends.
    """
    candidates = (facts.in_backward | facts.in_silence) & ~facts.is_before & facts.is_at_end & ~facts.in_module
    of_results = has_size_of(size, size[facts.outside & facts.in_module])
    is_left: Bools = candidates & has_size_of(size, of_parameters) & (facts.outlives_backward | ~of_results)
    return is_left


def _derives_twice(facts: BlockFacts, size: Ints, of_parameters: Ints) -> bool:
    """Whether a backward left something that autograd saved for another one, or that may be saved by its size."""
    left = facts.in_backward & facts.outlives_backward
    no_gradient = left & ~facts.in_accumulate & ~has_size_of(size, of_parameters) & (len(of_parameters) > 0)
    return bool((no_gradient | (left & facts.freed_as_saved)).any())


def _others_are_no_gradients(facts: BlockFacts, lives: Lives, kind: Ints) -> Bools:
    """Whether blocks of the same stack and size are proved to be temporary or saved, and none to be a gradient.

    What a weight gets from its first use waits for the second one's, of the size of its gradient; not past the end of
    backward: there the others were added to a gradient that was there.
    """
    pair, has_stack = _by_stack_and_size(lives), lives.stack != NO_STACK
    temporary, saved, gradients = (
        np.bincount(pair[has_stack & (kind == each)], minlength=len(pair))[pair] > 0
        for each in (Kind.TEMPORARY, Kind.ACTIVATION, Kind.GRADIENT)
    )
    no_gradients: Bools = (saved | (temporary & ~facts.outlives_backward)) & ~gradients
    return no_gradients


def _is_in_flight(facts: BlockFacts, size: Ints) -> Bools:
    """What backward was at work with when the recording ended; a gradient has its parameter's size, however made."""
    of_forward = facts.outside & (facts.in_module | facts.in_functional)
    others = facts.is_at_end & ~facts.in_backward & ~of_forward
    made = facts.in_backward & facts.is_at_end & ~facts.is_before & ~facts.outlives_backward
    is_in_flight: Bools = made & others.any() & ~has_size_of(size, size[others])
    return is_in_flight


def _is_held_of_few(facts: BlockFacts, lives: Lives) -> Bools:
    """What of a forward outlived its backward and a step, where autograd let go of almost all else of it."""
    made = facts.outside & (facts.in_module | facts.in_functional) & facts.meets_backward
    # Forwards are told apart by how many blocks of backward came before.
    of_backward = np.sort(lives.begin[facts.in_backward | facts.in_silence])
    forward = np.searchsorted(of_backward, lives.begin)
    may_be_workspace = ~facts.has_cpp & np.isin(lives.requested_bytes, (WORKSPACE_BYTES, LARGE_WORKSPACE_BYTES))
    kept = made & facts.meets_step & facts.is_at_end & ~facts.is_long_lived & ~may_be_workspace
    gone = np.bincount(
        forward[made & (facts.freed_by_autograd | facts.freed_in_silence)], minlength=len(of_backward) + 1
    )
    num_kept = np.bincount(forward[kept], minlength=len(of_backward) + 1)
    is_held: Bools = kept & (num_kept * _GONE_PER_HELD <= gone)[forward]
    return is_held


def _is_kept_alone(facts: BlockFacts) -> Bools:
    """What is in use of a call of a model whose other results are gone, where no backward ran."""
    made = facts.outside & (facts.call != NONE) & ~facts.in_workspace & ~facts.is_brief_workspace
    num_calls = int(facts.call.max(initial=NONE)) + 1
    kept, gone = (
        np.bincount(facts.call[chosen], minlength=num_calls + 1)[facts.call]
        for chosen in (made & facts.is_at_end, made & ~facts.is_at_end & ~facts.may_meet_backward)
    )
    is_alone: Bools = made & facts.is_at_end & (kept == 1) & (gone >= _GONE_PER_HELD)
    return is_alone & facts.is_called_again & ~facts.meets_backward


def _is_kept_by_forward(facts: BlockFacts, lives: Lives) -> Bools:
    """Which blocks of modules forward has kept since the last backward: not the latest ones.

    Where none of several was freed, forward keeps the latest too.
    """
    last = lives.begin[facts.in_backward].max(initial=NONE)
    is_result = facts.outside & facts.in_module & ~facts.in_collective
    is_result &= ~facts.in_workspace & ~facts.is_brief_workspace
    rows = np.flatnonzero(is_result & ~facts.meets_backward & (lives.begin > last))
    rows = rows[np.argsort(lives.begin[rows], kind="stable")]
    keeps_all = len(rows) > _NUM_LATEST and bool(facts.is_at_end[rows].all())
    earlier = rows if keeps_all else rows[:-_NUM_LATEST]
    is_kept = np.zeros(len(facts), dtype=np.bool_)
    lasting = earlier[facts.is_at_end[earlier]]
    are_enough = keeps_all or len(earlier) >= _LEAST_SEEN
    is_kept[lasting] = are_enough and len(lasting) * _LEAST_KEPT >= len(earlier)
    return is_kept


def _num_layers(facts: BlockFacts, lives: Lives) -> float:
    """How many layers of one weight each a forward calls, 0 where none is seen: by the calls of that which has fewest.

    Of each line counts the size that it makes most often: a workspace may come with it.
    """
    rows = np.flatnonzero((facts.layer != NONE) & ~facts.in_workspace)
    if not len(rows):
        return 0.0
    pairs, calls = np.unique(np.stack([facts.layer[rows], lives.requested_bytes[rows]]), axis=1, return_counts=True)
    _, first = np.unique(pairs[0], return_index=True)
    of_line = np.maximum.reduceat(calls, first)
    return float(of_line.sum() / of_line.min())


def _stack_kinds(facts: BlockFacts, stack_kind: Ints) -> Ints:
    """What the others of each block's stack are, but for temporary where a block has outlived what made it."""
    stays = facts.is_at_end & (facts.in_step | facts.outlives_backward | facts.meets_backward | facts.meets_step)
    stays &= ~(facts.in_backward & ~facts.outlives_backward & ~facts.meets_step)
    # What forward made and outlived backward and the step is held by somebody.
    stays |= facts.outside & facts.meets_backward & facts.meets_step
    stays |= facts.outlives_backward & facts.meets_step
    # What a second derivative saved has outlived its backward; of a backward that is not over, that is not known.
    is_open = facts.in_backward & ~facts.outlives_backward & ~facts.in_module
    is_none = (stays & (stack_kind == Kind.TEMPORARY)) | (is_open & (stack_kind == Kind.ACTIVATION))
    return np.where(facts.has_stack & ~is_none, stack_kind, NONE)


def _are_alike(lives: Lives, chosen: Bools) -> Bools:
    """Which blocks have the stack and the size of one of some; a line like `down(act(up(x)))` makes several."""
    pair = _by_stack_and_size(lives)
    are_alike: Bools = np.isin(pair, pair[chosen])
    return are_alike


def _by_stack_and_size(lives: Lives) -> Ints:
    """A number for each stack and size [lives]: one key, since numpy sorts rows of several columns 20 times slower."""
    sizes, size = np.unique(lives.requested_bytes, return_inverse=True)
    _, pair = np.unique(lives.stack.astype(np.int64) * len(sizes) + size.reshape(-1), return_inverse=True)
    numbers: Ints = pair.reshape(-1)
    return numbers


def _is_freed_before_backward(facts: BlockFacts, kind: Ints) -> Bools:
    is_freed: Bools = facts.outside & ~facts.is_at_end & ~facts.may_meet_backward & (kind == Kind.UNKNOWN)
    return is_freed


def copies_per_gradient(facts: BlockFacts, lives: Lives, kind: Ints, is_not_known: Bools) -> tuple[int, int]:
    """How many blocks from before the recording there are for each gradient of their size, and their bytes.

    More than one are parameters and an optimizer's state of their size, which nothing tells apart; 0 and 0 where the
    numbers are not the same for every size.

    Args:
        is_not_known: Whether nothing names each block: no rule, not the recording, not the program.
    """
    staying = _is_staying(facts, is_not_known)
    return copies_of(lives.requested_bytes[staying], *_gradients_at_once(facts, lives, kind))


def _gradients_at_once(facts: BlockFacts, lives: Lives, kind: Ints) -> tuple[Ints, Ints]:
    """The sizes of gradients and the most of each that were in use at once, likely ones of Python's stacks too."""
    rows = np.flatnonzero((kind == Kind.GRADIENT) | (facts.in_silence & facts.meets_step))
    return most_at_once(lives.requested_bytes[rows], lives.begin[rows], lives.end[rows])


def with_parameters(
    facts: BlockFacts, lives: Lives, kind: Ints, is_of_line: Callable[[Ints, Ints], Bools]
) -> BlockFacts:
    """The facts, and which blocks are parameters as their constructors made them, and what took their place.

    `p.data = p.data - ...` makes the new one and lets go of the old one right away: of the blocks of its size, the
    last one made before the old one went is the new one. Arguments as of `with_counts`.

    Args:
        kind: What the rules say so far [lives].
        is_of_line: Whether the program's own line that freed each of some rows made the row beside it.
    """
    size = lives.requested_bytes
    constructed = (facts.constructor != NONE) & (facts.is_at_end | facts.freed_in_step)
    constructed &= ~has_size_of(size, size[facts.in_module_setup])
    constructed &= _is_of_first_maker(constructed, size, facts.constructor, lives.begin)
    facts = replace(facts, is_constructed=as_many_as(constructed, size, *_gradients_at_once(facts, lives, kind)))
    before = _LastMade(lives)
    buffers = facts.buffer_was_set & ~facts.freed_by_autograd
    of_setup = facts.in_module_setup & facts.freed_by_program & ~facts.freed_in_step
    return replace(
        facts,
        is_replacing=_is_replacing(facts, before),
        takes_parameters_place=_put_by_line(facts, lives, before, of_setup | facts.data_was_set, is_of_line),
        takes_buffers_place=_put_by_line(facts, lives, before, buffers, is_of_line),
    )


def _put_by_line(
    facts: BlockFacts, lives: Lives, before: _LastMade, chosen: Bools, is_of_line: Callable[[Ints, Ints], Bools]
) -> Bools:
    """Which blocks a line put in the place of the chosen ones, and of those in turn.

    So does `weight.data = weight.data * 0.9`: it makes the new one and frees the old one.
    """
    is_new = np.zeros(len(facts), dtype=np.bool_)
    olds = np.flatnonzero(chosen & ~facts.freed_in_step & (lives.free_entry >= 0))
    while len(olds):
        news = before.free_of(olds)
        may_be = (news != NONE) & (news != olds)
        may_be[may_be] &= (facts.outside & ~facts.in_module_setup & ~is_new)[news[may_be]]
        may_be[may_be] &= lives.end[news[may_be]] > lives.free_entry[olds[may_be]]
        olds, news = olds[may_be], news[may_be]
        of_line = is_of_line(olds, news)
        is_new[news[of_line]] = True
        olds = np.unique(news[of_line])
        olds = olds[(facts.freed_by_program | facts.data_was_set | facts.buffer_was_set)[olds]]
    return is_new


def _is_replacing(facts: BlockFacts, before: _LastMade) -> Bools:
    set_anew = (facts.data_was_set & ~facts.in_backward) | facts.in_module_setup | facts.is_constructed
    olds, stacks = np.flatnonzero(facts.freed_in_step & set_anew), [np.zeros(0, dtype=np.int32)]
    for _ in range(_MAX_ASSIGNMENTS):
        news = before.free_of(olds)
        news = news[(news >= 0) & (news != olds) & facts.in_step[news]]
        stacks.append(before.stack[news[facts.outlives_step[news]]])
        # What was assigned and does not outlive the step was replaced in it: decay first, then the update.
        olds = news[~facts.outlives_step[news] & facts.freed_in_step[news]]
    distinct = np.unique(np.concatenate(stacks))
    return facts.outlives_step & np.isin(before.stack, distinct[distinct != NO_STACK])


def _is_of_first_maker(chosen: Bools, size: Ints, maker: Ints, begin: Ints) -> Bools:
    """Which blocks have the maker of the first block of their size: a model is made before its optimizer."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(begin[rows], kind="stable")]
    sizes, first, rank = np.unique(size[rows], return_index=True, return_inverse=True)
    is_of_first = np.zeros(len(size), dtype=np.bool_)
    is_of_first[rows] = maker[rows] == maker[rows[first]][rank.reshape(-1)] if len(sizes) else False
    return is_of_first


class _LastMade:
    """The last block of a size that was made before another one of it was freed."""

    def __init__(self, lives: Lives) -> None:
        self._lives, self.stack = lives, lives.stack
        _, rank = np.unique(lives.requested_bytes, return_inverse=True)
        self._rank, self._span = rank.reshape(-1), int(lives.end.max(initial=0)) + 2
        key = self._rank * self._span + lives.begin + 1
        self._order = np.argsort(key, kind="stable")
        self._key = key[self._order]

    def free_of(self, rows: Ints) -> Ints:
        """The last block of each row's size that was made before the row was freed, or `NONE`."""
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        wanted = self._rank[rows] * self._span + self._lives.free_entry[rows] + 1
        news = self._order[np.maximum(np.searchsorted(self._key, wanted) - 1, 0)]
        return np.where(self._rank[news] == self._rank[rows], news, NONE)
