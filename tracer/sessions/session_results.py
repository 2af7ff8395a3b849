"""The results of a session, for the command line and for a notebook."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.answers.answer_of_run import headline
from tracer.answers.failure import Failure, without_tracebacks
from tracer.answers.null_run import caveat_of, notes_of
from tracer.answers.run_results import RunResults
from tracer.capture.device.devices import allocator_counters
from tracer.capture.objects.known_storages import Parameter
from tracer.capture.run_facts import RunOrigin
from tracer.errors import RecordingError
from tracer.exporters.files import check_folder
from tracer.exporters.notebook import notebook_html
from tracer.sessions.on_null_gpu import values_read
from tracer.sessions.output_files import Written, write_outputs
from tracer.sessions.profile_session import ProfileSession

if TYPE_CHECKING:
    from tracer.capture.run_facts import PhaseTimings


class ShownResults(RunResults):
    """Results that say what they are at a prompt and in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, *, notes: Sequence[str] = (), page: Path | None = None) -> str:
        """The results as HTML for a notebook, with further sentences, and with the page if it was written."""
        first = [self.origin.caveat] if self.origin.caveat else []
        return notebook_html(self.findings, self.num_steps, notes=[*first, *notes], page=page)

    @property
    def peak_bytes(self) -> int:
        """Allocated bytes at the largest peak: what the rows sum to. 0 where nothing was recorded."""
        return self.findings.worst.peak.peak_bytes if self.findings is not None else 0

    def save(self, folder: str | Path) -> tuple[Written, ...]:
        """Write every file of a run.

        Raises:
            OutputError: The folder cannot be written to.
        """
        check_folder(Path(folder))
        return write_outputs(self, Path(folder))

    def __repr__(self) -> str:
        """Return the answer in a line, and where the rest is, for Python and IPython."""
        found = "nothing was recorded" if self.findings is None else headline(self.findings, self.num_steps)
        return f"<RunResults: {' '.join([self.origin.caveat, found]).strip().rstrip('.')}; .rows, .to_pandas()>"


def failure_of(
    error: BaseException, session: ProfileSession, *, in_timing_pass: bool = False, is_raised: bool = False
) -> Failure:
    """The failure without its traceback, which would keep the step's tensors alive.

    Args:
        is_raised: Whether it is still on its way, so that it is not to be touched.
    """
    from tracer.capture.sources.source_files import error_line

    line, state = error_line(error), allocator_counters(session.device_of_failure)
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
    parameters: tuple[Parameter, ...],
    project_root: Path | None,
    settings: Mapping[str, object],
    keep_recording: bool,
    timings: PhaseTimings | None = None,
    losses: tuple[float, ...] = (),
) -> ShownResults:
    """Put the results of a session together, of the command line's run as of anybody's own loop."""
    findings = None
    try:
        findings = session.findings
    except RecordingError as problem:
        if session.has_recording or failure is None:  # else the failure says it
            notes = (*notes, str(problem))
    ran_out = failure is not None and failure.out_of_memory and not failure.in_timing_pass
    device = session.device_of(findings)
    caveat = caveat_of(device)
    return ShownResults(
        findings=findings,
        timings=timings if not caveat else None,
        history=session.run_history,
        known=session.known,
        unused_parameters=session.unused_parameters,
        losses=losses if not caveat else (),
        num_steps=session.num_steps_done,
        failure=failure,
        settings=dict(settings),
        notes=(*(notes_of(findings) if caveat else ()), *notes, *session.notes),
        parameters=parameters,
        project_root=project_root,
        failed_allocation=session.failed_allocation if ran_out else None,
        module_names=session.module_names,
        origin=RunOrigin.here(str(device), caveat=caveat),
        device=str(device),
        keep_recording=keep_recording,
        values_read=values_read() if caveat else None,
    )
