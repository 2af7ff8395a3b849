"""What a run says of the phases of its program, beside the answer on its peak."""

from __future__ import annotations

from pathlib import Path

from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.exporters.files import remove, write_json
from tracer.exporters.phases import FILE_NAME, phases_json, print_phases
from tracer.exporters.screen.terminal import say, screen
from tracer.sessions.session import fault_text


def tell_phases(ledger: PhaseLedger, folder: Path, *, quiet: bool, computed: bool) -> None:
    """Print a table of each process's phases, and write phases.json; without phases an earlier file is removed."""
    if ledger.fault is not None:
        say(f"Note: Phases were followed no further: {fault_text(ledger.fault)}")
    processes = [each for each in (ledger.phases,) if each.has_phases]
    if not processes:
        remove(folder / FILE_NAME)
        return
    write_json(folder / FILE_NAME, phases_json(processes, computed=computed))
    if not quiet:
        say(f"Wrote {folder / FILE_NAME}  (open with jq, or any program)")
    with screen(is_shown=not quiet) as console:
        print_phases(processes, console)
