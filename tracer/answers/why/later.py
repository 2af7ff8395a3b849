"""Blocks that the program does not read again, as a second run of it with memory that does not end showed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks, without_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.evaluation import end_of_last_backward, evaluation_with_gradients
from tracer.answers.why.holding import idle_models
from tracer.answers.why.larger import made_larger
from tracer.answers.why.source import source_at
from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.phases import FAR
from tracer.blocks.from_snapshot.sites import Site
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.capture.objects.later_uses import Making, NextUse
from tracer.snapshot.stacks import NO_STACK
from tracer.units import format_bytes

_LEAST_PERCENT: Final = 10


def not_read_again(case: Case) -> Iterator[Cause]:
    """Blocks in use that nothing reads any more, each group with the change that lets go of it."""
    if (followed := case.followed) is None:
        return
    uses, rows = followed.uses, followed.used_next(lambda use: use is None)
    overwritten = followed.used_next(lambda use: use is not None and use.overwrites)
    rows = np.union1d(rows, overwritten[case.kind[overwritten] == Kind.GRADIENT])
    for_nothing = followed.rows[followed.ahead_bytes == 0]
    rows = np.union1d(rows, for_nothing[case.kind[for_nothing] != Kind.GRADIENT])
    rows = rows[~np.isin(case.kind[rows], (Kind.WORKSPACE, Kind.COMMUNICATION))]
    for larger in made_larger(case):  # Those of the time before, until their successors are there
        rows = np.setdiff1d(rows, larger)
    # A model or a state that was not read in a part of a step may be read in the next one; an idle model has a name.
    may_be_read = uses.num_steps < _LEAST_STEPS and not uses.is_to_the_end
    if may_be_read or next(idle_models(case), None) is not None:
        rows = rows[~case.stays[rows]]
    for group, what, change, price in _groups(case, rows):
        if case.is_much(group, percent=_LEAST_PERCENT):
            yield _unread(case, group, what, uses.horizon, change, price)


_LEAST_STEPS: Final = 2
"""Ends of steps: so many that a whole step was followed."""


def _groups(case: Case, rows: Ints) -> Iterator[tuple[Ints, str, str, GivesUp]]:
    """Yield groups of blocks with a noun, the change, and its price."""
    kind = case.kind[rows]
    is_gradient, is_parameter = kind == Kind.GRADIENT, case.stays[rows]
    is_in_graph = np.isin(rows, case.in_graphs) if case.in_graphs is not None else np.zeros(len(rows), np.bool_)
    is_in_graph &= ~is_gradient & ~is_parameter
    yield (
        rows[is_gradient],
        " of gradients",
        "call optimizer.zero_grad(set_to_none=True) right after optimizer.step()",
        GivesUp.NOTHING,
    )
    yield (
        rows[is_parameter],
        f" of {' and '.join(sorted({Kind(each).words for each in kind[is_parameter].tolist()}))}",
        'keep what is not called on the host meanwhile (.to("cpu")), or delete it where it is done',
        GivesUp.NOTHING if case.followed is not None and case.followed.uses.is_to_the_end else GivesUp.A_LITTLE,
    )
    # Through the others a backward has run: that is no evaluation, see `evaluation.retained_graphs`. A call without a
    # backward is a cause of its own.
    is_called = next(evaluation_with_gradients(case), None) is not None
    yield (
        rows[is_in_graph & (end_of_last_backward(case, rows) == FAR) & (not is_called)],
        " that a graph keeps for a backward",
        "call what makes them under torch.no_grad(), or detach its result: no backward reads them",
        GivesUp.NOTHING,
    )
    others = rows[~is_gradient & ~is_parameter & ~is_in_graph]
    yield (
        others,
        "",
        "do not keep them (many libraries have an option, such as output_hidden_states=False)"
        if _is_for_nothing(case, others)
        else (
            f"do not keep them {place}(an option, such as use_cache=False, or `del`)"
            if (place := _container(case, others))
            else "let go of them before this line (`del`)"
        )
        + ", or keep them on the host until they are used (.cpu())",
        GivesUp.NOTHING,
    )


def _container(case: Case, rows: Ints) -> str:
    """Words for the list or the attribute that holds most of some blocks; empty for a variable, or where none does."""
    holder = case.holder_of(rows)
    is_one = holder is not None and holder.graph_of is None and not holder.path.isidentifier()
    return f"in {holder.path} " if holder is not None and is_one else ""


def _is_for_nothing(case: Case, rows: Ints) -> bool:
    """True if a good part of blocks that nothing needs is read, to make what nothing reads."""
    return case.followed is not None and case.is_share(case.followed.read_again(rows), of=rows)


def _unread(case: Case, rows: Ints, what: str, horizon: str, change: str, price: GivesUp) -> Cause:
    holder = case.holder_words(rows) or (f"{of} and others" if (of := case.one_of_holders(rows)) else "")
    made = ", or what is made of them," if _is_for_nothing(case, rows) else ""
    return Cause(
        "not read again",
        f"Nothing reads {case.words(rows)}{what}{case.lines(rows)}{made} {horizon}"
        f"{f'; held by {holder}' if holder else ''}.",
        change,
        lambda modelled: with_earlier_frees(modelled, rows, np.full(len(rows), case.entry)),
        case.largest_site(rows),
        price,
        names_bytes=case.bytes(rows),
    )


_NORMALIZING: Final = ("aten::_log_softmax", "aten::log_softmax")
"""Operators of which no part can be made alone."""
_SMALL_PART: Final = 4
"""Times that a block is larger than all that is read of it."""


def read_in_part(case: Case) -> Iterator[Cause]:
    """Blocks, or a failed request, of which the program reads a small part, by itself or in what is made of them."""
    if (followed := case.followed) is None:
        return
    asked_read, stack = followed.asked_read_bytes or 0, case.asked_stack
    is_making = not has(case.sites.facts, Fact.ENGINE, Fact.MODULE_SETUP)[stack]
    asked = case.asked_bytes * (is_making and 0 < asked_read * _SMALL_PART <= case.asked_bytes)
    size, read = case.lives.requested_bytes[followed.rows], followed.read_bytes
    kind = case.kind[followed.rows]
    is_part = (read > 0) & (read * _SMALL_PART <= size) & ~np.isin(kind, (Kind.WORKSPACE, Kind.PARAMETER))
    rows, read_bytes = followed.rows[is_part], max(int(read[is_part].sum()) + asked_read * bool(asked), 1)
    if not case.is_much(rows, asked_bytes=asked, percent=_LEAST_PERCENT):
        return
    holder = case.holder_words(rows)
    what = f"{case.words(rows)}{case.lines(rows)}" if len(rows) else ""
    site = case.largest_site(rows) if case.bytes(rows) >= asked else case.sites.site(stack)
    if asked:
        place = f" ({site.file}:{site.line})" if site is not None and site.file is not None and not len(rows) else ""
        what += f"{', and of ' if what else ''}{format_bytes(asked)} that were asked for{place},"
    stays = len(rows) > 0 and (case.stays | case.is_set_up)[rows].all()
    share = read_bytes / (case.bytes(rows) + asked)
    mine = (*rows.tolist(), *[None] * bool(asked))
    shapes = {making.result.shape for row in mine if (making := followed.making(row)) is not None}

    def is_gradient(making: Making) -> bool:
        return not making.file and making.result.shape in shapes

    yield Cause(
        "read in part",
        f"Of {what} no more than {format_bytes(read_bytes)} are read, or used for what is read, before the failure and "
        f"{followed.uses.horizon}{f'; held by {holder}' if holder else ''}.",
        "make each no larger than what is read of it (a shorter longest length), or one for all that have the same"
        if stays
        else "take what is read of the values that it normalizes (gather), and subtract their logsumexp, row by row"
        if all((made := followed.making(row)) is not None and made.operator in _NORMALIZING for row in mine)
        else "make only that part: take it of what these lines are given (such as x[:, -1:] before a layer, chosen "
        "rows before they are transformed, the diagonal before a matrix is made), or keep it alone (part.clone())",
        lambda modelled: with_smaller_blocks(
            modelled,
            rows,
            (case.bytes(rows) + asked) // read_bytes,
            with_last_failure=asked > 0
            or (case.asked_bytes in case.lives.requested_bytes[rows] and stack in case.stack[rows]),
        ),
        site,
        names_bytes=case.bytes(rows) + asked,
        behind=lambda making, read: read if read * _SMALL_PART <= 1 else share if is_gradient(making) else 1.0,
    )


def kept_for_a_part(case: Case) -> Iterator[Cause]:
    """Blocks that were read in whole, and of which the program will read a small part, as a view in a list."""
    if (followed := case.followed) is None:
        return
    size, ahead = case.lives.requested_bytes[followed.rows], followed.ahead_bytes
    is_part = (ahead > 0) & (ahead * _SMALL_PART <= size) & (followed.read_bytes * _SMALL_PART > size)
    is_part &= ~np.isin(case.kind[followed.rows], (Kind.WORKSPACE, Kind.PARAMETER))
    rows, ahead_bytes = followed.rows[is_part], int(ahead[is_part].sum())
    if case.is_much(rows, percent=_LEAST_PERCENT):
        holder = case.holder_words(rows)
        yield Cause(
            "kept for a part",
            f"Of {case.words(rows)}{case.lines(rows)} no more than {format_bytes(ahead_bytes)} are read "
            f"{followed.uses.horizon}{f'; held by {holder}' if holder else ''}.",
            "keep that part alone (part.clone(), or .cpu()): a view of it holds the whole block",
            lambda modelled: with_smaller_blocks(modelled, rows, case.bytes(rows) // ahead_bytes),
            case.largest_site(rows),
            names_bytes=case.bytes(rows),
        )


def gradients_that_wait(case: Case) -> Iterator[Cause]:
    """Gradients that a backward has made, and that only the optimizer's step reads."""
    if (followed := case.followed) is None:
        return
    rows = followed.used_next(
        lambda use: use is not None and not use.in_backward and not use.overwrites and use.step == 0
    )
    rows = rows[case.kind[rows] == Kind.GRADIENT]
    # A thread of autograd's has no frames
    is_in_backward = has(case.sites.facts, Fact.ENGINE)[case.asked_stack] or case.asked_stack == NO_STACK
    if not case.has_failed or not is_in_backward or not case.is_much(rows):  # more of them are to come
        return
    yield Cause(
        "gradients that wait",
        f"{case.words(rows)} are gradients that wait, through this backward, for the optimizer's step.",
        "step each parameter as its gradient is there (register_post_accumulate_grad_hook), and free the gradient: "
        "without clipping by the norm of all, and without accumulation",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        GivesUp.TIME_OR_SIZE,
        names_bytes=case.bytes(rows),
    )


