"""Prints memory by phase after a run, and writes phases.json."""

from __future__ import annotations

from pathlib import Path

from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.exporters.files import remove, write_json
from tracer.exporters.phases import FILE_NAME, phases_json, print_phases
from tracer.exporters.screen.terminal import say, screen
from tracer.sessions.phase_reports import gpu_peaks, read_phases
from tracer.sessions.session import fault_text


def tell_phases(ledger: PhaseLedger, reports: Path, folder: Path, *, quiet: bool, computed: bool) -> None:
    """Print a table of each process's phases, and write phases.json; without phases an earlier file is removed.

    Args:
        reports: Folder into which other processes of the run have written.
    """
    if ledger.fault is not None:
        say(f"Note: Phases were followed no further: {fault_text(ledger.fault)}")
    processes = [each for each in (ledger.phases, *read_phases(reports)) if each.has_phases]
    if not processes:
        remove(folder / FILE_NAME)
        return
    peaks = gpu_peaks([ledger.phases, *processes])
    write_json(folder / FILE_NAME, phases_json(processes, peaks, computed=computed))
    if not quiet:
        say(f"Wrote {folder / FILE_NAME}  (open with jq, or any program)")
    with screen(is_shown=not quiet) as console:
        print_phases(processes, peaks, console)
