"""All the data of a training on the device, where one batch at a time would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import without_blocks
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.snapshot.replay import BEFORE

_LEAST_PERCENT: Final = 20
_MADE_FOR_A_MODEL: Final = (Fact.MODULE_SETUP, Fact.MODULE_FORWARD, Fact.OPTIMIZER_STATE, Fact.WORKSPACE)


def data_on_device(case: Case) -> Iterator[Cause]:
    """Blocks from before the first call of a model that are there all the time, and of no model."""
    lives = case.lives
    calls = np.flatnonzero(has(case.sites.facts[case.state.trace.stack], Fact.MODULE_FORWARD))
    if not len(calls) or case.last_learning <= BEFORE:
        return
    is_data = np.isin(case.kind, (Kind.INPUT, Kind.HELD, Kind.UNKNOWN)) & has(case.facts, Fact.STACK)
    is_data &= ~has(case.facts, *_MADE_FOR_A_MODEL) & ~case.is_set_up
    rows = np.flatnonzero(is_data & (lives.begin > BEFORE) & (lives.begin < calls[0]) & (lives.end > case.entry))
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "data on the device",
        f"{case.words(rows)}{case.lines(rows)} were put on the device before the model was first called, and stay: "
        "a whole set of data, say.",
        'keep it in host memory and move each batch when it is needed (batch.to("cuda", non_blocking=True), with '
        "pin_memory=True in the DataLoader)",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
    )