def not_in_place(case: Case) -> Iterator[Cause]:
    """A result that is as large as an operand which nothing reads afterwards, where no backward needs it either."""
    if not case.has_no_graph or (followed := case.followed) is None:
        return
    rows = followed.used_next(lambda use: use is not None and use.fails and use.can_be_in_place, is_last=True)
    is_alike = ~case.stays[rows] & (case.lives.requested_bytes[rows] == case.asked_bytes)
    rows = rows[is_alike & np.isin(rows, followed.freed)]  # One that is still there may be read behind the horizon
    if not len(rows) or not case.is_much(rows[:1], asked_bytes=case.asked_bytes, percent=_LEAST_PERCENT):
        return
    site = case.sites.site(case.asked_stack)
    text = source_at(site) or site.frame
    yield Cause(
        "not in place",
        f"`{text}` ({site.file}:{site.line}) makes a result of {format_bytes(case.asked_bytes)} beside an operand of "
        f"the same size{case.lines(rows[:1])}, which nothing reads afterwards.",
        "compute it in place (such as mul_, div_, or out=)",
        lambda modelled: with_earlier_frees(modelled, rows[:1], np.array([case.entry])),
        site,
        GivesUp.NOTHING,
        names_bytes=case.asked_bytes,
    )


_LEAST_MADE: Final = 4
_LEFT: Final = 16
"""Times that a block is larger than what its only reader makes of it."""


