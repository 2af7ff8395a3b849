"""A validation or an inference that keeps what only a backward needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, without_blocks
from tracer.answers.why.case import Case, Cause
from tracer.answers.why.expansion import is_of_autoencoder
from tracer.answers.why.precision import cast_weights
from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.phases import FAR
from tracer.blocks.from_snapshot.sizes import NOTHING
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.snapshot.actions import Action
from tracer.snapshot.replay import BEFORE

_LEAST_BLOCKS: Final = 8
"""Blocks that a call of the model made: of fewer it is not certain that they are kept for a backward."""
_KEPT_SHARE: Final = 0.4
"""Share of these at the end of the call: without gradients all but the result, and a cache, is freed on the way."""
_MOST: Final = 0.9
_FREED_SHARE: Final = 0.1
"""Share of all that such calls make."""
_APART: Final = 0.6
"""Share that is dropped, of what a line's calls keep for a backward."""


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Calls of models, in order [calls]."""

    line: Ints  # The line that calls, as a number
    first: Ints  # First entry of each
    last: Ints  # Entry at which it is over
    kept: Bools  # Whether it kept at its end a good part of what it had made
    learns: Bools  # Whether a backward ran before that line called again


def evaluation_with_gradients(case: Case) -> Iterator[Cause]:
    """Calls of a model that keep their activations, from a line behind whose calls no backward comes."""
    if case.has_no_graph or case.reaches_backward:
        return
    if case.is_evaluating:
        rows = case.kept_for_backward[(case.lives.begin > BEFORE)[case.kept_for_backward]]
        rows = rows[case.in_model[rows]]
    else:
        rows = _kept_for_nothing(case)
    rows = np.setdiff1d(rows, cast_weights(case))  # autocast keeps these without a graph, too
    held = case.held(rows)
    if not len(rows) or not case.is_much(held) or (not case.is_evaluating and case.is_for_later_backward(held)):
        return
    if case.is_without_grad(held):
        return
    yield Cause(
        "gradients in evaluation",
        f"The model is called{_by(case, held)} without a backward behind it, and forward keeps {case.words(held)}"
        f"{case.lines(held)} for one.",
        "evaluate under `with torch.no_grad():` (or torch.inference_mode())",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(held),
        shortens=True,
    )


def untrained_graphs(case: Case) -> Iterator[Cause]:
    """Activations kept for a backward that reaches no parameter of an optimizer, such as those of a teacher."""
    if case.objects is not None:
        held, rows = case.alike(case.objects.untrained)
        by = _by(case, held) if len(held) else ""
        why = "no optimizer updates the parameters that get gradients by it"
    else:
        rows = _dropped(case)
        held = case.held(rows)
        by = _apart(case, held) if len(held) else ""
        why = "in the calls before, it was let go of without a backward through it"
    if not case.is_much(held):
        return
    yield Cause(
        "graph of an untrained model",
        f"The call{by} keeps {case.words(held)}{case.lines(held)} for a backward pass, and {why}.",
        "call that model under `with torch.no_grad():` (or model.requires_grad_(False))",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(held),
        shortens=True,
    )


def retained_graphs(case: Case) -> Iterator[Cause]:
    """Blocks that forward saved in earlier calls and that backward has used without freeing them."""
    call, lines = case.calls
    rows = case.in_use[(call[case.in_use] >= 0) & ~case.stays[case.in_use]]
    rows = rows[call[rows] < call[rows].max(initial=-1)]
    steps = case.device.kinds.phases.steps[0]
    if len(steps := steps[steps <= case.entry]):  # what was made since is of this iteration
        rows = rows[case.lives.begin[rows] < steps[-1]]
    if not case.is_much(rows):
        return
    calls, size = _calls(case, call, lines), case.lives.requested_bytes
    made = np.bincount(call[call >= 0], size[call >= 0], len(lines))
    was_used = calls.kept & calls.learns
    is_held = np.bincount(call[rows], minlength=len(lines)) >= _LEAST_BLOCKS
    is_held &= np.bincount(call[rows], size[rows], len(lines)) >= _KEPT_SHARE * made
    held = rows[(was_used & is_held)[call[rows]]]
    if case.in_graphs is not None:  # a list of results holds as much, and no graph
        held = np.intersect1d(held, case.in_graphs)
    if not case.is_much(held):
        return
    mine = np.flatnonzero(np.append(was_used, False)[call] & ~case.stays)
    over = end_of_last_backward(case, mine)
    mine, over = mine[over < case.entry], over[over < case.entry]
    is_graph = case.in_graphs is not None
    what = "The graph" if is_graph else "What forward has made"
    holder = (
        "has used and not let go of (retain_graph=True or create_graph=True), and which a loss, an output of it or a "
        ".grad holds"
        if is_graph
        else "has not let go of: a graph that was retained (retain_graph=True or create_graph=True), or results that "
        "the program keeps"
    )
    change = (
        "call the last backward of each graph without retain_graph=True, or backward() once of the sum of losses; in "
        "place of backward(create_graph=True) call torch.autograd.grad, or set the .grad to None behind its use"
    )
    yield Cause(
        "graph retained",
        f"{what} in an iteration before is still there: {case.words(held)}{case.lines(held)}, which backward {holder}.",
        change if is_graph else f"let go of results before the next iteration (del, .detach()), or {change}",
        lambda modelled: with_earlier_frees(modelled, mine, over),
        case.largest_site(held),
    )


def end_of_last_backward(case: Case, rows: Ints) -> Ints:
    """The end of the last backward that began while each block was in use, before the moment; FAR where none did."""
    runs, lives = case.device.kinds.phases.seen_backwards, case.lives
    last = np.searchsorted(runs.start, np.minimum(lives.end[rows], case.entry)) - 1
    is_within = np.append(runs.start, BEFORE)[last] > lives.begin[rows]
    return np.where(is_within, np.append(runs.end, FAR)[last], FAR)


def _dropped(case: Case) -> Ints:
    """Blocks of lines whose blocks autograd saves, and lets go of as a graph is dropped, and never in a backward."""
    lives, facts = case.lives, case.device.kinds.facts.freed
    is_over = (lives.free_entry >= 0) & (lives.end <= case.entry) & case.in_model & ~case.stays
    if not (is_over & has(facts, Fact.ENGINE)).any():
        return NOTHING  # what is dropped here was kept by retain_graph=True
    is_dropped = is_over & has(facts, Fact.RELEASE_SAVED) & ~has(facts, Fact.ENGINE) & ~_as_one_failed(case)
    size, num_stacks = lives.requested_bytes, len(case.stacks) + 1
    dropped, whole = (np.bincount(case.stack[of], size[of], num_stacks) for of in (is_dropped, is_over))
    is_line = dropped > _MOST * whole
    return np.flatnonzero(is_line[case.stack] & case.in_model & ~case.stays & (lives.begin > BEFORE))


def _apart(case: Case, rows: Ints) -> str:
    """The outermost line of the program's in whose calls the graph is for the most part dropped, and not used."""
    lives, freed = case.lives, case.device.kinds.facts.freed
    used = np.flatnonzero(case.in_model & ~np.isin(case.stack, case.stack[rows]) & has(freed, Fact.ENGINE))
    all_rows = np.append(used, np.flatnonzero(np.isin(case.stack, case.stack[rows])))
    size = np.bincount(case.stack[all_rows], lives.requested_bytes[all_rows])
    mine = case.own_lines(int(case.stack[rows[np.argmax(lives.requested_bytes[rows])]]))
    sums = np.zeros((2, len(mine)))
    dropped = set(case.stack[rows].tolist())
    for stack in np.flatnonzero(size).tolist():
        are_shared = [one == other for one, other in zip(mine, case.own_lines(stack), strict=False)]
        sums[int(stack in dropped), : [*are_shared, False].index(False)] += size[stack]
    found = np.flatnonzero(sums[1] >= _APART * sums.sum(axis=0))
    return f" at {mine[found[0]].file}:{mine[found[0]].line}" if len(found) else ""


