"""Prints the most host memory of a run after it, and writes host.json."""

from __future__ import annotations

from pathlib import Path

from tracer.exporters.files import write_json
from tracer.exporters.host import FILE_NAME, host_json, host_row
from tracer.exporters.screen.terminal import say, screen
from tracer.exporters.screen.text import say as say_on
from tracer.sessions.host_memory import host_peak


def tell_host(folder: Path, *, quiet: bool, computed: bool) -> None:
    """Print a row on the process and all that it has started, and write host.json; no-op where nothing was followed."""
    if (peak := host_peak()) is None:
        return
    write_json(folder / FILE_NAME, host_json(peak, computed=computed))
    if not quiet:
        say(f"Wrote {folder / FILE_NAME}  (open with jq, or any program)")
    with screen(is_shown=not quiet) as console:
        say_on(console, host_row(peak))
