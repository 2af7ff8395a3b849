"""A single request that is larger than all that it could be given, whatever else is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import with_smaller_blocks
from tracer.analysis.snapshots.fragmentation import fragmentation_after
from tracer.units import format_bytes

_SHARE: Final = 0.5
"""Of what would be in use with it."""
_MOST_PARTS: Final = 64


def one_request(case: Case) -> Iterator[Cause]:
    """The request that failed would be most of what is in use."""
    asked, in_use = case.asked_bytes, case.in_use_bytes - case.asked_bytes
    if not case.has_failed or asked < _SHARE * case.in_use_bytes:
        return
    reserved = fragmentation_after(case.device.state, case.device.replay, case.entry)
    free_bytes = reserved.free_bytes + max(int(case.state.trace.addr[case.entry]), 0)
    if asked <= free_bytes:  # in one piece it would do
        return
    num_parts = 2
    while asked > num_parts * free_bytes:
        num_parts *= 2
        if num_parts > _MOST_PARTS:
            return
    site = case.sites.site(case.asked_stack)
    rows = np.flatnonzero((case.stack == case.asked_stack) & (case.lives.requested_bytes >= asked))
    where = f" at {site.file}:{site.line}" if site.file is not None else ""
    yield Cause(
        "one request",
        f"The request{where} is what does not fit: {format_bytes(asked)} for a single tensor, where all else in use "
        f"comes to {format_bytes(in_use)}.",
        f"make it in parts (a loop over {num_parts} parts of its rows, each reduced before the next is made), or make "
        "it smaller: a broadcast of two tensors has every pair of their rows",
        lambda modelled: with_smaller_blocks(modelled, rows, num_parts, with_last_failure=True),
        site if site.file is not None else None,
        GivesUp.TIME_OR_SIZE,
    )
