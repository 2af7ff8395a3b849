"""`torch-timeline report`: the files of a run again, from its kept recording."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.browser import Open, opened, pages_of
from tracer.commands.common import errors_for_people, say_all
from tracer.commands.options import option
from tracer.commands.run_options import NUM_ROWS, Quiet, Top
from tracer.commands.usage import OUTPUTS
from tracer.errors import RecordingError, UsageError
from tracer.exporters.screen.next_commands import after_run, command_line
from tracer.exporters.screen.terminal import screen
from tracer.results.files import RECORDING

if TYPE_CHECKING:
    from rich.console import Console

    from tracer.results.run_results import RunResults

_SNAPSHOTS = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")


def report(
    recording: Annotated[Path, typer.Argument(help="A --save-dir with a recording.npz, or that file.")],
    save_dir: Annotated[
        Path | None, option("Folder for the files; by default the recording's.", OUTPUTS, metavar="<path>")
    ] = None,
    only: Annotated[
        list[str],
        option("Write only this output: peak-json, memory-report, ... Repeatable.", OUTPUTS, metavar="<name>"),
    ] = [],  # noqa: B006
    open_: Open = False,
    top: Top = NUM_ROWS,
    quiet: Quiet = False,
) -> None:
    """Write any output of a run again from its kept recording, also elsewhere and with a later version."""
    with errors_for_people():
        file = recording_path(recording)
        folder = save_dir or file.parent
        with opened(pages_of(folder), is_wanted=open_), screen(is_shown=not quiet) as console:
            succeeded = _written_again(file, folder, only, console, top=top, quiet=quiet)
        say_all(after_run(folder, [path.name for path in folder.iterdir()]) if not quiet else ())
    if not succeeded:
        raise typer.Exit(1)


def _written_again(file: Path, folder: Path, only: Collection[str], console: Console, *, top: int, quiet: bool) -> bool:
    """Write the files of a run, then the answer on a console; False if a file could not be written."""
    from tracer.exporters.files import check_folder
    from tracer.exporters.recording_file.kept_run_file import load_kept_run
    from tracer.exporters.screen.run import print_results
    from tracer.sessions.output_files import write_and_say
    from tracer.sessions.stored_results import results_of

    _check_names(only)
    check_folder(folder)
    kept_run = load_kept_run(file)
    results = results_of(kept_run)
    unwanted = _unwanted(only, results)
    if not quiet:
        say_all([*(f"Of that run: {line}" for line in kept_run.failure), *(f"Note: {note}" for note in results.notes)])
    succeeded = write_and_say(results, folder, quiet=quiet, leave_out=unwanted)
    # A script goes on behind the steps that were recorded.
    print_results(results, console, top=top, num_steps=None if "script" in results.settings else results.num_steps)
    return succeeded


def _check_names(only: Collection[str]) -> None:
    from tracer.sessions.output_files import OUTPUTS

    names = [output.name for output in OUTPUTS if output.file is not RECORDING]
    for name in only:
        if name not in names:
            raise UsageError(f"There is no output {name}.", hint=f"Name one of {', '.join(names)}.")


def _unwanted(only: Collection[str], results: RunResults) -> Collection[str]:
    """The outputs to leave out; one that is wanted and cannot be made of the results is refused."""
    from tracer.sessions.output_files import OUTPUTS

    if not only:
        return ()
    for output in OUTPUTS:
        if output.name in only and not output.needs(results):
            raise RecordingError(
                f"The recording has nothing for {output.file_name}.",
                hint="What the run itself left out, such as the timing pass, cannot be made afterwards.",
            )
    return [output.name for output in OUTPUTS if output.name not in only]


def recording_path(path: Path) -> Path:
    """The recording itself, or the one in a folder."""
    file = path / RECORDING.file_name if path.is_dir() else path
    if not file.is_file():
        raise RecordingError(
            f"There is no {file}.", hint="Profile with --keep-recording, and name the --save-dir (of one rank)."
        )
    if file.name.endswith(_SNAPSHOTS):
        raise RecordingError(
            f"{file} is an allocator snapshot by its name, not a kept recording.",
            hint=f"{command_line('snapshot', file)} explains it.",
        )
    return file
