"""One request that is larger than all else; and causes of reserved memory alone: pieces, streams, and a full cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.allocator.settings import recorded_settings
from tracer.analysis.snapshots.causes.case import Case, Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import (
    emptying_at,
    on_one_stream,
    with_expandable_segments,
    with_smaller_blocks,
)
from tracer.analysis.snapshots.fragmentation import fragmentation_after, free_for_process
from tracer.analysis.snapshots.modelled import Modelled
from tracer.analysis.snapshots.sizes import NOTHING
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.arrays import Ints
from tracer.block_sizes import segment_size
from tracer.units import MIB, format_bytes, some

_SHARE: Final = 0.5
"""Of what would be in use with it."""
_MOST_PARTS: Final = 64


def one_request(case: Case) -> Iterator[Cause]:
    """The request that failed, with what its function has made for it, would be most of what is in use."""
    if not case.has_failed:
        return
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
        "it smaller: a broadcast of two tensors has every pair of their rows",
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
        f"{format_bytes(max(idle, 0))} of what is reserved lies in pieces between blocks in use.",
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
