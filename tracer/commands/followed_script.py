"""Follows the memory of a script that its profile leaves out: of engines, phases and other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.commands.engines import tell_reports
from tracer.commands.script import Script
from tracer.engines.run import engine_reports
from tracer.exporters.files import remove, write_json
from tracer.exporters.screen.terminal import say, screen
from tracer.exporters.screen.text import say as say_on
from tracer.results.files import PHASES_JSON
from tracer.sessions.child_phases import children_followed
from tracer.sessions.folder import SessionFolder
from tracer.sessions.jobs.ranks import read_ranks, shared_sentences
from tracer.sessions.phase_reports import follow_trl, gpu_peaks, ledger_of_process, read_phases
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.session import fault_text


@contextmanager
def followed(
    script: Script, profile: ScriptProfile, save_dir: Path, *, quiet: bool, computed: bool
) -> Iterator[AbstractContextManager[None]]:
    """Within the block that memory is followed; the context that it gives prints and writes it around the answer."""
    folder = SessionFolder(save_dir)
    is_quiet = quiet or not folder.is_of_first_rank
    with engine_reports() as reports, ExitStack() as phases:
        phases.callback(follow_trl())
        phases.enter_context(children_followed())
        ledger = phases.enter_context(ledger_of_process(Path(script.path).name))

        @contextmanager
        def told() -> Iterator[None]:
            phases.close()
            tell_reports(reports, folder.path, profile.page, quiet=is_quiet, computed=computed)
            yield
            _tell_phases(ledger, reports, folder.path, quiet=is_quiet, computed=computed)
            if not is_quiet:
                _tell_ranks(folder)

        yield told()


def _tell_phases(ledger: PhaseLedger, reports: Path, folder: Path, *, quiet: bool, computed: bool) -> None:
    """Print a table of each process's phases, and write phases.json; without phases an earlier file is removed.

    Args:
        reports: Folder into which other processes of the run have written.
    """
    if ledger.fault is not None:
        say(f"Note: Phases were followed no further: {fault_text(ledger.fault)}")
    processes = [each for each in (ledger.phases, *read_phases(reports)) if each.has_phases]
    path = folder / PHASES_JSON
    if not processes:
        remove(path)
        return
    from tracer.exporters.phases import phases_json, print_phases

    peaks = gpu_peaks([ledger.phases, *processes])
    write_json(path, phases_json(processes, peaks, computed=computed))
    _tell_written(path, quiet=quiet)
    with screen(is_shown=not quiet) as console:
        print_phases(processes, peaks, console)


def _tell_written(path: Path, *, quiet: bool) -> None:
    if not quiet:
        say(f"Wrote {path}  (open with jq, or any program)")


def _tell_ranks(folder: SessionFolder) -> None:
    """Print what all ranks hold together on the screen of the first rank of several."""
    rank = folder.rank
    if rank is None or rank.job_folder is not None:
        return
    summary = read_ranks(folder.save_dir, rank.world_size, run=rank.run)
    with screen() as console:
        for sentence in shared_sentences(summary):
            say_on(console, sentence)
