"""Blocks that a failed attempt has left behind, while its exception is being handled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from tracer.analysis.snapshots.causes.case import Case, Cause
from tracer.analysis.snapshots.changed_requests import with_earlier_frees
from tracer.analysis.snapshots.frames import is_python, is_users
from tracer.snapshot.columns import Frame

_LEAST_PERCENT: Final = 10
_MOST_FAILURES: Final = 20
"""Looked at: a program may catch its failures forever."""


def held_by_traceback(case: Case) -> Iterator[Cause]:
    """Blocks of the attempt before, in use at a failure that was called from its `except`."""
    before = next(
        (entry for entry in case.failures[-2 : -2 - _MOST_FAILURES : -1].tolist() if _handles(case, entry)), None
    )
    if before is None:
        return
    lives, ends = case.lives, case.device.kinds.phases.steps[1]
    learned = int(ends[ends < before].max(initial=0))
    rows = case.in_use[(lives.begin[case.in_use] >= learned) & (lives.begin[case.in_use] < before)]
    rows = rows[~case.stays[rows] & ~case.is_set_up[rows]]
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "held by a traceback",
        f"An earlier attempt ran out of memory too, and {case.words(rows)}{case.lines(rows)} of it are still in use: "
        "while its exception is handled, the traceback holds the variables of every function that it left.",
        "leave the `except` block before trying again (set a flag there, retry behind it), and keep no exception",
        lambda modelled: with_earlier_frees(modelled, rows, np.full(len(rows), before + 1)),
        case.largest_site(rows),
    )


def _handles(case: Case, before: int) -> bool:
    """Whether the last failure was called from an `except` that catches an earlier one.

    That is so where both lie in the same function of the program's, called by another line of the same caller, in the
    `except` of a `try` around the first, as far as the source is there to be asked. A library that tries again with
    less, as cuDNN does, asks at the same line.
    """
    tried, failed = (_users(case, int(case.state.trace.stack[entry])) for entry in (before, case.entry))
    for (caller, callee), (again, other) in zip(pairwise(tried), pairwise(failed), strict=False):
        if (caller.name, caller.file) != (again.name, again.file):
            return False
        if caller.line != again.line:
            is_same_function = (callee.name, callee.file) == (other.name, other.file)
            return is_same_function and _is_in_except(caller.file, caller.line, again.line)
    return False


def _users(case: Case, stack: int) -> Sequence[Frame]:
    """The program's own lines of a stack, outermost first."""
    return [frame for frame in reversed(case.stacks[stack]) if is_python(frame) and is_users(frame)]


def _is_in_except(file: str, tried: int, line: int) -> bool:
    """Whether a line lies in the `except` of a `try` around another one; True where no source tells."""
    if not file.endswith(".py") or not Path(file).is_file():
        return line > tried
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return line > tried
    return any(
        _holds(node.body, tried) and any(_holds(handler.body, line) for handler in node.handlers)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
    )


def _holds(body: Sequence[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)
