"""Memory that grows from one iteration of the program to the next: what each leaves behind.

An iteration is a step of the optimizer, or where none is near, what lies between two allocations of a line that runs
once in each, outside of modules: the batch, a loss, a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import (
    with_earlier_frees,
)
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.copies import are_copies_of_weights
from tracer.answers.why.evaluation import frees_what_others_keep
from tracer.answers.why.holding import are_listed_states, cycle_of
from tracer.answers.why.larger import in_its_library
from tracer.answers.why.line_results import is_list_of_join
from tracer.answers.why.source import updates_itself
from tracer.arrays import Bools, Ints, grouped
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Site
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.capture.objects.at_failure import GRAPH_OF
from tracer.snapshot.columns import Frame
from tracer.snapshot.replay import BEFORE
from tracer.snapshot.stacks import NO_STACK
from tracer.units import format_bytes

_LEAST_ITERATIONS: Final = 3
_MOST_LINES: Final = 24
"""Number of lines that may run once in an iteration."""
_NOT_THE_LOOPS: Final = (Fact.ENGINE, Fact.BACKWARD_CALL, Fact.OPTIMIZER_STEP, Fact.MODULE_SETUP)
_MOST_UNEVEN: Final = 4
"""Times the usual distance between two iterations that leave something."""
_MOST_UNLIKE: Final = 8
"""Times that what iterations leave is more on average than in the middle one of them."""
_KEPT_OF_FORWARD: Final = 0.25
"""Share of all that forward made: with less, a graph is not what is kept."""
_GRAPHS_BLOCKS: Final = 2
"""Blocks that an iteration leaves at least, where it leaves a graph."""
_LEAST_KEPT: Final = 2
"""Blocks, and iterations of each, of a queue that has let go of some."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Blocks that iterations left behind."""

    starts: Ints  # First entries of the iterations, in order
    rows: Ints  # Blocks in use that are of an iteration before the last whole one
    iteration: Ints  # The iteration of each of these
    are_steps: bool  # They are steps of the optimizer

    @property
    def num_iterations(self) -> int:
        """Iterations that left something."""
        return len(np.unique(self.iteration))


