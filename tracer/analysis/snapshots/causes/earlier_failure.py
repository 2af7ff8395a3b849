"""Blocks that a failed attempt has left behind, while its exception is handled or kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from tracer.analysis.snapshots.causes.case import Case, Cause
from tracer.analysis.snapshots.causes.source import is_in_except
from tracer.analysis.snapshots.changed_requests import with_earlier_frees
from tracer.analysis.snapshots.sizes import NOTHING
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.arrays import Ints
from tracer.snapshot.actions import Action

_LEAST_PERCENT: Final = 10
_MOST_FAILURES: Final = 20
"""Looked at: a program may catch its failures forever."""
_KEPT_PERCENT: Final = 90
"""Of what the call of a model held as it failed: without a traceback nothing keeps the most of it."""


def held_by_traceback(case: Case) -> Iterator[Cause]:
    """Blocks of attempts before, in use at a failure that was called from an `except`, or with a kept exception."""
    earlier = case.failures[-2 : -2 - _MOST_FAILURES : -1].tolist()
    before = next((entry for entry in earlier if _handles(case, entry)), None)
    if before is not None:
        rows = _of_attempt(case, before)
        entry = np.full(len(rows), before + 1)
        why = "while its exception is handled"
        change = (
            "leave the `except` block before trying again (set a flag there, retry behind it), and keep no exception"
        )
    else:
        left = [(NOTHING, 0), *((_left_behind(case, entry), entry) for entry in earlier)]
        rows, first = np.unique(np.concatenate([rows for rows, _ in left]), return_index=True)
        entry = np.concatenate([np.full(len(rows), entry + 1) for rows, entry in left])[first]
        why = "as long as its exception is kept"
        change = "keep the exception's text (str(error)) in place of the exception, which holds its traceback"
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "held by a traceback",
        f"An earlier attempt ran out of memory too, and {case.words(rows)}{case.lines(rows)} of it are still in use: "
        f"{why}, the traceback holds the variables of every function that it left.",
        change,
        lambda modelled: with_earlier_frees(modelled, rows, entry),
        case.largest_site(rows),
    )


def _of_attempt(case: Case, failure: int) -> Ints:
    """Blocks in use that an attempt made before it failed, but for models and optimizers."""
    ends = case.device.kinds.phases.steps[1]
    begin, learned = case.lives.begin[case.in_use], int(ends[ends < failure].max(initial=0))
    rows = case.in_use[(begin >= learned) & (begin < failure)]
    return rows[~case.stays[rows] & ~case.is_set_up[rows]]


def _left_behind(case: Case, failure: int) -> Ints:
    """The same, if the failure ended a call of a model, what that had made is in use, and the program went on.

    A library that catches a failure and asks for less, as cuDNN does, asks on in the same call, or at the same line.
    """
    lives, call, trace = case.lives, case.calls[0], case.state.trace
    made = np.flatnonzero((call >= 0) & ~case.stays)
    before = made[lives.begin[made] < failure]
    later = np.flatnonzero(np.isin(trace.action[failure + 1 :], (Action.ALLOC, Action.OOM)))
    if not len(before) or not len(later) or not has(case.sites.facts[trace.stack[failure]], Fact.MODULE_FORWARD):
        return NOTHING
    mine = made[call[made] == call[before].max()]
    there = mine[(lives.begin[mine] < failure) & (lives.end[mine] > failure)]
    goes_on = bool((lives.begin[mine] > failure).any())
    goes_on |= case.own_lines(int(trace.stack[failure + 1 + later[0]])) == case.own_lines(int(trace.stack[failure]))
    is_kept = len(there) > 0 and case.is_share(case.held(there), of=there, percent=_KEPT_PERCENT)
    return _of_attempt(case, failure) if is_kept and not goes_on else NOTHING


def _handles(case: Case, before: int) -> bool:
    """Whether the last failure was called from an `except` that catches an earlier one.

    That is so where both lie in the same function of the program's, called by another line of the same caller, in the
    `except` of a `try` around the first, as far as the source is there to be asked. A library that tries again with
    less, as cuDNN does, asks at the same line.
    """
    tried, failed = (case.own_lines(int(case.state.trace.stack[entry])) for entry in (before, case.entry))
    for (caller, callee), (again, other) in zip(pairwise(tried), pairwise(failed), strict=False):
        if (caller.name, caller.file) != (again.name, again.file):
            return False
        if caller.line != again.line:
            is_same_function = (callee.name, callee.file) == (other.name, other.file)
            return is_same_function and is_in_except(caller.file, caller.line, again.line)
    return False
