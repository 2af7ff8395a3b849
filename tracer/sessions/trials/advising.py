"""Advice for a workload: changes rehearsed, and on request the winning ones made for real, on copies."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from tracer.capture.device.devices import synchronize
from tracer.changes.change import Change, Wrapped
from tracer.changes.kinds import accumulate
from tracer.changes.kinds.accumulate import Accumulated
from tracer.changes.planner import LEAST_SHARE, Advice, Build, Device, RehearsedChanges, advise, applied, report_of
from tracer.changes.recommendation import AdviceReport, Group, Measured, Recommendation
from tracer.null_gpu import process
from tracer.null_gpu.cards import CARDS, UNNAMED, Card
from tracer.null_gpu.cudnn import cudnn_of
from tracer.null_gpu.process import WITHOUT_END_BYTES, limited_to
from tracer.rehearsal.cpu_kernels import CpuKernels
from tracer.results.null_run import caveat_of
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import random_states_kept, run_step
from tracer.units import NS_PER_MS
from tracer.workloads.workload import Workload, num_micro_batches, train_step

_PROFILED = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=1, num_repeats=1)
_NUM_TIMED = 3
_NUM_VERIFIED = 3
_NUM_COUNTED = 3
"""Steps on the null GPU: in the second the optimizer's state is there, in the third nothing is new."""
_Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _RealRun:
    """A workload made for real for a few steps; where nothing is computed, without losses and times."""

    peak_bytes: int
    losses: tuple[float, ...]
    step_ms: float | None


def advise_on(
    build: Build,
    of: Workload,
    *,
    build_there: Build | None = None,
    target_bytes: int | None = None,
    verify: bool = False,
    progress: _Progress = lambda done, total: None,
) -> AdviceReport:
    """Advise on a workload's peak, without touching the workload or a random state.

    Args:
        build_there: Makes it anew on that device, to be run; by default `build`.
        verify: Whether to make the winning changes for real, before and after; on the null GPU all that are listed are.

    Raises:
        TracerError: The step cannot be rehearsed.
    """
    device: Device = "cpu" if of.device.type == "cpu" else "cuda"
    with random_states_kept(of):
        cpu_kernels = CpuKernels() if device == "cpu" else None
        card = _card(of.device)
        with cudnn_of(card) as cudnn:
            advice = advise(
                build,
                device=device,
                target_bytes=target_bytes,
                progress=progress,
                cpu_kernels=cpu_kernels,
                card=card,
                cudnn=cudnn,
            )
        if caveat_of(of.device):
            return shown_on_null_gpu(advice, build_there or build)
        measured: dict[str, Measured] = {}
        if verify:
            advice, measured = _verified(advice, build_there or build, run_for_real(build_there or build))
    return report_of(advice, measured)


def shown_on_null_gpu(advice: Advice, build: Build) -> AdviceReport:
    """Advice with every listed change made in this process on the null GPU: savings are what its allocator counts.

    Memory has no end there meanwhile: what runs out with a change saves something all the same.
    """
    with limited_to(WITHOUT_END_BYTES, torch.cuda.device_count()):
        before = run_for_real(build)
        advice, measured = _verified(advice, build, before, num_best=len(advice.best))
    report = report_of(advice, measured)
    return replace(report, peak_bytes=before.peak_bytes, rows=tuple(sorted(report.rows, key=_place_in_list)))


def _place_in_list(row: Recommendation) -> tuple[int, bool, int]:
    """By group, in a group what saves most first, and last what is about the allocator alone."""
    return Group[row.group.upper()], row.how_found == "replayed", -row.gain_bytes


def _card(device: torch.device) -> Card:
    """The GPU at hand, as a rehearsal follows it; where it is none of CUDA's, the usual one."""
    if device.type != "cuda":
        return UNNAMED
    gpu = torch.cuda.get_device_properties(device)
    label = next((card.label for card in CARDS if card.name == gpu.name), "")  # of another cuDNN is not asked
    return Card(label, gpu.total_memory, capability=(gpu.major, gpu.minor), num_sms=gpu.multi_processor_count)


