"""What stays alive from one step to the next although it should not: memory that grows, with the line that made it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.block_lifetimes import Storages
from tracer.analysis.profiles.peak_rows import op_label, place
from tracer.capture.recording import Recording


@dataclass(frozen=True, slots=True)
class Growth:
    """Blocks from one place that outlive the step after their own, step after step.

    Attributes:
        bytes_per_step: Mean over the steps that could be judged.
        num_judged_steps: Steps that could be judged: all but the last of the recording.
        op: Operator.
        module: Path of the module, or None.
        file: Source file of the user's line, or None.
        line: Its number, or None.
    """

    bytes_per_step: int
    num_judged_steps: int
    op: str | None
    module: str | None
    file: str | None
    line: int | None


def find_growth(recording: Recording, attribution: Attribution, storages: Storages) -> tuple[Growth, ...]:
    """Find what every judged step leaves behind beyond the end of the step after it.

    A result or batch that a loop variable holds dies in the next step, when the variable is set anew, and gradients
    that are cleared at the beginning of a step die there; neither counts. What only the first step leaves, such as
    the optimizer's state, does not count either, so that at least three steps have to be recorded.

    Args:
        recording: One cycle.
        attribution: Of the same recording.
        storages: One device's blocks.

    Returns:
        Places, largest growth first.
    """
    num_steps = len(attribution.step_names)
    num_judged = num_steps - 1
    if num_judged < 2:
        return ()
    made_here = storages.allocation >= 0
    allocation = storages.allocation[made_here]
    step = attribution.allocation_step[allocation]
    last_event = _last_events(attribution, storages, num_steps)
    outlives = (step >= 0) & (step < num_judged)
    outlives[outlives] = storages.freed_at[made_here][outlives] > last_event[step[outlives] + 1]
    totals: dict[tuple[str | None, str | None, str | None, int | None], dict[int, int]] = {}
    for row, which, size in zip(
        allocation[outlives].tolist(),
        step[outlives].tolist(),
        storages.size_bytes[made_here][outlives].tolist(),
        strict=True,
    ):
        module = int(attribution.allocation_module[row])
        site = (
            op_label(recording, int(recording.allocations.op[row])),
            attribution.modules[module] if module >= 0 else None,
            *place(recording, int(attribution.allocation_frame[row])),
        )
        by_step = totals.setdefault(site, {})
        by_step[which] = by_step.get(which, 0) + size
    found = [
        Growth(sum(by_step.values()) // num_judged, num_judged, *site)
        for site, by_step in totals.items()
        if len(by_step) == num_judged
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes_per_step))


def _last_events(
    attribution: Attribution, storages: Storages, num_steps: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[steps] position of the last event in each step."""
    last = np.full(num_steps, -1, np.int64)
    step = attribution.allocation_step[storages.events]
    inside = np.flatnonzero(step >= 0)
    np.maximum.at(last, step[inside], inside)
    return last
