"""When each step was in forward, backward and optimizer, and how much memory each phase held at most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.attribution import Attribution, Phase
from tracer.analysis.storages import Storages
from tracer.capture.recording import Recording

SHOWN = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """One phase of one step.

    Attributes:
        step: Name of the step.
        phase: forward, backward or optimizer.
        start_ns: Start of its first operator.
        end_ns: End of its last operator.
        peak_bytes: The most bytes in use during it; None if nothing was allocated or freed.
    """

    step: str
    phase: str
    start_ns: int
    end_ns: int
    peak_bytes: int | None

    @property
    def duration_ns(self) -> int:
        """From the first operator's start to the last one's end, on the host."""
        return self.end_ns - self.start_ns


def step_phases(recording: Recording, attribution: Attribution, storages: Storages) -> tuple[StepPhase, ...]:
    """Lay out the phases of every step in order of time.

    Args:
        recording: One cycle.
        attribution: Of the same recording.
        storages: One device's blocks.
    """
    ops = recording.ops
    event_step = attribution.allocation_step[storages.events]
    event_phase = attribution.allocation_phase[storages.events]
    found = []
    for step, name in enumerate(attribution.step_names):
        for phase in SHOWN:
            here = (attribution.op_step == step) & (attribution.op_phase == phase)
            if not here.any():
                continue
            level = storages.allocator_bytes[(event_step == step) & (event_phase == phase)]
            found.append(
                StepPhase(
                    step=name,
                    phase=phase.name.lower(),
                    start_ns=int(ops.start_ns[here].min()),
                    end_ns=int(ops.end_ns[here].max()),
                    peak_bytes=int(np.max(level)) if len(level) else None,
                )
            )
    return tuple(sorted(found, key=lambda one: one.start_ns))
