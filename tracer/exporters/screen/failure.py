"""The end of a run that failed, in the lines that the command line shows."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from tracer.analysis.profiles.failed_allocation import FailedAllocation
from tracer.analysis.profiles.findings import Findings
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import Terminated
from tracer.exporters.screen.allocator import print_first_changes
from tracer.exporters.screen.paths import source_place
from tracer.exporters.screen.profile import print_categories, print_rows
from tracer.exporters.screen.snapshot import print_failed_allocation
from tracer.results.failure import Failure
from tracer.results.run_results import RunResults
from tracer.units import format_bytes


def behind(line: SourceLine | None) -> str:
    """File and line, to be put behind a sentence."""
    return f" ({source_place(line.file, line.line)})" if line is not None else ""


def failure_lines(results: RunResults) -> list[str]:
    """What happened, the allocator's state where it has one, and what to do about it; nothing if nothing failed."""
    failure = results.failure
    if failure is None:
        return []
    lines = [f"Error: {_what(failure)}"]
    if failure.allocator:
        state = ", ".join(f"{key} {format_bytes(value)}" for key, value in failure.allocator.items())
        lines.append(f"Allocator: {state}.")
    return [*lines, f"Hint: {_hint(failure, results)}"]


def _what(failure: Failure) -> str:
    error, where = failure.error, behind(failure.line)
    during = "the timing pass" if failure.in_timing_pass else f"step {failure.step + 1}"
    subject = during[0].upper() + during[1:]
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted in {during}."
    if isinstance(error, Terminated):
        return f"Ended by {error.signal_name} in {during}."
    if isinstance(error, SystemExit):
        return f"{subject} ended the program{where}."
    if isinstance(error, StopIteration):
        return f"The data iterator was exhausted in {during}{where}."
    if getattr(error, "hint", ""):  # it is meant for people already
        return str(error)
    name = type(error).__name__
    event = "ran out of memory" if failure.out_of_memory else f"raised {name}"
    why = str(error).strip().splitlines()
    return f"{subject} {event}: {why[0] if why else name}{where}"


def _hint(failure: Failure, results: RunResults) -> str:
    error, below = failure.error, _below(failure, results)
    if isinstance(error, StopIteration):
        return f"Restart the data iterator, or ask for fewer steps: --n-active-steps, --n-repeats. {below}"
    if getattr(error, "hint", ""):
        return str(error.hint)  # type: ignore[attr-defined]
    if failure.step == 0 and isinstance(error, Exception) and not failure.out_of_memory:
        return _called_with(results.settings) or below
    return below


def _below(failure: Failure, results: RunResults) -> str:
    """What the results still hold."""
    if results.findings is not None:
        return "What was recorded until then is explained and written below."
    if results.failed_allocation is not None:
        return "What was in use then is explained below, by line."
    if failure.out_of_memory:
        return (
            "Nothing was recorded yet. With --n-wait-steps 0 --n-warmup-steps 0 the first step is recorded too, "
            "and explained."
        )
    return "Nothing was recorded yet."


def _called_with(settings: Mapping[str, object]) -> str:
    """What a plain module of the user's was called with, where its first step failed."""
    inputs = settings.get("inputs")
    if not isinstance(inputs, tuple):
        return ""
    if not inputs:
        return "If it is a module that needs inputs, describe them with --input."
    options = " ".join(f"--input {text}" for text in inputs)
    return f"It was called with {options} and --batch-size {settings['batch_size']}: check shape, dtype and range."


def print_failure(
    failed: FailedAllocation, findings: Findings | None, console: Console, top: int, *, fit: str = ""
) -> bool:
    """Print why memory ran out, what was in use then, and what to try first.

    Args:
        findings: Findings of the run; None where nothing was recorded.
        top: Rows of each table but that of the categories.
        fit: A sentence on how to find the least change with which it fits.

    Returns:
        Whether that was the run's peak: its modules and lines are not printed here.
    """
    in_use = failed.in_use
    is_peak = findings is not None and failed.is_at(findings.worst.peak)
    print_failed_allocation(failed.event, console, top=top if in_use is None else 0, fit=fit)
    if in_use is not None:
        print_categories(in_use, console, title="What was in use then")
    if failed.first is not None:
        print_first_changes(failed.first, console)
    if in_use is not None and not is_peak:
        print_rows(in_use, console, top, categories=False)
    return is_peak
