"""Blocks that forward keeps for backward, logits among them, or that a line holds: causes whose change has a price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks, without_blocks
from tracer.answers.rows import BY_LINE, group_rows
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.followed import Behind
from tracer.answers.why.larger import made_larger
from tracer.answers.why.source import source_at
from tracer.arrays import Bools, Ints, at, grouped
from tracer.blocks.from_snapshot.frames import is_python, torch_file
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Site
from tracer.blocks.from_snapshot.sizes import NOTHING
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.snapshot.columns import Frame
from tracer.snapshot.replay import BEFORE
from tracer.snapshot.stacks import NO_STACK
from tracer.units import format_bytes, some

_LONGER: Final = 2
"""Times the usual size, from which on a batch is an outlier."""
_LONG_PERCENT: Final = 25
_GROWING_STEPS: Final = 5
"""Iterations, the latest included: of fewer it may be chance."""
_MUCH_PERCENT: Final = 10
_GRAPH_PARTS: Final = 4
_STAYING: Final = (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.BUFFER, Kind.WORKSPACE, Kind.GRADIENT)
_SHRINKS: Final = {
    Kind.ACTIVATION: "checkpoint what it calls (torch.utils.checkpoint){bits}, or use a smaller batch: ",
    Kind.UNKNOWN: "use a smaller batch, or let go of what this line makes: ",
    Kind.EVALUATION: "use a smaller batch: ",
}
_HALF: Final = ("bfloat16", "float16")
_USE_LESS: Final = "use less at the line that has most: "


def long_batch(case: Case) -> Iterator[Cause]:
    """The latest iteration is much larger than those before it: line by line, its blocks are.

    Where no optimizer steps, an iteration is a call of a model.
    """
    lives, steps = case.lives, case.device.kinds.phases.steps[0]
    starts = steps[steps <= case.entry] if len(steps) else _starts_of_calls(case)[1:]
    if not len(starts):
        return
    step = np.searchsorted(starts, lives.begin, side="right")
    passing = (lives.begin > BEFORE) & (lives.begin <= case.entry) & ~case.stays & has(case.facts, Fact.STACK)
    passing &= (case.kind != Kind.GRADIENT) & ~has(case.facts, Fact.OPTIMIZER_STEP)
    latest, earlier = passing & (step == len(starts)), np.flatnonzero(passing & (step < len(starts)))
    largest = np.zeros(len(case.stacks) + 1, np.int64)
    np.maximum.at(largest, case.inner_stack[earlier], lives.requested_bytes[earlier])
    before = largest[case.inner_stack]
    rows = np.flatnonzero(latest & (before > 0) & (lives.requested_bytes >= _LONGER * before))
    held = case.held(rows)
    asked_before = int(largest[case.asked_inner_stack]) if case.asked_stack else 0
    asks = 0 < _LONGER * asked_before <= case.asked_bytes
    asked = case.asked_bytes * asks
    if not len(held) or not case.is_much(held, asked_bytes=asked, percent=_LONG_PERCENT):
        yield from _growing_batches(case, np.flatnonzero(latest), earlier, step)
        return
    growth = lives.requested_bytes[held] / before[held]
    times = max(int(np.median(growth)), _LONGER)
    fullest = int(held[np.argmax(lives.requested_bytes[held])])
    old = earlier[case.inner_stack[earlier] == case.inner_stack[fullest]][0]
    # The outermost line that is not the same in the calls before.
    ways = zip(*(case.own_lines(int(case.stack[row])) for row in (fullest, old)), strict=False)
    apart = next((Site(frame.name, frame.file, frame.line) for frame, other in ways if frame != other), None)
    called = apart or (case.model_call(fullest) if not len(steps) else None)
    is_other = called is not None
    trains = not is_other or (case.trains_now and not case.is_without_grad(held))
    making = case.followed.making(fullest) if case.followed is not None else None
    number = making.num_rows if making is not None else 0
    yield Cause(
        "long batch",
        f"{f'The call at {called.file}:{called.line}' if called is not None else 'This iteration'} is "
        f"larger than those before: of the same lines it has blocks at least {int(growth.min()):,} times as large, "
        f"{case.with_asked(held, asked)}.",
        "call the model with less at once there (a smaller batch, or shorter samples), and "
        + ("backward for each part (gradients add up)" if trains else "put the results together on the host")
        if is_other
        else "make these in parts, or limit what they grow with"
        if not case.in_model[held].any()
        else "limit the length (or size) of a sample, or take fewer of such samples into a batch (by their length "
        "together, as a number of tokens)",
        lambda modelled: with_smaller_blocks(modelled, rows, times, with_last_failure=asks),
        case.largest_site(held),
        GivesUp.TIME_OR_SIZE if trains else GivesUp.A_LITTLE,
        behind=lambda each, _: 1 / times if number > 1 and each.has_rows(number) else 1.0,
    )


def _growing_batches(case: Case, latest: Ints, earlier: Ints, step: Ints) -> Iterator[Cause]:
    """Blocks of the latest iteration that are larger than those of the same lines in each before; `step` is [lives]."""
    size, held = case.lives.requested_bytes, case.held(latest)
    if not len(held):
        return
    fullest, both = held[np.argmax(size[held])], np.append(earlier, latest)
    alike = both[case.inner_stack[both] == case.inner_stack[fullest]]
    largest = np.zeros(int(step[fullest]) + 1, np.int64)
    np.maximum.at(largest, step[alike], size[alike])
    largest = largest[largest > 0]
    if len(largest) < _GROWING_STEPS or (np.diff(largest) <= 0).any() or largest[-1] < _LONGER * largest[0]:
        return
    smallest = np.full(int(case.inner_stack.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(smallest, case.inner_stack[earlier], size[earlier])
    rows = held[size[held] >= _LONGER * smallest[case.inner_stack[held]]]
    grown = np.concatenate([held[:0], *made_larger(case)])  # of a cache
    if not case.is_much(rows, percent=_LONG_PERCENT) or case.is_share(np.intersect1d(rows, grown), of=rows):
        return
    times = int(largest[-1] // largest[0])
    yield Cause(
        "growing batches",
        f"Each iteration is larger than the one before: a block of one line has {format_bytes(int(largest[0]))} in the "
        f"first of {len(largest)}, and {format_bytes(int(largest[-1]))} in this one; {case.words(rows)}"
        f"{case.lines(rows)} are of lines that made less before.",
        "keep batches at one size: look at how each is cut out of the data (its start and its end)",
        lambda modelled: with_smaller_blocks(modelled, rows, times),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
        names_bytes=case.bytes(rows),
    )


def _starts_of_calls(case: Case) -> Ints:
    """The entries of the first blocks that calls of models made, up to the moment, in order."""
    begin, (call, _) = case.lives.begin, case.calls
    rows = np.flatnonzero((call >= 0) & (begin <= case.entry))
    rows = rows[np.argsort(begin[rows])]
    _, first = np.unique(call[rows], return_index=True)
    return begin[rows[first]]


def logits_over_the_step(case: Case) -> Iterator[Cause]:
    """Logits that a variable holds through backward, and all else that variables hold into the next iteration."""
    rows = _over_the_step(case)
    logits = _logits_held(case, rows)
    if not case.is_much(held := case.held(logits)):
        return
    backward = case.device.kinds.phases.seen_backwards.start
    behind = np.searchsorted(backward, case.lives.begin[logits], side="right")
    logits, behind = logits[behind < len(backward)], behind[behind < len(backward)]
    others = rows[~np.isin(rows, logits)]
    yield from _held_over(
        case,
        np.append(others, logits),
        np.append(_next_step(case, others), backward[behind]),
        f"A variable keeps the logits, {case.words(held)}{case.lines(held)}, through backward and into the next "
        "iteration, and nothing needs them once the loss is computed.",
        "`del` the logits (the model's output) before loss.backward()",
    )


def variables_over_the_step(case: Case) -> Iterator[Cause]:
    """Blocks that variables hold over an optimizer's step, into the next iteration."""
    rows = _over_the_step(case)
    if not case.is_much(case.held(_logits_held(case, rows))):
        yield from _held_over(
            case,
            rows,
            _next_step(case, rows),
            f"Variables keep {some(len(rows), 'block')} over the optimizer's step, into the next iteration.",
            "let go of what variables keep over the optimizer's step (del, .item(), .detach())",
        )


