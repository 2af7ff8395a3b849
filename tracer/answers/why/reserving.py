"""Causes: blocks of an earlier failed attempt, one request larger than all else, and reserved memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from tracer.allocator.fragmentation import fragmentation_after, free_for_process
from tracer.allocator.settings import recorded_settings
from tracer.answers.allocator.changed_requests import (
    emptying_at,
    on_one_stream,
    with_earlier_frees,
    with_expandable_segments,
    with_smaller_blocks,
)
from tracer.answers.allocator.modelled import Modelled
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.source import is_in_except
from tracer.arrays import Ints
from tracer.block_sizes import segment_size
from tracer.blocks.from_snapshot.sizes import NOTHING
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.snapshot.actions import Action
from tracer.units import MIB, format_bytes, some

_LEFT_PERCENT: Final = 10
_MOST_FAILURES: Final = 20
"""The latest are looked at: a program may catch its failures forever."""
_KEPT_PERCENT: Final = 90
"""The share of a failed call's blocks that a traceback keeps; without one, most of them are freed."""


def held_by_traceback(case: Case) -> Iterator[Cause]:
    """Blocks of attempts before, in use at a failure that was called from an `except`, or with a kept exception."""
    if case.objects is not None and case.objects.num_raised == 1:
        return  # what failed before was caught in a library, such as a workspace that cuDNN does without
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
    if not case.is_much(rows, percent=_LEFT_PERCENT):
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
    """Return the blocks of an attempt that failed in a call of a model, if the call ended and its blocks are in use.

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
    """True if the last failure was called from an `except` that catches an earlier one.

    Both lie in the same function of the program, and their caller calls it from two lines: the second is in the
    `except` of a `try` around the first, if the source can be read. A library that tries again with less, as cuDNN
    does, asks at the same line.
    """
    tried, failed = (case.own_lines(int(case.state.trace.stack[entry])) for entry in (before, case.entry))
    for (caller, callee), (again, other) in zip(pairwise(tried), pairwise(failed), strict=False):
        if (caller.name, caller.file) != (again.name, again.file):
            return False
        if caller.line != again.line:
            is_same_function = (callee.name, callee.file) == (other.name, other.file)
            return is_same_function and is_in_except(caller.file, caller.line, again.line)
    return False


_SHARE: Final = 0.5
"""Share of what would be in use with it."""
_MOST_PARTS: Final = 64


def one_request(case: Case) -> Iterator[Cause]:
    """The request that failed, with what its function has made for it, would be most of what is in use."""
    if not case.has_failed or has(case.sites.facts, Fact.MODULE_SETUP, Fact.CONSTRUCTOR)[case.asked_stack]:
        return  # parameters are not made in parts
    asked, made = case.asked_bytes, _made_alike(case)
    made_bytes = case.bytes(made)
    in_use = case.in_use_bytes - asked - made_bytes
    if asked + made_bytes < _SHARE * case.in_use_bytes:
        return
    at = case.device.state, case.device.replay, case.entry
    fraction = recorded_settings(case.device.snapshot.settings).per_process_memory_fraction
    room_bytes = free_for_process(*at, fraction) or 0
    if room_bytes >= segment_size(asked):
        room_bytes = 0  # A limit that the recording does not say refused it
    free_bytes = fragmentation_after(*at).free_bytes + room_bytes
    if asked <= free_bytes:  # in one piece it would do
        return
    num_parts = 2
    while asked + made_bytes > num_parts * (free_bytes + made_bytes) and num_parts < _MOST_PARTS:
        num_parts *= 2
    site = case.sites.site(case.asked_stack)
    is_same_line = (case.stack == case.asked_stack) & (case.lives.requested_bytes >= asked)
    rows = np.flatnonzero(is_same_line | np.isin(case.stack, case.stack[made]))
    where = f" at {site.file}:{site.line}" if site.file is not None else ""
    beside = f", beside {case.words(made)}{case.lines(made)} that the same function has made" if len(made) else ""
    yield Cause(
        "one request",
        f"The request{where} is what does not fit: {format_bytes(asked)} for a single tensor{beside}, where all "
        f"else in use comes to {format_bytes(in_use)}.",
        f"make it in parts (a loop over {num_parts} parts of its rows, each reduced before the next is made), or make "
        "it smaller: where it is a broadcast of two tensors, it has every pair of their rows",
        lambda modelled: with_smaller_blocks(modelled, rows, num_parts, with_last_failure=True),
        site if site.file is not None else None,
        GivesUp.TIME_OR_SIZE,
    )


_ALIKE: Final = 8
"""Times that the request is larger, at the most, than a mask or an index made for it."""


def _made_alike(case: Case) -> Ints:
    """Blocks about as large as the request that its function has made outside of modules, such as a mask for it."""
    function = _function(case, case.asked_stack)
    if function is None or has(case.sites.facts, Fact.MODULE_FORWARD, Fact.ENGINE)[case.asked_stack]:
        return NOTHING
    size = case.lives.requested_bytes[case.in_use]
    is_alike = (size * _ALIKE >= case.asked_bytes) & (size <= case.asked_bytes) & ~case.in_model[case.in_use]
    rows = case.in_use[is_alike & ~case.stays[case.in_use]]
    stacks = [stack for stack in np.unique(case.stack[rows]).tolist() if _function(case, stack) == function]
    return rows[np.isin(case.stack[rows], stacks)]


def _function(case: Case, stack: int) -> tuple[str, str] | None:
    """Name and file of the innermost function of the program's in a stack; None outside of functions."""
    *_, frame = [None, *case.own_lines(stack)]
    return (frame.name, frame.file) if frame is not None and frame.name != "<module>" else None