def growth(case: Case) -> Iterator[Cause]:
    """A graph or results that each iteration leaves."""
    if (grown := _most_grown(case)) is None:
        return
    number = grown.num_iterations
    each = format_bytes(case.bytes(grown.rows) // number)
    what = "step" if grown.are_steps else "iteration"
    left = f"Memory grows: each of {number:,} {what}s left {each}, {case.words(grown.rows)} by now"
    ends = grown.starts[np.minimum(grown.iteration + 1, len(grown.starts) - 1)]
    site = case.largest_site(grown.rows)
    if (cycle := cycle_of(case, grown.rows)) is not None:
        yield Cause(
            "reference cycle",
            f"{left}{case.lines(grown.rows)}: {cycle.words}.",
            cycle.change,
            lambda modelled: with_earlier_frees(modelled, grown.rows, ends),
            site,
            grows="memory grows",
        )
        return
    if _is_graph(case, grown):
        is_for_later = case.is_for_later_backward(grown.rows) or case.are_used(grown.rows, in_backward=True)
        # A step is behind its backward, but for one that differentiates through gradients.
        is_needed = is_for_later and (not grown.are_steps or _is_of_backward(case, grown.rows))
        by = case.holder_words(grown.rows) or case.several_words(grown.rows)
        by = by or (
            f"a tensor that outlives its {what} (a loss in a list or a running sum, a metric, an output, a hidden "
            "state, a gradient with a graph)"
        )
        held = (
            f"that one backward behind these {what}s needs, all at once"
            if is_needed
            else f"that backward needs, held by {by}"
        )
        yield Cause(
            "graphs kept",
            f"{left}{case.lines(grown.rows)}: the graph {held}.",
            _in_parts(case, grown, what) if is_needed else _detached(case, grown, what),
            lambda modelled: with_earlier_frees(modelled, grown.rows, ends),
            site,
            grows="memory grows",
            shortens=True,
        )
        return
    if is_list_of_join(case, grown.rows) or are_listed_states(case, grown.rows):
        return
    if case.objects is not None and case.objects.seen:
        seen = np.intersect1d(grown.rows, case.at_addresses(case.objects.seen))
        if not case.is_share(seen, of=grown.rows, percent=50):
            return  # the call that failed held them, as a list under construction, and not the program
    inside = grown.rows[case.in_model[grown.rows]]
    are_copies = are_copies_of_weights(case, grown.rows)
    if are_copies and case.with_frame(_is_comprehension)[case.lives.stack[grown.rows]].all():
        return  # one pass over the weights, and no iterations of the program
    kept = "copies of the model's weights" if are_copies else "results"
    holder = (
        "a list, a hook or a module"
        if case.is_share(inside, of=grown.rows, percent=50)
        else "a list, a buffer or a cache"
    )
    several = case.several_words(grown.rows)
    holder = case.holder_words(grown.rows) or several or holder
    are_read = case.are_used(grown.rows)
    yield Cause(
        "results kept",
        f"{left}{case.lines(grown.rows)}: {kept} kept on the device by {holder}"
        f"{', and read again by the program' if are_read else ''}.",
        "keep fewer of them, or keep them on the host (.cpu()) and move each back as it is read"
        if are_read
        else "let go of what is done in each of these (`del`), or keep it on the host (.cpu())"
        if several and not case.holder_words(grown.rows)
        else "move each result to the host before it is kept (.cpu()), or keep what is needed of it (.item(), "
        ".argmax())" + in_its_library(case, grown.rows),
        lambda modelled: with_earlier_frees(modelled, grown.rows, ends),
        site,
        GivesUp.TIME_OR_SIZE if are_read else GivesUp.NOTHING,
        grows="memory grows",
    )


def parameters_added(case: Case) -> Iterator[Cause]:
    """Parameters that iterations add to a model, or to others, as adapters of further tasks."""
    # Parameters and buffers made since the first call of a model
    is_model = (case.kind[case.in_use] == Kind.PARAMETER) | case.is_set_up[case.in_use]
    first = next(iter(_forwards(case).tolist()), case.last_entry)
    if not case.is_much(case.in_use[is_model & (case.lives.begin[case.in_use] > first)], percent=_CALLS_PERCENT):
        return
    ways = (_grown(case, starts, are_steps, of_model=True) for starts, are_steps in _iterations(case))
    grown = max(filter(None, ways), key=lambda grown: case.bytes(grown.rows), default=None)
    if grown is None or not case.is_much(grown.rows, percent=_CALLS_PERCENT):
        return
    number, holder = grown.num_iterations, case.holder_words(grown.rows) or case.several_words(grown.rows)
    ends = grown.starts[np.minimum(grown.iteration + 1, len(grown.starts) - 1)]
    yield Cause(
        "parameters added",
        f"Memory grows: each of {number:,} iterations left {format_bytes(case.bytes(grown.rows) // number)} of "
        f"parameters (or buffers), {case.words(grown.rows)} by now{case.lines(grown.rows)}"
        f"{f', held by {holder}' if holder else ''}.",
        "delete those that are done, or load the next ones in their place",
        lambda modelled: with_earlier_frees(modelled, grown.rows, ends),
        case.largest_site(grown.rows),
        GivesUp.A_LITTLE,
        grows="memory grows",
    )


def _most_grown(case: Case) -> Grown | None:
    """Blocks that iterations left, by the way to tell iterations apart that explains most; None for few bytes."""
    ways = [grown for starts, are_steps in _iterations(case) if (grown := _grown(case, starts, are_steps)) is not None]
    most = max(ways, key=lambda grown: (case.bytes(grown.rows), grown.are_steps), default=None)
    found = [grown for grown in (most, _grown_before(case)) if grown is not None and case.is_much(grown.rows)]
    return max(found, key=lambda grown: case.bytes(grown.rows), default=None)


_LEAST_ANEW: Final = 2
"""Blocks of a line that a call has made: after the first of them, the one of the call before may still go."""
_CALLS_PERCENT: Final = 10


def results_of_calls(case: Case) -> Iterator[Cause]:
    """Results of earlier calls of a model, beside those that the same lines make again in the call that failed.

    A cache or a state that a call carries on is let go of, layer by layer, as its successor is made. Lines at which
    memory grows are another cause.
    """
    lives, call = case.lives, case.calls[0]
    made = np.flatnonzero((call >= 0) & ~case.stays & (lives.begin <= case.entry))
    if case.in_graphs is None or not len(made) or not case.holders:
        return
    ends = np.full(int(call.max()) + 1, BEFORE)
    np.maximum.at(ends, call[made], lives.begin[made])
    last = int(call[made].max())
    start = int(lives.begin[made[call[made] == last]].min())
    made = made[(lives.end[made] > ends[call[made]]) & ~np.isin(made, case.in_graphs)]
    of_line = grouped([case.inner_stack[made], lives.requested_bytes[made]], lambda *line: line).of_row
    is_old, is_left = call[made] < last, lives.end[made] > case.entry
    anew = np.bincount(of_line, ~is_old & is_left)
    lines = np.arange(len(anew))
    before = np.zeros(len(anew), np.int64)  # The last earlier call of each line
    np.maximum.at(before, of_line[is_old], call[made][is_old])
    is_before = is_old & (call[made] == before[of_line])
    are_all_left = np.bincount(of_line, is_before & ~is_left, len(lines)) == 0
    rows = made[is_old & is_left & ((anew >= _LEAST_ANEW) & are_all_left)[of_line]]
    if case.is_much(rows, percent=_CALLS_PERCENT) and (grown := _most_grown(case)) is not None:
        rows = rows[~np.isin(case.stack[rows], case.stack[grown.rows])]
    holder = case.one_of_holders(rows)
    if not holder or not case.is_much(rows, percent=_CALLS_PERCENT) or case.are_used(rows):
        return
    yield Cause(
        "results of earlier calls",
        f"{case.words(rows)}{case.lines(rows)} are of earlier calls, and no graph keeps them; this call makes such "
        f"blocks again beside them. Among their holders is {holder}.",
        "let go of what nothing reads any more before the next call (del the variable, or the attribute that a hook "
        "has set), or keep it on the host (.cpu())",
        lambda modelled: with_earlier_frees(modelled, rows, np.full(len(rows), start)),
        case.largest_site(rows),
        names_bytes=case.bytes(rows),
    )


def _is_comprehension(frame: Frame) -> bool:
    return frame.name in ("<listcomp>", "<dictcomp>", "<setcomp>")


def _detached(case: Case, grown: Grown, what: str) -> str:
    """The change for graphs; where no backward ran in these iterations, it may be no training at all."""
    holder = case.holder_of(grown.rows)
    path = holder.path if holder is not None else case.one_of_several(grown.rows)
    detach = f"detach what is kept from one {what} to the next (.detach(); .item() of a loss)"
    if path.endswith(GRAPH_OF):
        detach = f"detach what {path.removesuffix(GRAPH_OF)} is given (.detach(), or .item() of a loss)"
    elif path and not path.isidentifier():
        detach = f"let go of {path} when its {what} is over (del), or keep it without its graph (.detach())"
    if case.is_evaluating:
        return f"evaluate under `with torch.no_grad():`, and {detach}"
    if grown.are_steps or case.last_learning >= int(grown.starts[0]):
        return detach
    training = _in_parts(case, grown, what)
    if case.is_training:
        return f"{detach}, or run it under `with torch.no_grad():` if no loss needs it; else {training}"
    return f"evaluate under `with torch.no_grad():`; in a training, {training}; {detach}"


def _in_parts(case: Case, grown: Grown, what: str) -> str:
    """The change for graphs that one backward needs."""
    if _is_of_backward(case, grown.rows):
        return (
            f"differentiate through fewer of these {what}s, or not through their gradients (create_graph=False, the "
            "first order), or use a smaller batch in each"
        )
    return (
        "call backward() for each part of a batch in place of once for the sum of their losses (gradients add up), or "
        f"checkpoint each {what} (torch.utils.checkpoint) where one loss needs them all"
    )


def _is_of_backward(case: Case, rows: Ints) -> bool:
    """True if a backward made a good part of some blocks, for a graph of its own (`create_graph=True`)."""
    return case.is_share(rows[has(case.facts[rows], Fact.ENGINE)], of=rows)


def _iterations(case: Case) -> Iterator[tuple[Ints, bool]]:
    """First entries of iterations, in several ways, and whether these are steps."""
    kinds = case.device.kinds
    for runs in (kinds.phases.steps, kinds.phases.backwards, kinds.phases.stackless_runs):
        starts = _of_one_line(case, _behind_forwards(case, runs[0][runs[0] <= case.entry]))
        if len(starts) >= _LEAST_ITERATIONS:
            yield starts, True
            break
    else:
        starts = np.zeros(0, np.int64)
    lives, is_loops = case.lives, ~has(case.facts, *_NOT_THE_LOOPS) & has(case.facts, Fact.STACK) & ~case.in_model
    made = np.flatnonzero(is_loops & (case.lives.begin > case.last_learning) & (lives.begin <= case.entry))
    stack, count = np.unique(case.stack[made], return_counts=True)
    of_count: dict[int, int] = {}
    for number, times in zip(stack.tolist(), count.tolist(), strict=True):
        if times >= _LEAST_ITERATIONS and not _is_inside_steps(case, number, starts):
            of_count[times] = number
    for times in sorted(of_count)[:_MOST_LINES]:
        starts = np.sort(lives.begin[made][case.stack[made] == of_count[times]])
        yield _of_one_pass(case, starts, of_count[times]), False


def _of_one_pass(case: Case, starts: Ints, stack: int) -> Ints:
    """Keep the first of several starts between which its function has done nothing else, as a comprehension's.

    A loop of one line does nothing else either: where too few are left, or each pass has another number, all stay.
    """
    own = next((frame for frame in reversed(case.own_lines(stack)) if not _is_comprehension(frame)), None)
    if own is None:
        return starts
    is_else = case.with_frame(lambda frame: (frame.name, frame.file) == (own.name, own.file) and frame.line != own.line)
    others = np.sort(case.lives.begin[is_else[case.lives.stack]])
    number = np.searchsorted(others, starts)
    _, first, count = np.unique(number, return_index=True, return_counts=True)
    is_even = len(first) >= _LEAST_ITERATIONS and len(np.unique(count[:-1])) == 1
    return starts[first] if is_even else starts


def _behind_forwards(case: Case, starts: Ints) -> Ints:
    """Keep the first start behind each forward: one backward may be seen in several pieces."""
    forwards = _forwards(case)
    last = np.searchsorted(forwards, starts)
    return starts[np.diff(last, prepend=-1) > 0] if len(forwards) else starts


def _of_one_line(case: Case, starts: Ints) -> Ints:
    """Return the starts of the last line alone, if lines make steps in turn, like a generator's and its critic's."""
    sites = [case.sites.site(stack) for stack in case.state.trace.stack[starts].tolist()]
    times = Counter(sites)
    if len(times) < 2 or Site(NO_FRAMES) in times or min(times.values()) * 2 * len(times) < len(starts):
        return starts
    return starts[[site == sites[-1] for site in sites]]


def _forwards(case: Case) -> Ints:
    return np.flatnonzero(has(case.sites.facts[case.state.trace.stack], Fact.MODULE_FORWARD))


def _is_inside_steps(case: Case, stack: int, steps: Ints) -> bool:
    """True if a line runs several times in most steps: it is then a part of each, and not a loop around them."""
    if len(steps) < 2:
        return False
    begin = case.lives.begin[(case.stack == stack) & (case.lives.begin > BEFORE)]
    inside = np.bincount(np.searchsorted(steps, begin, side="right"), minlength=len(steps) + 1)[1:-1]
    return bool((inside >= 2).mean() > 0.5) if len(inside) else False


def _grown(case: Case, starts: Ints, are_steps: bool, *, of_model: bool = False) -> Grown | None:
    """Blocks that are in use though their iteration and the one behind it are over, if most iterations left some.

    Args:
        of_model: Whether parameters are asked about, or all but these and what modules made in their setup.
    """
    rows = case.in_use
    begin = case.lives.begin[rows]
    iteration = np.searchsorted(starts, begin, side="right") - 1
    is_model = (case.kind[rows] == Kind.PARAMETER) | case.is_set_up[rows]
    is_else = ~case.stays[rows] & ~_may_be_of_parameters(case, rows) & ~case.is_set_up[rows]
    is_old = (iteration >= 0) & (iteration < len(starts) - 2) & (begin > BEFORE)
    is_old &= is_model if of_model else is_else
    # Before the first call of a model data is loaded, and the model is made.
    if len(forwards := _forwards(case)):
        is_old &= begin >= forwards[0]
    elif case.last_learning <= BEFORE and ((case.kind == Kind.PARAMETER) & (case.lives.begin > BEFORE)).any():
        return None
    rows, iteration = rows[is_old], iteration[is_old]
    lines = _grown_lines(case, rows, iteration, max(len(starts) - 2, 1)) & ~_are_replaced(case, rows, starts)
    rows, iteration = rows[lines], iteration[lines]
    if not len(rows) or not _are_alike(case, rows, iteration):
        return None
    return Grown(starts, rows, iteration, are_steps)


def _may_be_of_parameters(case: Case, rows: Ints) -> Bools:
    """True for each gradient of a size of which there are no more than parameters: each of these has one."""
    size, kind = case.lives.requested_bytes[rows], case.kind[rows]
    _, of_size = np.unique(size, return_inverse=True)
    gradients, parameters = (np.bincount(of_size, kind == of) for of in (Kind.GRADIENT, Kind.PARAMETER))
    is_one: Bools = (kind == Kind.GRADIENT) & (gradients <= parameters)[of_size]
    return is_one


def _are_alike(case: Case, rows: Ints, iteration: Ints) -> bool:
    """True if most iterations left a good part of the usual: an operator that makes large and small blocks is none."""
    left = np.bincount(iteration, case.lives.requested_bytes[rows])
    left = left[left > 0]
    return bool(np.median(left) * _MOST_UNLIKE >= left.mean())


def _are_replaced(case: Case, rows: Ints, starts: Ints) -> Bools:
    """True for each block of a line that let go of older ones which it had kept as long, as a bounded queue does."""
    lives, maker = case.lives, case.maker
    first, last = (np.searchsorted(starts, each, side="right") for each in (lives.begin, lives.end))
    is_over = (lives.end <= case.entry) & (lives.begin > BEFORE) & (last - first >= _LEAST_KEPT)
    kept = np.bincount(maker[is_over], minlength=int(maker.max(initial=0)) + 1)
    is_older = np.zeros(len(rows), np.bool_)
    for number in np.unique(maker[rows]).tolist():
        mine = maker[rows] == number
        oldest = len(starts) - int(first[rows[mine]].min())
        longest = int((last - first)[is_over & (maker == number)].max(initial=0))
        is_older |= mine & (kept[number] >= _LEAST_KEPT) & (longest + 1 >= oldest)
    return is_older


def _grown_before(case: Case) -> Grown | None:
    """Blocks from before the recording whose stack is known, as it was recorded, and made such blocks again since.

    A stack with 3 blocks of a size from before, and 2 since, has run in 5 iterations; one with 6 and 4 of each of two
    sizes, likewise.
    """
    lives, rows = case.lives, case.in_use
    is_left = ~case.stays[rows] & (case.kind[rows] != Kind.GRADIENT) & ~case.is_set_up[rows]
    rows = rows[is_left & (case.stack[rows] != NO_STACK) & ~has(case.facts[rows], *_NOT_THE_LOOPS)]
    rows = rows[np.lexsort((lives.begin[rows], case.stack[rows]))]
    edges = np.flatnonzero(np.diff(case.stack[rows])) + 1
    found = [(mine, number) for mine in np.split(rows, edges) if (number := _times_before(case, mine))]
    if not found:
        return None
    largest, number = max(found, key=lambda of: case.bytes(of[0]))
    alike = [mine for mine, times in found if times == number]
    iteration = np.concatenate([np.arange(len(mine)) * number // len(mine) for mine in alike])
    starts = np.maximum(lives.begin[largest[:: len(largest) // number]], 0)
    rows, is_over = np.concatenate(alike), iteration < number - 1
    return Grown(starts, rows[is_over], iteration[is_over], are_steps=False)


def _times_before(case: Case, rows: Ints) -> int:
    """Number of iterations that left the blocks of one stack, two before the recording at least; else 0."""
    size, is_before = case.lives.requested_bytes[rows], case.lives.begin[rows] <= BEFORE
    if not len(rows) or is_before.all():
        return 0
    _, of_size = np.unique(size, return_inverse=True)
    count, before = np.bincount(of_size), np.bincount(of_size, is_before)
    are_even = bool((before * len(rows) == count * is_before.sum()).all())
    number = int(np.gcd.reduce(count))
    return number if are_even and is_before.sum() * number >= 2 * len(rows) else 0


def _grown_lines(case: Case, rows: Ints, iteration: Ints, number: int) -> Bools:
    """True for each block of a maker that left some in three iterations or more, at even distances up to now."""
    stack = case.maker[rows]
    if not len(rows):
        return np.zeros(0, np.bool_)
    pairs = np.unique(np.stack([stack.astype(np.int64), iteration]), axis=1)
    stacks, first = np.unique(pairs[0], return_index=True)
    keeps = []
    for number_of_stack, mine in zip(stacks.tolist(), np.split(pairs[1], first[1:]), strict=True):
        gaps = np.diff(np.append(mine, number))
        if len(mine) >= _LEAST_ITERATIONS and gaps.max() <= _MOST_UNEVEN * max(float(np.median(gaps)), 1.0):
            keeps.append(number_of_stack)
    return np.isin(stack, keeps)


def _is_graph(case: Case, grown: Grown) -> bool:
    """True if growth is a good part of the results of its model calls, in several blocks: a graph, and not results."""
    if case.in_graphs is not None:
        if case.is_share(np.intersect1d(grown.rows, case.in_graphs), of=grown.rows):
            return True
        if not len(case.in_graphs):
            return False
    lives, line = case.lives, case.sites.model_calls[case.lives.stack]
    iteration = np.searchsorted(grown.starts, lives.begin, side="right") - 1
    in_model = grown.rows[case.in_model[grown.rows]]
    made = np.isin(iteration, grown.iteration) & (lives.begin > BEFORE) & case.in_model & np.isin(line, line[in_model])
    if _is_of_backward(case, grown.rows):
        return True
    if frees_what_others_keep(case, grown.rows):
        return False
    of_graphs = grown.rows[np.isin(case.kind[grown.rows], (Kind.ACTIVATION, Kind.AUTOGRAD_DETAIL))]
    if (
        len(of_graphs) > _GRAPHS_BLOCKS * grown.num_iterations
        and case.is_share(of_graphs, of=np.union1d(of_graphs, in_model), percent=50)
        and case.is_share(of_graphs, of=grown.rows)  # beside batches that a graph holds
    ):
        return True  # as autograd freed them, or as a live program's graphs hold them
    # A line that computes a variable from its own value holds one block, unless a graph holds the earlier ones.
    stacks = np.unique(case.stack[grown.rows])
    of_updates = [at for at in stacks.tolist() if updates_itself(case.sites.site(at))]
    if case.is_share(grown.rows[np.isin(case.stack[grown.rows], of_updates)], of=grown.rows):
        return True
    is_several = len(in_model) > _GRAPHS_BLOCKS * grown.num_iterations
    return is_several and case.bytes(in_model) >= _KEPT_OF_FORWARD * case.bytes(np.flatnonzero(made))
