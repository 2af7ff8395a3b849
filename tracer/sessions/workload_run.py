"""A workload trained from start to finish, profiled with a timing pass, and what happens on failure."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import numpy as np
import torch

from tracer.answers.failure import Failure, is_out_of_memory
from tracer.answers.run_results import RunResults
from tracer.capture.device import devices
from tracer.capture.device.devices import has_random_state, with_index
from tracer.capture.run_facts import PHASES, PhaseTimings
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.session import fault_text
from tracer.sessions.session_results import failure_of, run_results
from tracer.sessions.termination import Termination
from tracer.units import NS_PER_MS
from tracer.workloads.workload import Workload, all_tensors, train_step

Progress = Callable[[int, int], None]
_NUM_TIMING_WARMUP, _NUM_TIMING_MEASURED = 2, 6
_NUM_TIMING_STEPS = _NUM_TIMING_WARMUP + _NUM_TIMING_MEASURED


def run_profile(
    workload: Workload,
    *,
    schedule: Schedule,
    timing: bool = True,
    keep_recording: bool = False,
    progress: Progress = lambda done, total: None,
    settings: Mapping[str, object] | None = None,
    termination: Termination | None = None,
    device_named: bool = True,
) -> RunResults:
    """Train a workload under the profiler, then time its phases on copies, without profiler.

    An exception in a step, out of memory, Ctrl-C and `sys.exit` among them, ends the run; what was recorded until then
    is returned, with the failure named.

    Args:
        termination: Installed SIGTERM handler; signals stay deferred on return, so that the results can be written.
        device_named: Whether the profile is about the workload's device, whatever other devices hold.
    """
    with ExitStack() as ended:
        termination = termination or ended.enter_context(closing(Termination()))
        session = ProfileSession(
            workload.model,
            workload.optimizer,
            device=workload.device if device_named else None,
            schedule=schedule,
            settings=settings,
            keep_recording=keep_recording,
        )
        losses: list[float] = []
        timings: PhaseTimings | None = None
        notes: list[str] = []
        timing = timing and session.cycles.history.is_timed
        num_timing_steps = _NUM_TIMING_STEPS if timing else 0
        total = schedule.num_steps + num_timing_steps
        failure = _train(workload, session, schedule, termination, lambda done: progress(done, total), losses)
        if session.fault is not None and failure is None:
            notes.append(f"Profiling has stopped: {fault_text(session.fault)}")
            failure = failure_of(session.fault, session)
        if failure is None:
            _ = session.findings  # raises where nothing was allocated
        if timing and failure is None:
            timings, failure = _timed(
                workload, session, termination, lambda done: progress(schedule.num_steps + done, total), notes
            )
        return run_results(session, failure=failure, notes=notes, timings=timings, losses=tuple(losses))


def _train(
    workload: Workload,
    session: ProfileSession,
    schedule: Schedule,
    termination: Termination,
    progress: Callable[[int], None],
    losses: list[float],
) -> Failure | None:
    """Run the profiled steps, whose losses are added to the list; returns what ended them early."""
    try:
        with session:
            try:
                for _ in range(schedule.num_steps):
                    losses += run_step(workload, session)
                    session.step()
                    progress(session.num_steps_done)
            finally:
                termination.hold()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if session.is_in_child:
            raise
        return failure_of(error, session)
    return None


def _timed(
    workload: Workload,
    session: ProfileSession,
    termination: Termination,
    progress: Callable[[int], None],
    notes: list[str],
) -> tuple[PhaseTimings | None, Failure | None]:
    """The timing pass, and what ended it early; that a second copy of the model has no room is a note."""
    try:
        termination.resume()
        return _time(workload, progress, notes), None
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if not is_out_of_memory(error):
            return None, failure_of(error, session, in_timing_pass=True)
        notes.append("The timing pass needs a second copy of the model, for which the device had no memory left.")
        return None, None
    finally:
        termination.hold()


def run_step(workload: Workload, session: ProfileSession) -> list[float]:
    """Run a step; returns its loss in a list, or an empty list where there is none."""
    losses: list[float] = []

    def after_backward(loss: Any) -> None:
        if loss is not None:
            losses.append(float(loss.detach()))
        if workload.optimizer is None and loss is not None:
            session.observe_gradients()

    train_step(workload, session.observe_batch, after_backward)
    return [sum(losses)] if losses else []


@contextmanager
def random_states_kept(workload: Workload) -> Iterator[None]:
    """Put torch's random states, on the CPU and on the workload's devices, numpy's and Python's back at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    of_model = (tensor.device for tensor in all_tensors(workload.model))
    used = {with_index(device) for device in (workload.device, *of_model) if has_random_state(device)}
    by_type = itertools.groupby(sorted(used, key=str), key=lambda device: device.type)
    try:
        with ExitStack() as kept:
            kept.enter_context(torch.random.fork_rng(devices=[]))
            for device_type, alike in by_type:
                kept.enter_context(torch.random.fork_rng(devices=list(alike), device_type=device_type))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _time(workload: Workload, progress: Callable[[int], None], notes: list[str]) -> PhaseTimings | None:
    """Time the phases of a copy; that a model cannot be copied is a note, not a failure of the run."""
    with random_states_kept(workload):
        try:
            copy = workload.copy()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            notes.append(f"The phases were not timed: copying the model raised {type(error).__name__}: {error}")
            return None
        if copy is None:
            notes.append("The phases were not timed: they cannot be started one by one.")
            return None
        try:
            batch = [copy.next_batch()]
        except StopIteration:
            notes.append("The phases were not timed: the workload had no batch left.")
            return None
        done = itertools.count(1)

        def after_step() -> None:
            with suppress(StopIteration):  # the last batch of a source that has an end serves for the rest
                batch[0] = copy.next_batch()
            progress(next(done))

        return time_phases(
            forward=lambda: copy.forward(batch[0]),
            backward=copy.backward,
            optimizer_step=copy.optimizer_step,
            device=copy.device,
            num_warmup_steps=_NUM_TIMING_WARMUP,
            num_steps=_NUM_TIMING_MEASURED,
            after_step=after_step,
        )


