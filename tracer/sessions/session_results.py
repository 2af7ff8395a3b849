"""The results of a session, put together for its files and for the screen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracer.answers.failure import Failure, without_tracebacks
from tracer.answers.null_run import notes_of
from tracer.answers.run_results import RunResults
from tracer.capture.device.devices import allocator_counters
from tracer.errors import RecordingError
from tracer.sessions.on_null_gpu import origin_of, values_read
from tracer.sessions.profile_session import ProfileSession

if TYPE_CHECKING:
    from tracer.capture.run_facts import PhaseTimings


def failure_of(
    error: BaseException, session: ProfileSession, *, in_timing_pass: bool = False, is_raised: bool = False
) -> Failure:
    """The failure without its traceback, which would keep the step's tensors alive; one on its way is not touched."""
    from tracer.capture.sources.source_files import error_line

    line, state = error_line(error), allocator_counters(session.cycles.device_of_failure)
    if not is_raised:
        error = without_tracebacks(error)
    else:
        try:
            error = copy.copy(error).with_traceback(None)
        except Exception:  # one with a constructor of its own
            error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failure(error, session.num_steps_done, state, line, in_timing_pass)


def run_results(
    session: ProfileSession,
    *,
    failure: Failure | None,
    notes: Sequence[str] = (),
    timings: PhaseTimings | None = None,
    losses: tuple[float, ...] = (),
) -> RunResults:
    """Put the results of a session together, of the command line's run as of anybody's own loop."""
    findings = None
    try:
        findings = session.findings
    except RecordingError as problem:
        if session.cycles.number or failure is None:  # else the failure says it
            notes = (*notes, str(problem))
    ran_out = failure is not None and failure.out_of_memory and not failure.in_timing_pass
    device = session.cycles.device_of(findings)
    origin = origin_of(device)
    return RunResults(
        findings=findings,
        timings=timings if not origin.caveat else None,
        history=session.cycles.run_history,
        known=session.observed.storages.observations(),
        unused_parameters=session.observed.without_gradient,
        losses=losses if not origin.caveat else (),
        num_steps=session.num_steps_done,
        failure=failure,
        settings=session.settings,
        notes=(*(notes_of(findings) if origin.caveat else ()), *notes, *session.notes),
        parameters=session.parameters,
        project_root=session.project_root,
        failed_allocation=session.cycles.failed_allocation if ran_out else None,
        module_names=session.observed.module_names,
        origin=origin,
        device=str(device),
        keep_recording=session.keep_recording,
        values_read=values_read() if origin.caveat else None,
        driver=session.cycles.driver_looks(device),
    )