def _over_the_step(case: Case) -> Ints:
    start, lives = case.device.kinds.phases.steps[0], case.device.replay.lives
    next_step = np.searchsorted(start, lives.begin, side="right")
    starts = np.append(start, [len(case.state.trace) + 1] * 2)
    # Over one step: what outlives a second one is kept for good, and is growth.
    has_step = (lives.end > starts[next_step]) & (lives.end <= starts[next_step + 1])
    is_held = (case.kind == Kind.HELD) | ((case.kind == Kind.ACTIVATION) & _is_freed_by_program(case))
    return np.flatnonzero(is_held & has_step & case.device.kinds.facts.meets_backward)


def held_until_made_again(case: Case) -> Iterator[Cause]:
    """Results of the line that failed from before the last backward, outside of models, as a variable may have them."""
    rows = case.in_use[(case.stack == case.asked_stack)[case.in_use]] if case.has_failed else NOTHING
    begin = case.lives.begin[rows]
    rows = rows[~case.in_model[rows] & ~case.stays[rows] & (begin > BEFORE) & (begin < case.last_learning)]
    rows = np.setdiff1d(rows, NOTHING if case.in_graphs is None else case.in_graphs)
    # More of them are growth.
    if not 0 < len(rows) <= 2 or not case.is_much(rows, percent=_MUCH_PERCENT) or case.are_used(rows):
        return
    over, holder = np.full(len(rows), case.last_learning + 1), case.holder_words(rows)
    yield Cause(
        "held until made again",
        f"The line that failed has made {case.words(rows)} before the last backward or step, which are still in use as "
        f"it makes them again{f'; held by {holder}' if holder else ''}.",
        "let go of them at the end of each iteration (`del`)",
        lambda modelled: with_earlier_frees(modelled, rows, over),
        case.largest_site(rows),
        names_bytes=case.bytes(rows),
    )