def time_phases(
    *,
    forward: Callable[[], Any],
    backward: Callable[[Any], None],
    optimizer_step: Callable[[], None],
    device: torch.device,
    num_warmup_steps: int,
    num_steps: int,
    after_step: Callable[[], None] = lambda: None,
) -> PhaseTimings:
    """Run steps and time their phases, without profiler or allocator history.

    Where the device has events, one is recorded on its current stream at each edge, and the host waits for the device
    only when a step ends. Elsewhere the host's clock is read at the edges, after waiting for the device.
    """
    has_events = devices.has_events(device)

    def now() -> Any:
        if has_events:
            return devices.record_event(device)
        devices.synchronize(device)
        return time.perf_counter_ns()

    durations_ms: dict[str, list[float]] = {phase: [] for phase in PHASES}
    devices.synchronize(device)
    for step in range(num_warmup_steps + num_steps):
        total, start = now(), now()
        loss = forward()
        edges = {"model_fwd": (start, now())}
        start = now()
        backward(loss)
        edges["loss_bk"] = start, now()
        start = now()
        optimizer_step()
        edges["opt_step"] = start, now()
        edges["total_time"] = total, now()
        devices.synchronize(device)
        if step >= num_warmup_steps:
            for name, (start, end) in edges.items():
                durations_ms[name].append(start.elapsed_time(end) if has_events else (end - start) / NS_PER_MS)
        del loss
        after_step()
    return PhaseTimings(
        device=str(device),
        clock=device.type.upper() if has_events else "CPU",
        durations_ms={name: tuple(values) for name, values in durations_ms.items()},
    )