def made_before_read(case: Case) -> Iterator[Cause]:
    """Blocks of one line that are read once more each, to little of each, and are all there before that."""
    if (followed := case.followed) is None:
        return
    rows = followed.used_next(lambda use: use is not None and not use.in_backward and not use.overwrites, is_last=True)
    size = case.lives.requested_bytes
    rows = rows[~case.stays[rows] & (case.kind[rows] != Kind.GRADIENT)]
    uses = [followed.next_use(row) for row in rows.tolist()]
    is_small = [
        use is not None and 0 < use.leaves_bytes * _LEFT <= each for use, each in zip(uses, size[rows], strict=True)
    ]
    rows = rows[np.array(is_small, np.bool_)]
    for mine in (rows[case.stack[rows] == stack] for stack in np.unique(case.stack[rows]).tolist()):
        asked = case.asked_bytes * (case.asked_stack == case.stack[mine[0]])
        if len(mine) < _LEAST_MADE or not case.is_much(mine, asked_bytes=asked, percent=_LEAST_PERCENT):
            continue
        use = followed.next_use(int(mine[0]))
        if use is None or len({_place(followed.next_use(row)) for row in mine.tolist()}) > 1:
            continue
        by = f"{use.operator.partition('::')[2].strip('_')}{f' ({use.file}:{use.line})' if use.file else ''}"
        yield Cause(
            "made before read",
            f"{case.words(mine)}{case.lines(mine)} are each read once more, by {by}, which leaves a small part of "
            "each; all of them are there before that.",
            "make each where it is read, and let go of it before the next (one loop in place of a list and a loop)",
            partial(without_blocks, rows=mine[:-1]),
            case.largest_site(mine),
            names_bytes=case.bytes(mine),
        )


def _place(use: NextUse | None) -> tuple[str, int]:
    return (use.file, use.line) if use is not None else ("", 0)


_LEAST_OF_CALL: Final = 50
_ROWS_PARTS: Final = 4