def _next_step(case: Case, rows: Ints) -> Ints:
    """The entry at which the optimizer's step behind each block begins."""
    start = case.device.kinds.phases.steps[0]
    return start[np.searchsorted(start, case.lives.begin[rows], side="right")]


def _held_over(case: Case, rows: Ints, entry: Ints, words: str, change: str) -> Iterator[Cause]:
    if len(rows) and case.is_worth(end=(rows, entry)):
        largest = rows[np.argmax(case.lives.requested_bytes[rows])]
        site = case.sites.site(int(case.lives.stack[largest]))
        yield Cause(
            "held over the step", words, change, lambda modelled: with_earlier_frees(modelled, rows, entry), site
        )


def _logits_held(case: Case, rows: Ints) -> Ints:
    """Blocks of the line that made the logits among some blocks: a loss saves what it makes of logits, not them."""
    last = _last_result(case, has_loss=True) if case.with_frame(_is_cross_entropy).any() else None
    if last is None:
        return rows[:0]
    size = case.lives.requested_bytes
    lines = np.unique(case.stack[rows[has(case.facts[rows], Fact.LAYER) & (size[rows] == size[last])]])
    return np.flatnonzero(np.isin(case.stack, lines) & (case.lives.begin > BEFORE) & (case.lives.begin < case.entry))