def _as_one_failed(case: Case) -> Bools:
    """True for each block freed right after a failure, as an exception passed it, before any allocation."""
    made = np.flatnonzero(case.state.trace.action == Action.ALLOC)
    failure = np.append(case.failures, np.iinfo(np.int64).max)
    before = np.append(-1, case.failures)[np.searchsorted(failure, case.lives.free_entry)]
    is_after: Bools = (before >= 0) & (np.searchsorted(made, before) == np.searchsorted(made, case.lives.free_entry))
    return is_after


def _by(case: Case, rows: Ints) -> str:
    site = case.model_call(int(rows[np.argmax(case.lives.requested_bytes[rows])]))
    return f" at {site.file}:{site.line}" if site is not None else ""


def _kept_for_nothing(case: Case) -> Ints:
    """Blocks that calls kept for a backward that never comes."""
    call, lines = case.calls
    if not len(lines):
        return NOTHING
    calls = _calls(case, call, lines)
    learning = np.unique(calls.line[calls.learns])
    idle = (calls.first > case.last_learning) & calls.kept & ~np.isin(calls.line, learning)
    rows = np.flatnonzero(call >= 0)
    rows = rows[case.lives.end[rows] > calls.last[call[rows]]]
    if not len(learning):
        # It may be a training whose first backward is still to come, for one call or for the sum of several losses:
        # certain is a line that has let go of what its calls before had kept. diffusers itself calls the part of an
        # autoencoder that the program asks for: a training calls the whole.
        size = case.lives.requested_bytes
        held = rows[case.lives.end[rows] > case.last_entry]
        kept_bytes, held_bytes = (np.bincount(call[of], size[of], minlength=len(lines)) for of in (rows, held))
        has_released = idle & (held_bytes < _KEPT_SHARE * kept_bytes)
        idle &= np.isin(calls.line, calls.line[has_released]) | _are_of_a_part(case, call, rows)
    return rows[idle[call[rows]]]