_LEAST_PERCENT: Final = 1


def stranded_in_streams(case: Case, modelled: Modelled) -> Iterator[Cause]:
    """Memory that each stream keeps for itself."""
    streams = np.unique(case.state.trace.stream[case.state.trace.stack > 0])
    if len(streams) < 2 or not _has_slack(modelled) or modelled.is_from_start:
        return
    yield Cause(
        "stranded in streams",
        f"Memory lies idle in {len(streams):,} streams: what was freed on one of them no other may use.",
        "allocate and free on one stream, or use a few streams again and again in place of new ones",
        on_one_stream,
        gives_up=GivesUp.NOTHING,
    )


_WORTH_A_SETTING: Final = 64 * MIB
"""Memory in pieces: less is below a hundredth of any card, where nothing had to fail."""


def fragmentation(case: Case, modelled: Modelled) -> Iterator[Cause]:
    """Only where more is reserved than was ever in use."""
    before = modelled.baseline
    if not _has_slack(modelled) or modelled.settings.expandable_segments or modelled.is_from_start:
        return
    idle = before.reserved_peak_bytes - before.allocated_peak_bytes
    if not modelled.history.failed and idle < _WORTH_A_SETTING:
        return
    yield Cause(
        "fragmentation",
        f"{format_bytes(max(idle, 0))} more is reserved than is ever in use: pieces between blocks, or whole segments.",
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        with_expandable_segments,
        gives_up=GivesUp.A_LITTLE,
        postpones=True,
    )


def emptied_cache(case: Case, modelled: Modelled) -> Iterator[Cause]:
    """The cache emptied between the phases of a step."""
    if not _has_slack(modelled):
        return
    steps, backwards = case.device.kinds.phases.steps, case.device.kinds.phases.backwards
    begins = np.unique(np.concatenate([steps[0], steps[1], backwards[0]]))
    begins = begins[(begins > 0) & (begins < len(case.device.state.trace))]
    if len(begins):
        yield Cause(
            "cached memory",
            "",
            f"call torch.cuda.empty_cache() between forward, backward and optimizer step "
            f"({some(len(begins), 'call')} here, each waits for the GPU)",
            lambda modelled: emptying_at(modelled, begins),
            gives_up=GivesUp.TIME_OR_SIZE,
            postpones=True,
        )


def _has_slack(modelled: Modelled) -> bool:
    before = modelled.baseline
    slack = before.reserved_peak_bytes - before.allocated_peak_bytes
    return slack * 100 >= before.reserved_peak_bytes * _LEAST_PERCENT or bool(before.unserved)
