"""Causes of reserved memory alone: pieces, streams, and a full cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import emptying_at, on_one_stream, with_expandable_segments
from tracer.analysis.snapshots.modelled import Modelled
from tracer.units import format_bytes, some

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


def fragmentation(case: Case, modelled: Modelled) -> Iterator[Cause]:
    """Only where more is reserved than was ever in use."""
    before = modelled.baseline
    if not _has_slack(modelled) or modelled.settings.expandable_segments or modelled.is_from_start:
        return
    idle = before.reserved_peak_bytes - before.allocated_peak_bytes
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
