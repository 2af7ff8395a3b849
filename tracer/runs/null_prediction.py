"""Will it fit, answered by the null GPU: torch's own CUDA code has run there, up to its own out-of-memory error."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tracer.analysis.profiles.findings import Findings
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import Devices
from tracer.runs.outputs import OUTPUTS
from tracer.runs.results import RunResults
from tracer.runs.script_run import ScriptProfile, ScriptTraining
from tracer.runs.session import Schedule
from tracer.runs.workload_run import run_profile
from tracer.workloads.workload import Workload

SCHEDULE = Schedule(num_wait_steps=0, num_warmup_steps=0, num_active_steps=4, num_repeats=1)
"""Memory runs out in the first steps, and state and cache are settled after them."""


@dataclass(frozen=True, slots=True, eq=False)
class NullPrediction:
    """What a run on the null GPU needed.

    Attributes:
        devices: On which it ran.
        results: Of the run; its failure is the device's own out of memory.
        peak_allocated_bytes: The most that the allocator had handed out on the device, from the start of the process.
        peak_requested_bytes: The same before rounding.
        peak_reserved_bytes: The most that it had reserved.
        num_retries: How often it gave back its cache for a request.
        needed_bytes: What it reserves where memory does not end; None where it fits, or nobody looked.
    """

    devices: Devices
    results: RunResults
    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    needed_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether every allocation was served."""
        return self.results.failure is None

    @property
    def room_bytes(self) -> int:
        """What is left of the card beside what was reserved and CUDA's own context."""
        return self.devices.card.usable_bytes - self.peak_reserved_bytes

    @property
    def findings(self) -> Findings | None:
        """What filled the device at the peak; None if nothing was recorded."""
        return self.results.findings

    @property
    def failed_line(self) -> SourceLine | None:
        """The user's line that asked for what there was no memory for."""
        return self.results.failure.line if self.results.failure is not None else None


def predict_workload(workload: Workload, devices: Devices, *, settings: Mapping[str, object]) -> NullPrediction:
    """Train a workload for some steps.

    Args:
        workload: On the null GPU's device.
        devices: What this process runs on.
        settings: What to remember of the run.
    """
    results = run_profile(workload, schedule=SCHEDULE, timing=False, settings=settings)
    return _prediction(devices, results)


def predict_script(
    run: Callable[[ScriptProfile], bool], devices: Devices, *, settings: Mapping[str, object]
) -> NullPrediction | None:
    """Run a script until its first steps are recorded.

    Args:
        run: Runs it under the profile that it is given.
        devices: What this process runs on.
        settings: What to remember of the run.

    Returns:
        None if no training was found, or the script failed otherwise than for want of memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        profile = ScriptProfile(
            lambda models, optimizers: ScriptTraining(
                models,
                optimizers,
                save_dir=folder,
                schedule=SCHEDULE,
                screen="none",
                leave_out=[output.name for output in OUTPUTS],
                settings=settings,
            ),
            is_first_steps_alone=True,
        )
        succeeded = run(profile)
    session = profile.session
    results = session.results if isinstance(session, ScriptTraining) else None
    if results is None or not (succeeded or (results.failure is not None and results.failure.out_of_memory)):
        return None
    return _prediction(devices, results)


def _prediction(devices: Devices, results: RunResults) -> NullPrediction:
    counters = torch.cuda.memory_stats(torch.device(results.device))
    return NullPrediction(
        devices,
        results,
        peak_allocated_bytes=counters.get("allocated_bytes.all.peak", 0),
        peak_requested_bytes=counters.get("requested_bytes.all.peak", 0),
        peak_reserved_bytes=counters.get("reserved_bytes.all.peak", 0),
        num_retries=counters.get("num_alloc_retries", 0),
    )