def _is_freed_by_program(case: Case) -> Bools:
    """True for each block that, by its free's stack, the program released last, and not autograd."""
    lives, trace = case.lives, case.state.trace
    stack = at(trace.stack, lives.free_entry, NO_STACK)
    # With `context="alloc"` a free repeats the allocation's stack.
    is_own = (stack != lives.stack) & has(case.sites.facts[stack], Fact.STACK)
    is_freed: Bools = is_own & ~has(case.sites.facts[stack], Fact.ENGINE, Fact.RELEASE_SAVED)
    return is_freed


def graph_of_gradient(case: Case) -> Iterator[Cause]:
    """Blocks that a finished backward saved for a derivative of its gradient (`create_graph=True`)."""
    lives, phases = case.lives, case.device.kinds.phases
    is_over = [runs.end_after(lives.begin) <= case.entry for runs in (phases.backwards, phases.stackless_runs)]
    # A gradient that torch.autograd.grad returns, or a hook keeps, is of another kind, or not known.
    is_made = np.logical_or(*is_over) & np.isin(case.kind, (Kind.ACTIVATION, Kind.AUTOGRAD_DETAIL))
    kept = case.in_use[is_made[case.in_use]]
    if not case.is_much(kept, percent=_MUCH_PERCENT):
        return
    forward = np.flatnonzero(np.isin(lives.stack, case.forward[kept]) & (case.kind != Kind.PARAMETER))
    rows = np.union1d(kept, forward)
    yield Cause(
        "graph of a gradient",
        f"A backward kept a graph of its own (create_graph=True): {case.words(kept)}{case.lines(kept)}, beside what "
        "forward keeps for it.",
        "take that gradient of a part of the batch (a quarter here), and call backward() for each term of the loss by "
        "itself, the term with that gradient first",
        lambda modelled: with_smaller_blocks(modelled, rows, _GRAPH_PARTS),
        case.largest_site(kept),
        GivesUp.TIME_OR_SIZE,
    )


def largest_line(case: Case) -> Iterator[Cause]:
    """The line whose blocks fill most of the peak, of those that do not stay from step to step."""
    lives = case.device.replay.lives
    at_peak = lives.alive_after(case.device.replay.peak_entry)
    at_peak = at_peak[~np.isin(case.kind[at_peak], _STAYING)]
    groups, group_of_row = group_rows(case.device.blocks.take(at_peak), merged=BY_LINE)
    passing = [
        (group.bytes, number)
        for number, group in enumerate(groups)
        if not group.is_before_recording and group.site.frame != NO_FRAMES
    ]
    if not passing:
        return
    group = groups[max(passing)[1]]
    key = lives.stack.astype(np.int64) * (int(case.forward.max(initial=0)) + 2) + case.forward + 1
    mine = at_peak[group_of_row == max(passing)[1]]
    rows = np.flatnonzero(np.isin(key, key[mine]) & (case.kind == case.kind[mine[0]]) & (lives.begin > BEFORE))
    if case.is_worth(without=rows):
        held = case.held(rows)
        holder = case.holder_of(held)
        is_held_itself = holder is not None and holder.graph_of is None
        starts = _starts_of_calls(case)
        is_set_up = bool(len(starts)) and lives.begin[held].max(initial=0) < starts[0]  # no batch makes it smaller
        is_set_up |= bool(has(case.facts[held], Fact.CONSTRUCTOR, Fact.MODULE_SETUP).all())
        known = (case.followed.making(row) for row in held.tolist()) if case.followed is not None else ()
        are_wide = all(making is None or making.result.dtype not in _HALF for making in known)
        shrinks = "keep it on the host, or in fewer bits: " if is_set_up else _SHRINKS.get(group.kind, _USE_LESS)
        shrinks = shrinks.format(bits=", run it in bfloat16" if are_wide else "")
        yield Cause(
            "largest line",
            f"{case.words(held)}{case.lines(held, 1)} are held by {case.holder_words(held)}." if is_held_itself else "",
            f"{shrinks}this is without its {some(group.count, 'block')} there ({group.kind.words}), and those that it "
            "makes at other times",
            lambda modelled: without_blocks(modelled, rows),
            group.site,
            GivesUp.UNKNOWN,
        )


