"""Will it fit, answered by the null GPU: torch's own CUDA code has run there, up to its own out-of-memory error."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping

import torch

from tracer.errors import TracerError
from tracer.null_gpu.cards import Devices
from tracer.results.prediction import NullPrediction
from tracer.results.run_results import RunResults
from tracer.runs.outputs import OUTPUTS
from tracer.runs.script_run import ScriptProfile, ScriptTraining
from tracer.runs.session import Schedule
from tracer.runs.workload_run import run_profile
from tracer.workloads.workload import Workload

SCHEDULE = Schedule(num_wait_steps=0, num_warmup_steps=0, num_active_steps=4, num_repeats=1)
"""Memory runs out in the first steps, and state and cache are settled after them."""


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

    Raises:
        TracerError: What it trained is not on a GPU.
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
    if torch.device(results.device).type != "cuda":
        raise TracerError(
            f"The script trained on {results.device}, so that nothing was asked of the GPU.",
            hint="Have it use cuda, by its own options or by torch.set_default_device.",
        )
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
