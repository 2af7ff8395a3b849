"""Parts of a model that repeat, such as the layers of a transformer: what each keeps for backward, all at once."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import with_earlier_frees
from tracer.analysis.snapshots.frames import is_python, torch_file
from tracer.arrays import Ints
from tracer.snapshot.columns import Frame
from tracer.units import format_bytes

_LEAST_PARTS: Final = 2
_MODULES: Final = "nn/modules/module.py"
_ALIKE: Final = 0.9
"""Of the blocks of one call of a part, made by the same lines as those of the next."""
_MOST_TRIED: Final = 256
_LEAST_PERCENT: Final = 10
"""Of what is in use, that a checkpoint of each part lets go of."""
_OWN_SWITCHES: Final = {
    "transformers": "call model.gradient_checkpointing_enable()",
    "diffusers": "call model.enable_gradient_checkpointing()",
    "timm": "call model.set_grad_checkpointing()",
}
"""How models of a library checkpoint their parts, by the library's folder."""


class _Part(NamedTuple):
    """A forward that modules' calls run, and how many of the same one are around it."""

    name: str  # Of its class, where the source is here; else of the function
    file: str
    level: int


@dataclass(frozen=True, slots=True, eq=False)
class _Repeated:
    """Blocks of a part's calls."""

    part: _Part
    line: int  # A line inside of its forward
    num_calls: int  # In the last call of the model
    rows: Ints  # Blocks that a checkpoint of each call, but for the last, lets go of when the call is over
    ends: Ints  # When that is, an entry for each
    held: Ints  # Those of them in use at the moment


def repeated_parts(case: Case) -> Iterator[Cause]:
    """Activations of parts that are called one behind the other, of which a checkpoint keeps the inputs alone."""
    parts = reversed(_parts(case).items())  # of some with the same blocks the innermost: a loop is in no stack
    found = [of for part, lines in parts if (of := _repeated(case, part, lines)) is not None]
    best = max(found, key=lambda of: (case.bytes(of.held), -of.num_calls), default=None)
    if best is None or not case.is_much(best.held, percent=_LEAST_PERCENT):
        return
    each = format_bytes(case.bytes(best.held) // (best.num_calls - 1))
    yield Cause(
        "repeated parts",
        f"{best.num_calls} calls of {_named(case, best)} keep their activations for backward, all at once: "
        f"{case.words(best.held)}{case.lines(best.held)}, some {each} each, beside the input of each.",
        f"{_switch(best.part.file)}, so that each is computed again when backward comes to it",
        lambda modelled: with_earlier_frees(modelled, best.rows, best.ends),
        case.largest_site(best.held),
        GivesUp.TIME_OR_SIZE,
    )


def _parts(case: Case) -> dict[_Part, dict[int, int]]:
    """For each part the stacks inside of it, and for each of these a line of the part's forward."""
    parts: dict[_Part, dict[int, int]] = {}
    kept = case.in_use[(case.kind[case.in_use] == Kind.ACTIVATION) & case.in_model[case.in_use]]
    calls = np.unique(case.calls[0][kept])
    made = np.flatnonzero(np.isin(case.calls[0], calls[calls >= 0]))
    for stack in np.unique(case.stack[made]).tolist():
        levels: dict[tuple[str, str], int] = {}
        for frame in _forwards(case.stacks[stack]):
            name = _class_around(frame.file, frame.line) or frame.name
            level = levels[name, frame.file] = levels.get((name, frame.file), -1) + 1
            parts.setdefault(_Part(name, frame.file, level), {})[stack] = frame.line
    return parts


def _forwards(frames: list[Frame]) -> Iterator[Frame]:
    """The frames of the forwards that modules' calls run, the outermost first; what wraps one is passed over."""
    outer = [frame for frame in reversed(frames) if is_python(frame)]
    for is_calls, inside in itertools.groupby(outer, lambda frame: torch_file(frame) == _MODULES):
        run = list(inside)
        if not is_calls and run[0] is not outer[0]:
            yield next((frame for frame in run if frame.name == "forward"), run[0])


def _repeated(case: Case, part: _Part, lines: dict[int, int]) -> _Repeated | None:
    """The calls of a part, told apart by what they make in the same order; None where it does not repeat."""
    call, lives = case.calls[0], case.lives
    rows = np.flatnonzero((call >= 0) & np.isin(case.stack, list(lines)) & (lives.begin <= case.entry))
    rows = rows[np.argsort(lives.begin[rows], kind="stable")]
    latest = case.stack[rows[call[rows] == call[rows].max()]]
    period = _period(latest)
    if not period or (num_calls := -(-len(latest) // period)) < _LEAST_PARTS:
        return None
    is_first = np.append(True, np.diff(call[rows]) != 0)
    start = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    is_first = (np.arange(len(rows)) - start) % period == 0
    number = np.cumsum(is_first) - 1
    begins = lives.begin[rows[is_first]]
    is_followed = np.append(np.diff(call[rows[is_first]]) == 0, False)  # by another one of the same model's call
    end = np.append(begins[1:], -1)[number]
    stays = is_followed[number] & (lives.end[rows] > end) & (case.kind[rows] == Kind.ACTIVATION)
    rows, end, number = rows[stays], end[stays], number[stays]
    # The last block of a part that stays is the input of the next.
    is_inner = np.append(number[1:] == number[:-1], False)[: len(rows)]
    rows, end = rows[is_inner], end[is_inner]
    held = case.held(rows)
    return _Repeated(part, lines[int(latest[0])], num_calls, rows, end, held) if len(held) else None


def _period(stack: Ints) -> int:
    """After how many blocks the same lines make the next ones; 0 where they do not repeat."""
    for period in np.flatnonzero(stack == stack[0])[1 : _MOST_TRIED + 1].tolist():
        if float((stack[period:] == stack[:-period]).mean()) >= _ALIKE:
            return int(period)
    return 0


def _named(case: Case, repeated: _Repeated) -> str:
    """A part by its class and its line; one of torch's by the line that calls the model."""
    part, model = repeated.part, case.model_call(int(repeated.held[0]))
    if model is not None and torch_file(Frame(part.name, part.file, repeated.line)) is not None:
        return f"{part.name} in the model called at {model.file}:{model.line}"
    return f"{part.name} ({part.file}:{repeated.line})"


def _class_around(file: str, line: int) -> str:
    """The class that a line is in; empty where the file is not here."""
    return next((name for name, first, last in _classes_of(file) if first <= line <= last), "")


@cache
def _classes_of(file: str) -> tuple[tuple[str, int, int], ...]:
    """Name, first and last line of each class of a file, the innermost first; empty where it is not here."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    classes = [
        (at.name, at.lineno, at.end_lineno or at.lineno) for at in ast.walk(tree) if isinstance(at, ast.ClassDef)
    ]
    return tuple(sorted(classes, key=lambda of: of[2] - of[1]))


def _switch(file: str) -> str:
    """How to checkpoint each part."""
    library = next(filter(_OWN_SWITCHES.get, PurePath(file.replace("\\", "/")).parts), "")
    if library:
        return _OWN_SWITCHES[library]
    return "checkpoint each call (torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False))"
