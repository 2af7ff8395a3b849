"""What a run brought to light, on a console: one order for the command line and for somebody's own loop."""

from __future__ import annotations

from rich.console import Console

from tracer.exporters.screen import parameters_sentence, peak_screen, timing_screen
from tracer.exporters.snapshot_screen import print_failed_allocation
from tracer.runs.results import RunResults


def print_results(results: RunResults, console: Console) -> None:
    """Print what the results have: what ran out of memory, the peak, the times, the gradients, the loss."""
    if results.failed_allocation is not None:
        print_failed_allocation(results.failed_allocation, console)
    if results.findings is not None:
        console.print(peak_screen(results.findings))
    if results.timings is not None:
        console.print(timing_screen(results.timings))
    console.print()
    if results.unused_parameters is not None:
        console.print(parameters_sentence(results.unused_parameters))
    if len(results.losses) > 1:
        console.print(f"Loss: {results.losses[0]:.5g} in the first step, {results.losses[-1]:.5g} in the last.")