def _verified(
    advice: Advice, build: Build, before: _RealRun, *, num_best: int = _NUM_VERIFIED
) -> tuple[Advice, dict[str, Measured]]:
    """Measure the winning outcomes, and take out those that hardly make the measured peak smaller."""
    wanted = [advice.fit, *advice.best[:num_best], advice.together]
    due = {
        outcome.name: outcome
        for outcome in wanted
        if outcome is not None and outcome.changes and not any(c.settings for c in outcome.changes)
    }
    measured: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    is_sum: bool | None = None
    for name, outcome in due.items():
        try:
            if is_sum is None and any(change.family == accumulate.FAMILY for change in outcome.changes):
                is_sum = loss_is_sum(build, outcome.changes, before)
            measured[name] = measure(build, outcome.changes, before, divides=not is_sum)
        except Exception as error:  # of torch or the model, under a change: told in the answer
            failed[name] = f"{type(error).__name__}: {error}"
            continue
        if measured[name].saves_bytes < LEAST_SHARE * before.peak_bytes:
            failed[name] = "made for real, it saves less than 1 % of the measured peak"

    def kept(outcome: RehearsedChanges | None) -> RehearsedChanges | None:
        return None if outcome is None or outcome.name in failed else outcome

    advice = replace(
        advice,
        outcomes=tuple(outcome for outcome in advice.outcomes if kept(outcome)),
        together=kept(advice.together),
        fit=kept(advice.fit),
        not_tried=(*advice.not_tried, *failed.items()),
    )
    return advice, {name: outcome for name, outcome in measured.items() if name not in failed}


def measure(build: Build, changes: Sequence[Change], before: _RealRun, *, divides: bool = True) -> Measured:
    """Make changes on a new copy of the workload, and measure its peak."""
    after = run_for_real(build, changes, divides=divides)
    return Measured(
        saves_bytes=before.peak_bytes - after.peak_bytes,
        peak_bytes=after.peak_bytes,
        step_ms=before.step_ms,
        changed_step_ms=after.step_ms,
        losses=before.losses,
        changed_losses=after.losses,
    )


def loss_is_sum(build: Build, changes: Sequence[Change], before: _RealRun) -> bool:
    """Whether the losses of a batch's parts add up to the batch's, rather than their mean: forward passes tell."""
    if not before.losses:
        return False
    of_one = num_micro_batches(build())
    workload = applied(build(), changes)
    num_parts = num_micro_batches(workload) // of_one
    with torch.no_grad():
        losses = [workload.forward(workload.next_batch()) for _ in range(num_micro_batches(workload))]
    divided, whole = float(sum(losses)), before.losses[0]
    return abs(divided * num_parts - whole) < abs(divided - whole)


def run_for_real(build: Build, changes: Sequence[Change] = (), *, divides: bool = True) -> _RealRun:
    """Some steps under the profiler, for the peak and the losses, then some without it, for the time."""
    gc.collect()
    if process.is_active():  # from here on its counters are about this workload, in memory as of a new process
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held_bytes = torch.cuda.memory_allocated()
    workload = applied(build(), changes)
    _set_divides(workload, divides)
    if caveat_of(workload.device):
        for _ in range(_NUM_COUNTED):
            train_step(workload)
        return _RealRun(torch.cuda.max_memory_allocated(workload.device) - held_bytes, (), None)
    session = ProfileSession(
        workload.model, workload.optimizer, device=workload.device, schedule=_PROFILED, peak_alone=True
    )
    losses: list[float] = []
    with session:
        for _ in range(_PROFILED.num_steps - 1):
            losses += run_step(workload, session)
            session.step()
        # The profiler is off by now: this step is timed, too.
        durations_ms = [_timed_ms(lambda: losses.extend(run_step(workload, session)), workload.device)]
        session.step()
    peak_bytes = session.findings.worst.peak.allocator_peak_bytes
    durations_ms += [_timed_ms(lambda: train_step(workload), workload.device) for _ in range(_NUM_TIMED - 1)]
    return _RealRun(peak_bytes, tuple(losses), median(durations_ms))


def _timed_ms(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start_ns = time.perf_counter_ns()
    work()
    synchronize(device)
    return (time.perf_counter_ns() - start_ns) / NS_PER_MS


def _set_divides(workload: Workload, divides: bool) -> None:
    while isinstance(workload, Wrapped):
        if isinstance(workload, Accumulated):
            workload.divides = divides
        workload = workload.inner
