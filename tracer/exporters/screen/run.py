"""Results of a run on a console: one order for the command line and for a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tracer.analysis.profiles.eager_comparison import eager_sentences
from tracer.changes.recommendation import UnneededMemory
from tracer.changes.unneeded import large, unneeded_memory, unneeded_sentence
from tracer.exporters.screen.advice import print_advice, print_unneeded
from tracer.exporters.screen.allocator import print_first_changes
from tracer.exporters.screen.diff import print_against_eager
from tracer.exporters.screen.failure import print_failure
from tracer.exporters.screen.next_commands import after_run, fit_words
from tracer.exporters.screen.paths import short_path
from tracer.exporters.screen.profile import (
    NUM_ROWS,
    parameters_sentence,
    print_peak,
    print_timings,
    short_screen,
)
from tracer.exporters.screen.snapshot import ran_out_at
from tracer.exporters.screen.text import say
from tracer.exporters.screen.values import print_values, values_sentences
from tracer.results.run_results import RunResults
from tracer.units import some


def short_lines(results: RunResults, folder: Path, written: Sequence[str]) -> tuple[str, ...]:
    """The answer in a few lines."""
    failed = results.failed_allocation
    lines = [results.origin.caveat] * bool(results.origin.caveat)
    lines += [f"{ran_out_at(failed.event.site)}: {failed.event.advice}"] if failed is not None else []
    if results.findings is not None:
        lines += short_screen(results.findings, results.num_steps)
        peak_bytes = results.findings.worst.peak.peak_bytes
        lines += (unneeded_sentence(unneeded, peak_bytes, file_name=short_path) for unneeded in _large(results))
    lines += values_sentences(results.values_read) if results.values_read is not None else ()
    if written:
        lines.append(f"{some(len(written), 'file')} in {folder}: {', '.join(written)}.")
    return (*lines, *after_run(folder, written))


def _large(results: RunResults) -> tuple[UnneededMemory, ...]:
    """What nobody needs and is a good part of the peak."""
    if results.findings is None:
        return ()
    return large(unneeded_memory(results.waste, device=results.findings.device), results.findings.worst.peak.peak_bytes)


def print_results(results: RunResults, console: Console, *, top: int = NUM_ROWS, num_steps: int | None = None) -> None:
    """Print what the results have: what ran out of memory, the peak, the times, the gradients, the loss."""
    if results.origin.caveat:
        say(console)
        say(console, results.origin.caveat, style="bold")
    failed, findings = results.failed_allocation, results.findings
    is_peak = failed is not None and print_failure(failed, findings, console, top, fit=_fit(results))
    if findings is not None:
        is_elsewhere = failed is not None and failed.in_use is not None and not is_peak
        shown = 0 if is_elsewhere else top  # two tables of modules would be taken for one another
        first = results.first_changes if failed is None else None
        why = first.much_is_saved if first is not None else ""
        print_peak(findings, console, num_steps=num_steps, top=shown, categories=not is_peak, why=why)
        if top and first is not None and first.changes:
            print_first_changes(first, console)
    if (diff := results.against_eager) is not None:
        print_against_eager(diff, eager_sentences(diff), console, top=top)
    if results.advice is not None:
        print_advice(results.advice, console)
    elif results.findings is not None:
        print_unneeded(_large(results), results.findings.worst.peak.peak_bytes, console)
    if results.timings is not None:
        print_timings(results.timings, console)
    say(console)
    print_values(results.values_read, console)
    if results.unused_parameters is not None:
        say(console, parameters_sentence(results.unused_parameters))
    if results.computed and len(results.losses) > 1:
        say(console, f"Loss: {results.losses[0]:#.5g} in the first step, {results.losses[-1]:#.5g} in the last.")


def _fit(results: RunResults) -> str:
    """How to ask for the least change with which a run's script fits."""
    state = results.failure.allocator if results.failure is not None else {}
    return fit_words(results.settings, results.origin.device_name, state.get("device"))
