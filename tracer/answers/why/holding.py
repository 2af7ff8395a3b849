"""Holders of memory, as the program's objects say at a failure: reference cycles, owners that nobody updates or calls.

Each needs a look at the objects: of a file alone nothing is said here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks, without_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.line_results import is_joined
from tracer.arrays import Ints, grouped
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.capture.objects.at_failure import CYCLE, FUNCTOOLS, NOT_PYTHON
from tracer.snapshot.replay import BEFORE
from tracer.units import format_bytes, some

_LEAST_PERCENT: Final = 10
_CYCLE_PERCENT: Final = 20
"""Percent of what was asked about: a cycle of a graph's node also holds what hangs on that graph."""
_BUFFERS_PERCENT: Final = 25
_LESS_OF_BUFFERS: Final = 8
_CUT: Final = "call gc.collect() where their owner is dropped, or cut the cycle there (del the attribute, or weakref)"
_CUT_OF_CONTEXT: Final = (
    "keep tensors of a torch.autograd.Function with ctx.save_for_backward(), and not as attributes of ctx"
)
_CUT_OF_GRAD: Final = (
    "take such gradients by torch.autograd.grad(..., create_graph=True) in place of backward(create_graph=True), or "
    "set the .grad to None behind its use"
)
_LISTED_KEPT: Final = 10
"""Entries of an optimizer's list that are left under the change."""


@dataclass(frozen=True, slots=True)
class ReferenceCycle:
    """Objects that refer to each other, with what to change."""

    words: str
    change: str


def cycle_of(case: Case, rows: Ints) -> ReferenceCycle | None:
    """The reference cycle that holds a good part of some blocks, where no variable leads to the rest; else None."""
    holders = [holder for holder in case.holders if case.is_any(rows, holder.addresses)]
    cycles = [holder for holder in holders if holder.path.startswith(CYCLE)]
    others = [holder for holder in holders if holder.path != NOT_PYTHON]
    in_cycles, of_objects = (
        case.bytes(np.intersect1d(rows, case.at_addresses(at for holder in of for at in holder.addresses)))
        for of in (cycles, others)
    )
    if not cycles or in_cycles * 100 < _CYCLE_PERCENT * of_objects:
        return None
    if any(holder.variable for holder in holders):
        return None
    link = max(cycles, key=lambda holder: case.bytes(case.at_addresses(holder.addresses))).path.removeprefix(CYCLE)
    is_cpps = "Backward" in link
    cycle = f"a reference cycle{' through C++' * is_cpps} holds "
    is_all = len(others) == len(holders)
    words = f"{cycle}them ({link})" if is_all else f"no variable leads to them, and {cycle}a part ({link})"
    if is_cpps:
        if ".grad ->" in link:
            return ReferenceCycle(f"{words}, which Python's collector does not see", _CUT_OF_GRAD)
        return ReferenceCycle(f"{words}, which Python's collector frees in part at the most", _CUT_OF_CONTEXT)
    return ReferenceCycle(words, _CUT)


def reference_cycles(case: Case) -> Iterator[Cause]:
    """Memory that no variable leads to: objects that refer to each other keep it, or did until the collector ran."""
    cycles = [holder for holder in case.holders if holder.path.startswith(CYCLE)]
    rows = _with_alike(case, case.at_addresses(address for holder in cycles for address in holder.addresses))
    cycle = cycle_of(case, rows)
    if cycle is not None and case.is_much(rows, percent=_LEAST_PERCENT):
        yield _in_cycle(
            case, rows, f"No variable leads to {case.words(rows)}{case.lines(rows)}: {cycle.words}.", cycle.change
        )
    objects = case.objects
    if objects is None or objects.collected_bytes * 100 < _LEAST_PERCENT * case.in_use_bytes:
        return
    # Workspaces are in no tensor, whoever looks.
    rows = np.setdiff1d(case.in_use[case.kind[case.in_use] != Kind.WORKSPACE], case.at_addresses(objects.seen))
    yield _in_cycle(
        case,
        rows,
        f"Python's collector freed {format_bytes(objects.collected_bytes)} right after the failure"
        f"{case.lines(rows, 1)}: objects that refer to each other in a cycle had held them, and nothing else.",
        _CUT,
    )


