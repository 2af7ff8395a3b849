"""Parts of a model that repeat, such as the layers of a transformer: what each keeps for backward, all at once."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks
from tracer.answers.why.case import MODULES, Case, Cause, GivesUp
from tracer.answers.why.source import class_around, loop_around
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_python, torch_file
from tracer.blocks.from_snapshot.sites import Site
from tracer.blocks.kinds import Kind
from tracer.capture.objects.later_uses import Making
from tracer.snapshot.columns import Frame
from tracer.units import format_bytes

_LEAST_PARTS: Final = 2
_MOST_TIMES: Final = 8
"""Number of times that one line makes a block in a call of a part."""
_UNEVEN: Final = 0.1
_ALIKE: Final = 0.9
"""Share of the distances between calls of a part, in blocks, that differ from the usual one by a tenth at most."""
_SHARED: Final = 0.6
"""Share of what makes blocks in a call of a part that another call has too."""
_LEAST_PERCENT: Final = 10
"""Percent of what is in use that a checkpoint of each part frees."""
_OWN_SWITCHES: Final = {
    "transformers": "call model.gradient_checkpointing_enable()",
    "diffusers": "call model.enable_gradient_checkpointing()",
    "timm": "call model.set_grad_checkpointing()",
}
"""Ways in which models of a library checkpoint their parts, by the library's folder."""


class _Part(NamedTuple):
    """A function that a model's forward runs, such as the forward of a layer."""

    name: str  # Of its class, where the source is here and it is a forward; else its own
    file: str
    caller: tuple[str, int]  # The line that calls it, where its class is not known
    level: int  # How many of the same are around it


@dataclass(frozen=True, slots=True, eq=False)
class _Repeated:
    """Blocks of a part's calls."""

    part: _Part
    line: int  # A line inside of its forward
    num_calls: int  # In the call of the model that keeps most
    times: int  # That its line makes a block in each
    rows: Ints  # Blocks that a checkpoint of each call, but for the last, lets go of when the call is over
    ends: Ints  # When that is, an entry for each
    held: Ints  # Those of them in use at the moment


def repeated_parts(case: Case) -> Iterator[Cause]:
    """Activations of parts that are called one behind the other, of which a checkpoint keeps the inputs alone."""
    if case.has_no_graph:
        return
    parts = reversed(_parts(case).items())  # of some with the same blocks the innermost: a loop is in no stack
    found = [of for part, lines in parts if (of := _repeated(case, part, lines)) is not None]
    best = max(found, key=lambda of: (case.bytes(of.held), -of.num_calls), default=None)
    if best is None or not case.is_much(best.held, percent=_LEAST_PERCENT):
        return
    num_over = best.num_calls - 1
    share_bytes = case.bytes(best.held) // num_over
    whose = (
        f", some {format_bytes(share_bytes)} for each of the {num_over} before the last"
        if num_over > 1
        else " of the first"
    )
    whole, _ = next(_around(case.stacks[int(case.stack[best.held[0]])]))
    is_whole = whole == best.part  # the model itself, which its program calls once
    loop = loop_around(best.part.file, best.line) if best.times == 1 or is_whole else 0
    each = "turn" if loop else "part" if is_whole or best.times > 1 else "call"
    yield Cause(
        "repeated parts",
        f"{_named(case, best, loop, is_whole=is_whole)} keep their activations for backward, all at once: "
        f"{case.words(best.held)}{case.lines(best.held)}{whose}, beside the input of each.",
        f"{_switch(best.part.file, each)}, so that each is computed again when backward comes to it",
        lambda modelled: with_earlier_frees(modelled, best.rows, best.ends),
        case.largest_site(best.held) if _is_torchs(best) else Site(best.part.name, best.part.file, best.line),
        GivesUp.TIME_OR_SIZE,
        again_bytes=share_bytes,
    )


_PARAMETRIZED: Final = ("nn/utils/parametrize.py", "nn/utils/parametrizations.py")
_LEAST_MADE_PERCENT: Final = 25
_LEAST_BY_ELEMENTS_PERCENT: Final = 40
_LEAST_RESULTS: Final = 3


def made_of_parameters(case: Case) -> Iterator[Cause]:
    """Weights that a parametrization, such as weight_norm, makes anew for each call, and that graphs keep."""
    is_made = case.with_frame(lambda frame: torch_file(frame) in _PARAMETRIZED)[case.lives.stack]
    rows = case.kept_for_backward[is_made[case.kept_for_backward]]
    made_by = np.stack([case.inner_stack[rows], case.lives.requested_bytes[rows]])
    most = int(np.unique(made_by, axis=1, return_counts=True)[1].max(initial=0))
    if most < _LEAST_PARTS or not case.is_much(rows, percent=_LEAST_MADE_PERCENT):
        return
    yield Cause(
        "weights made anew",
        "A parametrization of weights (torch.nn.utils) makes them anew for each call, and graphs keep them: "
        f"{case.words(rows)}{case.lines(rows)}.",
        "make them once for all calls of an iteration (`with torch.nn.utils.parametrize.cached():` around these)",
        lambda modelled: with_smaller_blocks(modelled, rows, most),
        case.largest_site(rows),
        GivesUp.NOTHING,
        names_bytes=case.bytes(rows),
    )


