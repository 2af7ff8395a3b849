"""Results of a run on a console: one order for the command line and for a training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tracer.answers.failure import Failure
from tracer.answers.history_sections import (
    failure_section,
    first_changes_sections,
    host_sections,
    ran_out_at,
)
from tracer.answers.paths import behind
from tracer.answers.recording_findings import Findings
from tracer.answers.run_results import RunResults
from tracer.errors import Terminated
from tracer.exporters.screen.next_commands import after_run, fit_words
from tracer.exporters.screen.profile import (
    NUM_ROWS,
    categories_table,
    parameters_sentence,
    print_parts,
    print_peak,
    print_timings,
    short_screen,
)
from tracer.exporters.screen.text import print_section, print_table, say, say_wrapped
from tracer.exporters.screen.values import print_values, values_sentences
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation


def short_lines(results: RunResults, folder: Path, written: Sequence[str]) -> tuple[str, ...]:
    """The answer in a few lines."""
    failed = results.failed_allocation
    lines = [results.origin.caveat] * bool(results.origin.caveat)
    lines += [f"{ran_out_at(failed.event.site)}: {failed.event.advice}"] if failed is not None else []
    if results.findings is not None:
        lines += short_screen(results.findings, results.num_steps)
        lines += results.room
    lines += values_sentences(results.values_read) if results.values_read is not None else ()
    if written:
        lines.append(f"{some(len(written), 'file')} in {folder}: {', '.join(written)}.")
    return (*lines, *after_run(folder, written))


def print_results(results: RunResults, console: Console, *, top: int = NUM_ROWS, num_steps: int | None = None) -> None:
    """Print what the results have: what ran out of memory, the peak, the times, the gradients, the loss."""
    if results.origin.caveat:
        say(console)
        say(console, results.origin.caveat, style="bold")
    failed, findings = results.failed_allocation, results.findings
    state = results.failure.allocator if results.failure is not None else {}
    fit = fit_words(results.settings, results.origin.device_name, state.get("device"))
    is_peak = failed is not None and print_failure(failed, findings, console, top, fit=fit)
    if findings is not None:
        is_elsewhere = failed is not None and failed.in_use is not None and not is_peak
        shown = 0 if is_elsewhere else top  # two tables of modules would be taken for one another
        first = results.first_changes if failed is None else None
        why = first.much_is_saved if first is not None else ""
        print_peak(findings, console, num_steps=num_steps, top=shown, categories=not is_peak, why=why)
        for sentence in results.room:
            say(console)
            say_wrapped(console, sentence)
        if top and first is not None and first.changes:
            for section in first_changes_sections(first):
                print_section(section, console)
    if top:
        for section in host_sections(results.history.pinned_bytes):
            print_section(section, console, top=top)
    if results.timings is not None:
        print_timings(results.timings, console)
    say(console)
    print_values(results.values_read, console)
    if results.unused_parameters is not None:
        say(console, parameters_sentence(results.unused_parameters))
    if results.computed and len(results.losses) > 1:
        say(console, f"Loss: {results.losses[0]:#.5g} in the first step, {results.losses[-1]:#.5g} in the last.")


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


def print_failure(
    failed: FailedAllocation, findings: Findings | None, console: Console, top: int, *, fit: str = ""
) -> bool:
    """Print why memory ran out, what was in use then, and what to try first.

    Returns:
        Whether that was the run's peak: its modules and lines are not printed here.
    """
    in_use = failed.in_use
    is_peak = findings is not None and failed.is_at(findings.worst.peak)
    said = (failed.event.advice, *([fit] if fit else []))
    print_section(failure_section(failed.event, said=said, has_groups=in_use is None), console, top=top)
    if in_use is not None:
        print_table(categories_table(in_use, "What was in use then"), console)
    for section in first_changes_sections(failed.first):
        print_section(section, console)
    if in_use is not None and not is_peak:
        print_parts(in_use, console, top, categories=False)
    return is_peak
