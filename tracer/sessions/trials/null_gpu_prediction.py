"""Will it fit, by the null GPU: torch's own CUDA code has run there, up to its own out-of-memory error."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tracer.answers.failure import Failure, is_out_of_memory, without_gpu, without_tracebacks
from tracer.answers.null_run import USE_CUDA, elsewhere
from tracer.answers.prediction import OutOfMemoryAt, Prediction, Sizes
from tracer.answers.run_results import RunResults
from tracer.capture.device.allocator_history import record_from_start
from tracer.capture.sources.source_files import error_line
from tracer.errors import TracerError, WorkloadError, error_words, first_line
from tracer.null_gpu.cards import CONTEXT_BYTES, Card, Devices
from tracer.null_gpu.job.place import RankPlace
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.null_gpu.process import WITHOUT_END_BYTES, limited_to
from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.session import ScriptVoice
from tracer.sessions.training_profile import TrainingProfile
from tracer.sessions.trials.script_trial import MOST_STEPS, StepRequests, fullest_sizes, sizes_of
from tracer.sessions.workload_run import run_profile
from tracer.units import format_bytes, some
from tracer.workloads.workload import Workload, train_step

Build = Callable[[], Workload]
"""Makes the workload on the null GPU, new each time."""
_NUM_STEPS = 3
"""The first two have state and cache settled."""


def predict_workload(build: Build, devices: Devices, *, is_limited: bool, settings: Mapping[str, object]) -> Prediction:
    """Train a workload for some steps without an end of memory, and where it is more than the card's, on the card."""
    with _without_limit(devices.count):
        results = _run(build, settings)
        if results.failure is not None:
            raise _error(results.failure)
        need = memory = sizes_of(results.device)
    failed_at = None
    if is_limited and need.peak_reserved_bytes > devices.card.usable_bytes:
        _reset_memory()
        failed_at = _place_on_card(build, settings)
        memory = sizes_of(results.device)
    return _prediction(results, devices.card if is_limited else None, devices.count, need, memory, failed_at)


def _run(build: Build, settings: Mapping[str, object]) -> RunResults:
    # A run makes one step more than it records.
    schedule = Schedule(num_wait_steps=0, num_warmup_steps=0, num_active_steps=_NUM_STEPS, num_repeats=1)
    try:
        return run_profile(build(), schedule=schedule, timing=False, settings=settings)
    finally:
        gc.collect()


def _place_on_card(build: Build, settings: Mapping[str, object]) -> OutOfMemoryAt | None:
    """Run on the card; return where its memory ends, which may be when the model is built."""
    try:
        return _place(_run(build, settings))
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not is_out_of_memory(cause):
            cause = cause.__cause__
        if cause is None:
            raise
        return OutOfMemoryAt(None, -1, error_line(cause))


def train(build: Build) -> int:
    """Train a workload for some steps; return how many."""
    workload = build()
    for _ in range(_NUM_STEPS):
        train_step(workload)
    return _NUM_STEPS


@contextmanager
def _without_limit(num_devices: int) -> Iterator[None]:
    _reset_memory()
    with limited_to(WITHOUT_END_BYTES, num_devices):
        yield


def _reset_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


_OF_CUDA = ("cuda", "cublas", "cudnn", "nccl", "nvrtc", "device", "triton", "kernel image")


def _error(failure: Failure) -> WorkloadError:
    at = f" ({failure.line.file}:{failure.line.line})" if failure.line is not None else ""
    words = error_words(failure.error).rstrip(".")
    is_cuda = any(word in words.lower() for word in _OF_CUDA)
    return WorkloadError(
        f"Step {failure.step + 1} raised {words}{at}.",
        hint="Does it run on a GPU? What runs here is torch's own CUDA code."
        if is_cuda
        else "Does the model take the inputs of --input, in these shapes? The step is as the model raises it anywhere.",
    )


def _place(results: RunResults, *, has_begun: bool = True) -> OutOfMemoryAt | None:
    """Return the allocation that ran out of memory, if any: in a step, or before the first one has begun."""
    failure, failed = results.failure, results.failed_allocation
    if failure is None:
        return None
    if not failure.out_of_memory:
        raise _error(failure)
    size_bytes = failed.event.asked_bytes if failed is not None else None
    return OutOfMemoryAt(size_bytes, failure.step if has_begun else -1, failure.line)