def kept_by_elements(case: Case) -> Iterator[Cause]:
    """Results of one shape that a function computes element by element, several of which backward keeps."""
    if (followed := case.followed) is None or case.has_no_graph:
        return
    of_function = defaultdict[tuple[str, str, tuple[int, ...]], list[tuple[int, int, Making]]](list)
    for row in case.kept_for_backward.tolist():
        making, own = followed.making(row), case.own_lines(int(case.lives.stack[row]))
        if making is not None and making.by_elements and own:
            name = ".".join(filter(None, (class_around(own[-1].file, own[-1].line), own[-1].name)))
            of_function[own[-1].file, name, making.result.shape].append((row, own[-1].line, making))
    if not of_function:
        return
    (file, name, _), kept = max(of_function.items(), key=lambda of: case.bytes(np.array([row for row, *_ in of[1]])))
    rows, lines = np.array([row for row, *_ in kept]), [line for _, line, _ in kept]
    number = len({(line, making) for _, line, making in kept})
    if number < _LEAST_RESULTS or not case.is_much(rows, percent=_LEAST_BY_ELEMENTS_PERCENT):
        return
    place = f"{file}:{min(lines)}{f' to {max(lines)}' if max(lines) > min(lines) else ''}"
    yield Cause(
        "kept by elements",
        f"{name} ({place}) computes results of one shape element by element, of which backward keeps "
        f"{case.words(rows)}.",
        "let backward keep their input alone: one operator in place of several, torch.compile, which fuses them, "
        "a torch.autograd.Function, or a checkpoint of this function",
        lambda modelled: with_smaller_blocks(modelled, rows, number),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
        names_bytes=case.bytes(rows),
    )


_PADDED_PERCENT: Final = 25


def padded_batch(case: Case) -> Iterator[Cause]:
    """Results for columns of a batch in which no row has a value of its own."""
    if case.objects is None or (padding := case.objects.padding) is None:
        return
    size = case.lives.requested_bytes
    is_of_batch = case.in_model & ~case.stays & (size % (padding.num_rows * padding.num_columns) == 0)
    rows = np.flatnonzero(is_of_batch)
    held = case.held(rows)
    asked = case.asked_bytes * (case.asked_bytes % (padding.num_rows * padding.num_columns) == 0)
    if not case.is_much(held, asked_bytes=asked, percent=_PADDED_PERCENT):
        return
    empty, divisor = padding.num_columns - padding.num_used, padding.num_columns // padding.num_used
    yield Cause(
        "padding",
        f"In every row of {padding.name}, a batch of {padding.num_rows:,}, {empty:,} of {padding.num_columns:,} "
        f"columns are filled with the same value; results for all columns take {case.with_asked(held, asked)}.",
        "fill rows up to the longest of their batch, and not to a fixed length (in transformers padding='longest'; "
        f"batches of rows of like length need less still): this is with {-(-padding.num_columns // divisor):,} columns",
        lambda modelled: with_smaller_blocks(modelled, rows, divisor, with_last_failure=asked > 0),
        case.largest_site(held),
        GivesUp.A_LITTLE,
        names_bytes=(case.bytes(held) + asked) * empty // padding.num_columns,
        behind=lambda making, _: (
            1 / divisor if making.result.size_bytes % (padding.num_rows * padding.num_columns) == 0 else 1.0
        ),
    )


def _parts(case: Case) -> dict[_Part, dict[int, int]]:
    """Yield each part's stacks, and for each of these a line of the part; outer parts first."""
    parts: dict[_Part, dict[int, int]] = {}
    kept = case.in_use[(case.kind[case.in_use] == Kind.ACTIVATION) & case.in_model[case.in_use]]
    calls = np.unique(case.calls[0][kept])
    made = np.flatnonzero(np.isin(case.calls[0], calls[calls >= 0]))
    for stack in np.unique(case.stack[made]).tolist():
        levels: Counter[_Part] = Counter()
        for part, number in _around(case.stacks[stack]):
            parts.setdefault(part._replace(level=levels[part]), {})[stack] = number
            levels[part] += 1
    return parts


def _around(frames: list[Frame]) -> Iterator[tuple[_Part, int]]:
    """The parts of a model that a stack is in, the outermost first, each with its line."""
    outer = [frame for frame in reversed(frames) if is_python(frame)]
    inside = itertools.dropwhile(lambda frame: torch_file(frame) != MODULES, outer)
    caller, is_called = ("", 0), False
    for frame in inside:
        file = torch_file(frame)
        if file == MODULES:
            is_called = True
            continue
        if is_called or file is None:
            kind = class_around(frame.file, frame.line) if frame.name == "forward" else ""
            is_told = kind and file is None  # as a container of torch's is not
            yield _Part(kind or frame.name, frame.file, ("", 0) if is_told else caller, 0), frame.line
        caller, is_called = (frame.file, frame.line), False