def kept_by_caches(case: Case) -> Iterator[Cause]:
    """Arguments and results that functions under `functools.lru_cache` keep."""
    caches = [holder for holder in case.holders if FUNCTOOLS in holder.path]
    rows = _with_alike(case, case.at_addresses(address for holder in caches for address in holder.addresses))
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    largest = max(caches, key=lambda holder: case.bytes(case.at_addresses(holder.addresses)))
    function, _, inside = largest.path.partition(FUNCTOOLS)
    # An object that a method was called with leads to the memory by an attribute.
    of_self = ", and each object that it was called of (self)" if "." in inside else ""
    yield Cause(
        "held by a cache",
        f"The functools cache of {function} keeps {case.words(rows)}{case.lines(rows)}: it holds the arguments of its "
        f"calls{of_self}, and what they returned.",
        f"call {function}.cache_clear() once these are not needed, or keep the result in an attribute of the object "
        "(self) in place of a cache of the class or module",
        lambda modelled: with_earlier_frees(modelled, rows, np.full(len(rows), case.entry)),
        case.largest_site(rows),
        grows="memory grows",
        names_bytes=case.bytes(rows),
    )


def _with_alike(case: Case, rows: Ints) -> Ints:
    """Some blocks that were asked about, and those of the same line and size of which none is held otherwise.

    Where some of that size are, those that were made between the first and the last of the blocks, if none of them is.
    """
    lives, others = case.lives, np.setdiff1d(case.asked_about, rows)
    stack, size, begin = case.stack, lives.requested_bytes, lives.begin
    found = [rows]
    for key in {*zip(stack[rows].tolist(), size[rows].tolist(), strict=True)}:
        alike, mine, known = (of[(stack[of] == key[0]) & (size[of] == key[1])] for of in (case.in_use, rows, others))
        if len(known):
            alike, known = (
                of[(begin[of] >= begin[mine].min()) & (begin[of] <= begin[mine].max())] for of in (alike, known)
            )
        if not len(known):
            found.append(alike)
    return np.unique(np.concatenate(found))


def _in_cycle(case: Case, rows: Ints, sentence: str, change: str) -> Cause:
    return Cause(
        "reference cycle",
        sentence,
        change,
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        grows="memory grows",
        names_bytes=case.bytes(rows),
    )


def large_buffers(case: Case) -> Iterator[Cause]:
    """Buffers of modules, such as caches and tables, but for copies of parameters."""
    if case.objects is None:
        return
    size, held = case.lives.requested_bytes, case.at_addresses(case.objects.buffers)
    held = held[~np.isin(size[held], size[case.at_addresses(case.objects.parameters)])]
    asked = case.asked_bytes if case.asked_stack in case.stack[held] else 0
    if not case.is_much(held, asked_bytes=asked, percent=_BUFFERS_PERCENT):
        return
    holder = case.holder_words(held)
    yield Cause(
        "large buffers",
        f"Buffers of modules{f', such as {holder},' if holder else ''} hold {case.with_asked(held, asked)}.",
        "make them no longer than the program uses them (a cache for the prompt and the new tokens, a table for the "
        "positions that occur), let layers share one where they are equal, or keep them in fewer bits",
        lambda modelled: with_smaller_blocks(modelled, held, _LESS_OF_BUFFERS, with_last_failure=asked > 0),
        case.largest_site(held),
        GivesUp.TIME_OR_SIZE,
        names_bytes=case.bytes(held) + asked,
    )


def gradients_of_nobody(case: Case) -> Iterator[Cause]:
    """Gradients of parameters that no optimizer has."""
    if case.objects is None or not case.objects.unowned_gradients:
        return
    held = case.at_addresses(case.objects.unowned_gradients)
    if case.followed is not None:
        held = np.setdiff1d(held, case.followed.read_again(held, by_program=True))
    if not case.is_much(held, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "gradients that nobody uses",
        f"{case.words(held)} are gradients of parameters that no optimizer has, such as {case.objects.unowned_name}"
        f"{case.lines(held, 1)}.",
        "freeze these parameters before they are used (parameter.requires_grad_(False))",
        lambda modelled: without_blocks(modelled, held),
        case.largest_site(held),
        names_bytes=case.bytes(held),
    )


def are_listed_states(case: Case, rows: Ints) -> bool:
    """True if lists in the state of optimizers hold a good part of some blocks."""
    states = case.objects.listed_states if case.objects is not None else ()
    listed = case.at_addresses(address for state in states for address in state.addresses)
    return len(listed) > 0 and case.is_share(np.intersect1d(rows, listed), of=rows, percent=50)