def predict_script(
    run: Callable[[ScriptProfile], bool], devices: Devices, *, settings: Mapping[str, object]
) -> Prediction | None:
    """Run a script until its memory repeats; None without a training, or where it failed for another reason."""
    # A session makes one step more than it records, and the last step is not among them.
    steps = StepRequests()
    record_from_start()
    with tempfile.TemporaryDirectory() as folder:
        leave_out = [output.name for output in OUTPUTS]
        silent: dict[str, Any] = {
            "voice": ScriptVoice(),
            "screen": "none",
            "leave_out": leave_out,
            "settings": settings,
        }
        recorded = partial(TrainingProfile, save_dir=folder, schedule=_schedule(), **silent)
        profile = ScriptProfile(recorded, is_enough=steps.are_enough)
        succeeded = run(profile)
    results = profile.session.results if profile.session is not None else None
    if results is None or not (succeeded or (results.failure is not None and results.failure.out_of_memory)):
        return None
    if not results.num_steps and results.failure is None:
        raise TracerError(
            "The script ended, and no step of it was recorded.",
            hint=next(iter(profile.notes), "Let it train for longer: three steps at least."),
        )
    if reason := elsewhere(results.device):
        if results.failure is not None and results.failure.out_of_memory:
            return None  # before anything was trained
        raise TracerError(reason, hint=USE_CUDA)
    has_exited = results.failure is not None and isinstance(results.failure.error, SystemExit)
    failed_at = None if has_exited else _place(results, has_begun=not profile.has_failed_before)
    place, sizes = RankPlace.here(), sizes_of(results.device)
    assumption = f"{some(results.num_steps, 'step')} ran; what comes later, such as an evaluation, is not in it."
    if results.num_steps > 1 and not (failed_at or steps.have_repeated):
        assumption += " No two of them needed the same memory: `run` with the same --on runs all of the script."
    return replace(
        _prediction(results, devices.card, devices.count, sizes, fullest_sizes(), failed_at, of_script=assumption),
        rank=place.rank if place is not None else None,
        nccl=NcclBuffers.of_this_process(),
    )


def no_room_before(error: BaseException, devices: Devices) -> Prediction:
    """The prediction of a script that ran out of memory before a step of it could be recorded."""
    sizes, place, line = fullest_sizes(), RankPlace.here(), error_line(error)
    results = RunResults(findings=None, failure=Failure(without_tracebacks(error), 0, {}, line), device="cuda:0")
    failed_at = OutOfMemoryAt(None, -1, line)
    assumption = f"The script ran until then: {without_gpu(first_line(error))}."
    return replace(
        _prediction(results, devices.card, devices.count, sizes, sizes, failed_at, of_script=assumption),
        rank=place.rank if place is not None else None,
    )


def _schedule() -> Schedule:
    """Return the schedule of as many steps as memory needs to repeat: all, but for a distributed program's first.

    There DTensor finds the way of each operator, in a million Python calls that a recording would hold (8 GB of the
    host's memory). What that step asks for is in the counters, and the allocator's history explains where it ends.
    """
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return Schedule(int(is_distributed), 0, MOST_STEPS, 1, may_end_early=True)


def _prediction(
    results: RunResults,
    card: Card | None,
    num_cards: int,
    need: Sizes,
    memory: Sizes,
    failed_at: OutOfMemoryAt | None,
    *,
    of_script: str = "",
) -> Prediction:
    assumptions = [
        of_script or f"{results.num_steps} steps ran with torch {torch.__version__}; all others are like the last."
    ]
    if card is None:
        assumptions.append("No GPU is named: kernels are chosen as on an A100.")
    else:
        if not card.label:
            assumptions.append(f"{format_bytes(card.memory_bytes)} is taken as an A100 with that memory.")
        aside = f"{format_bytes(CONTEXT_BYTES)} of the GPU are set aside for CUDA's context and kernels"
        assumptions.append(f"{aside}; they are in no peak.")
    assumptions += results.notes
    return Prediction(
        results=results,
        card=card,
        num_cards=num_cards,
        need=need,
        memory=memory,
        is_whole=failed_at is None or not of_script,
        failed_at=failed_at,
        assumptions=tuple(assumptions),
    )
