"""Prints the most host memory of a run after it, and what ranks hold together; writes host.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracer.exporters.files import write_json
from tracer.exporters.host import FILE_NAME, host_json, host_row
from tracer.exporters.screen.terminal import say, screen
from tracer.exporters.screen.text import say as say_on
from tracer.sessions.folder import SessionFolder
from tracer.sessions.host_memory import host_peak
from tracer.sessions.jobs.ranks import read_ranks, shared_sentences

if TYPE_CHECKING:
    from tracer.sessions.script_run import ScriptProfile


def tell_host(profile: ScriptProfile, folder: Path, *, quiet: bool, computed: bool) -> None:
    """Print a row on the process and all that it has started, and write host.json.

    No-op where nothing was followed, or nothing was found in the script.
    """
    if profile.session is None or (peak := host_peak()) is None:
        return
    write_json(folder / FILE_NAME, host_json(peak, computed=computed))
    if not quiet:
        say(f"Wrote {folder / FILE_NAME}  (open with jq, or any program)")
    with screen(is_shown=not quiet) as console:
        say_on(console, host_row(peak))


def tell_ranks(folder: SessionFolder, *, quiet: bool) -> None:
    """Print what all ranks hold together, of GPUs and of hosts, on the screen of the first rank of several."""
    rank = folder.rank
    if rank is None or rank.job_folder is not None or not folder.is_of_first_rank:
        return
    summary = read_ranks(folder.save_dir, rank.world_size, run=rank.run)
    with screen(is_shown=not quiet) as console:
        for sentence in shared_sentences(summary):
            say_on(console, sentence)