def listed_states(case: Case) -> Iterator[Cause]:
    """Lists of tensors in an optimizer's state, as the history of L-BFGS."""
    states = case.objects.listed_states if case.objects is not None else ()
    rows = case.at_addresses(address for state in states for address in state.addresses)
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    largest = max(states, key=lambda state: len(state.addresses))
    smaller = "give it a smaller history_size" if largest.optimizer == "LBFGS" else "keep fewer of them"
    divisor = max(len(largest.addresses) // _LISTED_KEPT, 2)
    keys = ", ".join(sorted({state.key for state in states}))
    yield Cause(
        "history of an optimizer",
        f"The state of {largest.optimizer} has lists of tensors ({keys}): "
        f"{case.words(rows)}{case.lines(rows, 1)}, and more with each step until they are full.",
        f"{smaller}: this is with {_LISTED_KEPT} in place of {len(largest.addresses):,}",
        lambda modelled: with_smaller_blocks(modelled, rows, divisor),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
        grows="memory grows",
    )


def idle_models(case: Case) -> Iterator[Cause]:
    """Models on the device that are not in the call that failed, and that no optimizer trains."""
    models = case.objects.idle_models if case.objects is not None else ()
    sizes = [case.bytes(case.at_addresses(model.addresses)) for model in models]
    rows = case.at_addresses(address for model in models for address in model.addresses)
    if case.followed is not None:
        rows = np.setdiff1d(rows, case.followed.read_again(rows))
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    largest = models[int(np.argmax(sizes))]
    who = f", held by {largest.path}" if largest.path else ""
    number = f"{some(len(models), 'model')}, the largest {largest.name}" if len(models) > 1 else largest.name
    yield Cause(
        "idle models",
        f"{format_bytes(case.bytes(rows))} are parameters of models that are not in the call that failed, and that no "
        f"optimizer trains: {number}{case.lines(rows, 1)}{who}.",
        'delete it once it is no longer called, or keep it on the host while others work (.to("cpu"))',
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
        names_bytes=case.bytes(rows),
    )


_LEAST_TURNS: Final = 4
_JOINING: Final = ("aten::cat", "aten::stack", "aten::copy_", "aten::_to_copy", "aten::to")
"""Operators that read results to put them elsewhere."""
_LEAST_KEPT_PERCENT: Final = 20


def kept_in_one_call(case: Case) -> Iterator[Cause]:
    """Results that the turns of one call leave, where nothing is kept for a backward: something collects them."""
    lives, size = case.lives, case.lives.requested_bytes
    is_result = has(case.facts, Fact.STACK) & ~has(case.facts, Fact.ENGINE, Fact.OPTIMIZER_STEP) & case.in_model
    rows = case.in_use[(is_result & ~case.stays & (lives.begin > BEFORE))[case.in_use]]
    by_line = grouped([case.inner_stack[rows], size[rows], case.calls[0][rows]], lambda *line: line)
    count = np.bincount(by_line.of_row)
    if not len(count):
        return
    bytes_ = np.bincount(by_line.of_row, size[rows])
    largest = int(np.where(count >= _LEAST_TURNS, bytes_, 0).argmax())
    mine = rows[by_line.of_row == largest]
    mine = mine[np.argsort(lives.begin[mine])]
    if len(mine) < _LEAST_TURNS or not case.is_much(mine, percent=_LEAST_KEPT_PERCENT):
        return
    if not (case.has_no_graph or case.is_without_grad(mine)) or is_joined(case, int(case.stack[mine[0]])):
        return
    if case.followed is not None:
        read = case.followed.read_again(mine)
        joined = case.followed.used_next(lambda use: use is not None and use.operator in _JOINING, is_last=True)
        if case.is_share(np.setdiff1d(read, joined), of=mine, percent=50):
            return  # the model needs them, as it does keys and values of its layers
    holder = case.holder_words(mine)
    # Each turn computes its result from the one before, which is there until then.
    ends = np.append(lives.begin[mine[2:]], [case.entry] * 2)[: len(mine)]
    yield Cause(
        "results of turns kept",
        f"{len(mine):,} turns of one call each leave a block at this line: {case.words(mine)}{case.lines(mine)}"
        f"{f', kept by {holder}' if holder else ''}.",
        "keep only what is used of them (many libraries have an option, such as output_hidden_states=False), or move "
        "each to the host (.cpu())",
        lambda modelled: with_earlier_frees(modelled, mine[:-1], ends[:-1]),
        case.largest_site(mine),
        GivesUp.A_LITTLE,
        names_bytes=case.bytes(mine),
    )