def _are_of_a_part(case: Case, call: Ints, rows: Ints) -> Bools:
    """Mark calls of an autoencoder's decoder or encoder alone, by a library's line [calls]."""
    found = np.zeros(len(case.calls[1]), np.bool_)
    if case.is_training:
        return found
    known, first = np.unique(call[rows], return_index=True)
    sites = map(case.model_call, rows[first].tolist())
    found[known] = [site is not None and is_of_autoencoder(site) for site in sites]
    return found


def frees_what_others_keep(case: Case, rows: Ints) -> bool:
    """True if the calls that made some blocks free at once blocks that the same lines keep for a backward elsewhere.

    Gradients are then off in these calls, and a holder other than a graph keeps the blocks, such as a hook.
    """
    call, lines = case.calls
    if not len(lines):
        return False
    calls, size = _calls(case, call, lines), case.lives.requested_bytes
    inside = np.flatnonzero((call >= 0) & ~case.stays)
    inside = inside[np.lexsort((case.lives.begin[inside], case.inner_stack[inside], call[inside]))]
    place = _places_in_calls(call[inside], case.inner_stack[inside])
    learns, stays = calls.learns[call[inside]], case.lives.end[inside] > calls.last[call[inside]]
    mine = ~learns & np.isin(call[inside], call[rows])
    (learned, learned_kept), (made, kept) = (
        [np.bincount(place, size[inside] * chosen) for chosen in (of, of & stays)] for of in (learns, mine)
    )
    is_freed = (learned_kept > _MOST * learned) & (kept < (1 - _MOST) * made)
    return bool(made[is_freed].sum() >= _FREED_SHARE * made.sum() > 0)


def _places_in_calls(call: Ints, stack: Ints) -> Ints:
    """A number for each stack's first block of a call, for its second, and so on, the same in all calls [rows].

    Args:
        call: Sorted.
        stack: Sorted within each call.
    """
    begins = np.append(True, (np.diff(call) != 0) | (np.diff(stack) != 0))[: len(call)]
    number = np.arange(len(call))
    rank = number - np.maximum.accumulate(np.where(begins, number, 0))
    _, place = np.unique(np.stack([stack, rank]), axis=1, return_inverse=True)
    return place.reshape(-1)


def _calls(case: Case, call: Ints, lines: Ints) -> _Calls:
    lives, number = case.lives, len(lines)
    # A workspace is neither kept nor let go of, and the scratch memory of a kernel is freed before all else.
    is_scratch = (lives.alloc_entry >= 0) & (lives.free_entry == lives.alloc_entry + 1)
    rows = np.flatnonzero((call >= 0) & ~case.stays & ~is_scratch)
    first, last = np.full(number, case.last_entry + 1), np.zeros(number, np.int64)
    np.minimum.at(first, call[rows], lives.begin[rows])
    np.maximum.at(last, call[rows], lives.begin[rows])
    last = np.minimum(last + 1, case.last_entry)
    stays = rows[lives.end[rows] > last[call[rows]]]
    size = lives.requested_bytes
    made = np.bincount(call[rows], size[rows], minlength=number)
    kept = np.bincount(call[stays], size[stays], minlength=number)
    num_made, num_kept = (np.bincount(call[chosen], minlength=number) for chosen in (rows, stays))
    keeps = (num_made >= _LEAST_BLOCKS) & (kept >= _KEPT_SHARE * made) & (num_kept >= _KEPT_SHARE * num_made)
    return _Calls(lines, first, last, keeps, _learns(case, lines, first))


def _learns(case: Case, line: Ints, first: Ints) -> Bools:
    """True for each call after which a backward began, before the same line's next call."""
    starts = np.concatenate([case.device.kinds.phases.backwards[0], case.device.kinds.phases.stackless_runs[0]])
    starts = np.sort(starts)
    until = np.full(len(first), case.last_entry + 1)
    for number in np.unique(line).tolist():
        mine = np.flatnonzero(line == number)
        mine = mine[np.argsort(first[mine])]
        until[mine[:-1]] = first[mine[1:]]
    learns: Bools = np.searchsorted(starts, until) > np.searchsorted(starts, first)
    return learns