_NAMES_OF_ROWS: Final = ("rows at once", "batch at once", "sample at once")
_CHANGES_OF_ROWS: Final = (
    "if no row depends on another, call it with a part of the rows at a time, and keep what is needed of each (on the "
    "host, where that is much)",
    "use a smaller batch, with a backward for each part of it (gradients add up)",
    "if the model allows it, give it a part of the sample at a time (tiles of a picture that overlap, pieces of a "
    "recording), and join the results on the host; or run it in fewer bits, or on a smaller sample",
)


def rows_at_once(case: Case) -> Iterator[Cause]:
    """A call of a model whose large results have rows in common; or are of one sample, where no graph keeps them."""
    trains = case.trains_now and case.in_graphs is not None and case.followed is not None
    if not (trains or case.has_no_graph or case.is_without_grad(case.in_use)):
        return
    call = case.calls[0]
    if not has(case.sites.facts, Fact.MODULE_FORWARD)[case.asked_stack]:
        return
    latest, site = call[case.in_use].max(initial=-1), case.model_call_of(case.asked_stack)
    mine = case.in_use[(call[case.in_use] == latest) & (latest >= 0) & ~case.stays[case.in_use]]
    # Of another call, as where the first request of this one fails
    mine = mine[[case.model_call(row) == site for row in mine.tolist()]]
    number, has_rows = _rows_made(case, mine) if case.followed is not None else _rows_given(case, mine, site)
    mine, asked_bytes = mine[has_rows], case.asked_bytes
    if number <= trains or not case.is_much(mine, asked_bytes=asked_bytes, percent=_LEAST_OF_CALL):
        return
    where = f" at {site.file}:{site.line}" if site is not None else ""
    # Of a program that needs many times what there is, more parts.
    times = (case.usable_bytes + case.missing_bytes) // case.usable_bytes if case.usable_bytes else 0
    parts = max(_ROWS_PARTS, 2 * (times + 1) * (times > 1))
    parts = min(parts, number) if number > 1 else parts
    are = f"have {number:,} rows each, or a multiple of that" if number > 1 else "are of one sample, and of no graph"
    which = int(trains) if number > 1 else -1
    yield Cause(
        _NAMES_OF_ROWS[which],
        f"The large results of the call of the model{where} {are}: {case.with_asked(mine, asked_bytes)}.",
        f"{_CHANGES_OF_ROWS[which]}: this is with {parts} parts",
        lambda modelled: with_smaller_blocks(modelled, mine, parts, with_last_failure=True),
        site or case.largest_site(mine),
        GivesUp.TIME_OR_SIZE,
        names_bytes=case.bytes(mine) + asked_bytes,
        # Gradients of weights may have such a number of rows, too.
        behind=None if trains else lambda making, _: 1 / parts if making.has_rows(number) else 1.0,
    )


def _rows_made(case: Case, rows: Ints) -> tuple[int, Bools]:
    """The rows that large results of a call have in common, and which blocks have so many, as a second run showed."""
    assert case.followed is not None
    followed = case.followed
    making = [followed.making(row) for row in rows.tolist()]
    made, asked = [each for each in (*making, followed.making(None)) if each is not None], followed.making(None)
    if not made or (asked is not None and "attention" in asked.operator):
        return 0, np.zeros(len(rows), np.bool_)
    # Where a large result has other rows, or an attention is over them, these are no samples.
    largest = max(each.result.size_bytes for each in made)
    large = [each for each in made if each.result.size_bytes * _SMALL_PART >= largest]
    number = min((each.num_rows for each in large if "attention" not in each.operator), default=0)
    attends = (each for each in followed.uses.makings if "attention" in each.operator)
    if number > 1 and not all(each.has_rows(number) for each in (*large, *attends)):
        return 0, np.zeros(len(rows), np.bool_)
    may_have = (case.lives.requested_bytes[rows] % max(number, 1) == 0).tolist()  # Whose operator was not seen
    known = zip(making, may_have, strict=True)
    return number, np.array([may if each is None else each.has_rows(number) for each, may in known], np.bool_)


def _rows_given(case: Case, rows: Ints, site: Site | None) -> tuple[int, Bools]:
    """The rows of the largest tensor that the line of a call of a model names, and the blocks that may have so many."""
    known = case.objects.operands if case.objects is not None and site is not None else ()
    given = [each for each in known if site is not None and (each.file, each.line) == (site.file, site.line)]
    given = [each for each in given if each.count == 1 and len(each.shape) > 1]
    if not given:
        return 0, np.zeros(len(rows), np.bool_)
    number = max(given, key=lambda each: each.size_bytes).shape[0]
    are_rows: Bools = case.lives.requested_bytes[rows] % max(number, 1) == 0
    return number if case.asked_bytes % max(number, 1) == 0 else 0, are_rows
