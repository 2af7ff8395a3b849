"""A failure that ended a run, in lines for the terminal and for a kept recording."""

from __future__ import annotations

from collections.abc import Mapping

from tracer.answers.failure import Failure
from tracer.answers.paths import behind
from tracer.answers.run_results import RunResults
from tracer.errors import Terminated
from tracer.units import format_bytes


def failure_lines(results: RunResults) -> list[str]:
    """Return the failure, the allocator's state if it has one, and a hint; no lines if nothing failed."""
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
    """Return the arguments of a plain module whose first step failed."""
    inputs = settings.get("inputs")
    if not isinstance(inputs, tuple):
        return ""
    if not inputs:
        return "If it is a module that needs inputs, describe them with --input."
    options = " ".join(f"--input {text}" for text in inputs)
    return f"It was called with {options} and --batch-size {settings['batch_size']}: check shape, dtype and range."