def _repeated(case: Case, part: _Part, lines: dict[int, int]) -> _Repeated | None:
    """The calls of a part, told apart by the order in which they make blocks; None where it does not repeat."""
    call = case.calls[0]
    rows = np.flatnonzero((call >= 0) & np.isin(case.stack, list(lines)))
    rows = rows[np.argsort(case.lives.begin[rows], kind="stable")]
    # A line that makes several blocks, as an LSTM's cell does, makes them of several sizes.
    _, of_size = np.unique(np.stack([case.stack[rows], case.lives.requested_bytes[rows]]), axis=1, return_inverse=True)
    found = (_told_apart(case, part, lines, rows, by) for by in (case.stack[rows], of_size.reshape(-1)))
    return next((repeated for repeated in found if repeated is not None), None)


def _told_apart(case: Case, part: _Part, lines: dict[int, int], rows: Ints, made_by: Ints) -> _Repeated | None:
    """Find parts that each begin with a block of the same number in `made_by`, that of the first block of a call."""
    call, lives = case.calls[0], case.lives
    is_past = lives.begin[rows] <= case.entry
    of_call = np.bincount(call[rows], lives.requested_bytes[rows] * (is_past & (lives.end[rows] > case.entry)))
    is_fullest = is_past & (call[rows] == of_call.argmax())  # the one that keeps most
    fullest = made_by[is_fullest]
    if not len(fullest):
        return None
    first, times = int(fullest[0]), _times_in_each(fullest)
    if not times or (num_calls := -(-int((fullest == first).sum()) // times)) < _LEAST_PARTS:
        return None
    begins_call = np.append(True, np.diff(call[rows]) != 0)
    count = np.cumsum(made_by == first)
    before = np.where(begins_call, count - (made_by == first), 0)
    nth = count - np.maximum.accumulate(before) - 1  # of this one's call of the model
    is_first = begins_call | ((made_by == first) & (nth % times == 0))
    line = lines[int(case.stack[rows[np.flatnonzero(made_by == first)[0]]])]
    number = np.cumsum(is_first) - 1
    if not _are_alike(fullest, number[is_fullest]):
        return None
    begins = lives.begin[rows[is_first]]
    is_followed = np.append(np.diff(call[rows[is_first]]) == 0, False)  # by another one of the same model's call
    end = np.append(begins[1:], -1)[number]
    stays = is_followed[number] & (lives.end[rows] > end) & (case.kind[rows] == Kind.ACTIVATION)
    rows, end, number = rows[stays], end[stays], number[stays]
    # The last block of a part that stays is the input of the next.
    is_inner = np.append(number[1:] == number[:-1], False)[: len(rows)]
    rows, end, number = rows[is_inner], end[is_inner], number[is_inner]
    held = case.held(rows)
    num_kept = len(np.unique(number[np.isin(rows, held)]))
    # Where few of them keep something, these are turns of a loop inside of the part.
    return _Repeated(part, line, num_calls, times, rows, end, held) if 0 < num_calls - 1 <= 2 * num_kept else None


def _are_alike(made_by: Ints, number: Ints) -> bool:
    """True if calls of a part have much the same blocks; the last call, possibly unfinished, has no others."""
    *whole, last = (set(mine.tolist()) for mine in np.split(made_by, np.flatnonzero(np.diff(number)) + 1))
    if not whole or len(last - set().union(*whole)) > (1 - _ALIKE) * len(last):
        return False
    alike = [len(part & whole[0]) >= _SHARED * max(len(part), len(whole[0])) for part in whole]
    return sum(alike) >= _ALIKE * len(alike)


def _times_in_each(stack: Ints) -> int:
    """Number of times that the first stack is in each call of a part, by even distances; 0 where there are none."""
    places = np.flatnonzero(stack == stack[0])
    for times in range(1, _MOST_TIMES + 1):
        gaps = np.diff(places[::times])
        if len(gaps) and float((np.abs(gaps - np.median(gaps)) <= _UNEVEN * np.median(gaps)).mean()) >= _ALIKE:
            return times
    return 0


def _named(case: Case, repeated: _Repeated, loop: int, *, is_whole: bool) -> str:
    """Words for the number of calls and the part; of one of torch's own, by the line that calls the model."""
    part, model = repeated.part, case.model_call(int(repeated.held[0]))
    if model is not None and _is_torchs(repeated):
        return f"{repeated.num_calls} parts that are alike, of the model called at {model.file}:{model.line},"
    if loop:
        return f"{repeated.num_calls} turns of the loop at {part.file}:{loop}"
    # Where its line has made several blocks in each, a part may be several calls.
    what = "parts that are alike of" if is_whole or repeated.times > 1 else "calls of"
    return f"{repeated.num_calls} {what} {part.name} ({part.file}:{repeated.line})"


def _is_torchs(repeated: _Repeated) -> bool:
    return torch_file(Frame(repeated.part.name, repeated.part.file, repeated.line)) is not None


def _switch(file: str, each: str) -> str:
    library = next(filter(_OWN_SWITCHES.get, PurePath(file.replace("\\", "/")).parts), "")
    if library:
        return _OWN_SWITCHES[library]
    return f"checkpoint each {each} (torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False))"