_PARTS: Final = 4
_TIMES: Final = 2
"""By how much logits are larger than any other layer's result, at least."""
_SIZES: Final = (0.5, 1.0, 2.0)
"""Sizes relative to the logits: a copy in fewer or more bits, a log-softmax, a gradient."""
_LEAST_PERCENT: Final = 25


def logits(case: Case) -> Iterator[Cause]:
    """Copies of the largest layer's result, which is the last one's, and the cross entropy's blocks."""
    lives = case.lives
    made = np.flatnonzero((lives.begin > BEFORE) & (lives.begin <= case.last_entry))
    is_loss = case.with_frame(_is_cross_entropy)
    of_loss = made[is_loss[lives.stack[made]] | at(is_loss, case.forward[made], False)]
    is_asked_by_loss = bool(is_loss[case.asked_stack])
    last = _last_result(case, has_loss=is_asked_by_loss or len(of_loss) > 0)
    size = int(lives.requested_bytes[last]) if last is not None else 0
    given = np.append(lives.requested_bytes[of_loss], [case.asked_bytes] if is_asked_by_loss else [])
    has_loss = bool(_is_alike(given, size).any()) if size else len(given) > 0
    behind = _made_of(case, made[~case.stays[made]], last) if last is not None else of_loss[:0]
    alike = behind[_is_alike(lives.requested_bytes[behind], size)]
    rows = np.union1d(np.union1d(of_loss, alike) if has_loss else alike, _row_by_row(case, behind, size))
    held = case.held(rows)
    asks = bool(size) and bool(_is_alike(np.array([case.asked_bytes]), size).all())
    others = np.setdiff1d(made[case.in_model[made]], behind)
    asks &= case.asked_bytes not in lives.requested_bytes[others]
    asks |= is_asked_by_loss
    asked = case.asked_bytes * asks
    if len(held) + asks < 2 or not case.is_much(held, asked_bytes=asked, percent=_LEAST_PERCENT):
        if len(of_loss) and case.is_worth(without=of_loss):
            sentence = f"The cross entropy makes {case.words(of_loss)} of the logits."
            yield _cause(case, of_loss, sentence, has_loss=True)
        return
    what = "logits" if has_loss else "last layer's results"
    which = f"{format_bytes(size)}" if size else "large"
    yield _cause(
        case,
        rows,
        f"The {what} ({which}) and blocks of their size or twice or half of it, such as copies, a softmax and "
        f"gradients, fill {case.with_asked(held, asked, 3)}.",
        has_loss=has_loss,
        asks=asks,
        behind=_in_parts_behind(case, last),
    )


def _in_parts_behind(case: Case, last: int | None) -> Behind | None:
    """Share of later blocks that have a value for each logit; None where the operator of these was not seen."""
    if last is None or case.followed is None or (made := case.followed.making(last)) is None:
        return None
    words, least_bytes = made.result.shape[-1:], made.result.size_bytes // _TIMES
    return lambda making, _: (
        1 / _PARTS if making.result.shape[-1:] == words and making.result.size_bytes >= least_bytes else 1.0
    )


def _made_of(case: Case, rows: Ints, last: int) -> Ints:
    """Blocks made behind a last layer's result, before the next call of a model; in backward, of what was made there.

    Args:
        last: Its block in the latest call.
    """
    begin = case.lives.begin
    is_last = (case.stack == case.stack[last]) & (case.lives.requested_bytes == case.lives.requested_bytes[last])
    results, starts = np.sort(begin[is_last]), np.sort(_starts_of_calls(case))
    nth = np.searchsorted(results, begin[rows], side="right") - 1
    latest = np.append(results, BEFORE)[nth]
    is_behind = (nth >= 0) & (np.searchsorted(starts, begin[rows]) == np.searchsorted(starts, latest))
    is_of_engine = has(case.facts[rows], Fact.ENGINE)
    stacks = np.unique(case.lives.stack[rows[is_behind & ~is_of_engine]])
    others = rows[~is_behind & ~is_of_engine & case.in_model[rows]]
    are_alike = np.isin(case.lives.requested_bytes[rows], case.lives.requested_bytes[others])
    is_of_them = np.where(case.forward[rows] >= 0, np.isin(case.forward[rows], stacks), ~are_alike)
    mine: Ints = rows[is_behind & (~is_of_engine | is_of_them)]
    return mine


def _cause(
    case: Case, rows: Ints, sentence: str, *, has_loss: bool, asks: bool = False, behind: Behind | None = None
) -> Cause:
    forward = rows[~has(case.facts[rows], Fact.ENGINE)]
    trains = case.trains_now or case.last_learning > BEFORE or bool(has(case.facts, Fact.BACKWARD_CALL).any())
    lines = [own[-1] for stack in {*case.stack[rows].tolist(), case.asked_stack} if (own := case.own_lines(stack))]
    ignores = has_loss and any("ignore_index" in source_at(frame) for frame in lines)
    some_alone = "give the last layer the tokens alone that the loss does not ignore (ignore_index); or " * ignores
    change = some_alone + (
        f"compute the loss, or the log-probabilities, in {_PARTS} parts of the tokens, each recomputed in backward "
        "(torch.utils.checkpoint), or by an operator that never makes the logits whole (a fused linear cross entropy)"
        if has_loss
        else f"go over {_PARTS} parts of them, each recomputed in backward (torch.utils.checkpoint)"
        if trains
        else "take what is needed of them before anything is made of them (such as [:, -1]), or go over "
        f"{_PARTS} parts of the batch"
    )
    return Cause(
        "logits",
        sentence,
        change,
        lambda modelled: with_smaller_blocks(modelled, rows, _PARTS, with_last_failure=asks),
        case.largest_site(forward),
        GivesUp.A_LITTLE,
        behind=behind,
    )


def _is_cross_entropy(frame: Frame) -> bool:
    return is_python(frame) and ("cross_entropy" in frame.name or frame.name == "ForCausalLMLoss")


def _last_result(case: Case, *, has_loss: bool) -> int | None:
    """The last layer's result in the latest call, where it is much larger than all others' of that call.

    Args:
        has_loss: Whether a cross entropy was seen; without one, the result of a convolution is no logits.
    """
    if has(case.sites.facts, Fact.LAYER)[case.asked_stack]:
        return None  # A later layer was asked for its result
    in_layer = np.flatnonzero(has(case.facts, Fact.LAYER) & ~has(case.facts, Fact.ENGINE) & ~case.stays)
    call, _ = case.calls
    in_layer = in_layer[(call[in_layer] >= 0) & (case.lives.begin[in_layer] <= case.entry)]
    if not len(in_layer):
        return None
    mine = in_layer[call[in_layer] == call[in_layer].max()]
    mine = mine[np.argsort(case.lives.begin[mine])]
    files = {torch_file(frame) for frame in case.stacks[int(case.lives.stack[mine[-1]])]}
    # An embedding is no last layer: others of the program's own come behind it.
    if "nn/modules/sparse.py" in files or ("nn/modules/conv.py" in files and not has_loss):
        return None
    *others, last = case.lives.requested_bytes[mine].tolist()
    return int(mine[-1]) if others and last >= _TIMES * max(others) else None


def _row_by_row(case: Case, passing: Ints, of: int) -> Ints:
    """Blocks that a line makes of the logits one row of the batch after the other, and that are there together."""
    size = case.lives.requested_bytes[passing]
    by_line = grouped([case.stack[passing], size], lambda *line: line)
    together = np.array(by_line.sums(size * np.isin(passing, case.in_use)), np.int64)
    return passing[_is_alike(together[by_line.of_row], of)]


def _is_alike(size: Ints, of: int) -> Bools:
    """Mark the sizes of copies of the logits."""
    is_alike: Bools = np.logical_or.reduce([np.abs(size - times * of) <= 0.01 * of for times in _SIZES])
    return is_alike
