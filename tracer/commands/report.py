"""`torch-timeline report`: the files of a run again, from its kept recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracer.answers.files import RECORDING
from tracer.commands.common import errors_for_people, say_all
from tracer.commands.options import Full, option
from tracer.errors import RecordingError
from tracer.exporters.screen.next_commands import after_run, command_line
from tracer.exporters.screen.terminal import screen

_SNAPSHOTS = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")


def report(
    recording: Annotated[Path, typer.Argument(help="A --save-dir with a recording.npz, or that file.")],
    save_dir: Annotated[Path | None, option("Folder; by default the recording's.", metavar="<path>")] = None,
    full: Full = False,
) -> None:
    """Write the files of a kept recording again.

    This also works on another machine, and with a later version.

    torch-timeline report profile --save-dir elsewhere
    """
    with errors_for_people():
        file = recording_path(recording)
        folder = save_dir or file.parent
        from tracer.exporters.files import check_folder
        from tracer.exporters.recording_file.kept_run_file import load_kept_run
        from tracer.exporters.screen.answer import print_answer
        from tracer.sessions.output_files import write_and_say
        from tracer.sessions.stored_results import results_of

        check_folder(folder)
        kept_run = load_kept_run(file)
        results = results_of(kept_run)
        say_all(f"Of that run: {line}" for line in kept_run.failure)
        succeeded = write_and_say(results, folder)
        last = after_run(folder, sorted(path.name for path in folder.iterdir()), is_full=full)
        with screen() as console:
            print_answer(results.answer, console, full=full, last=last)
        say_all(last)
    if not succeeded:
        raise typer.Exit(1)


def recording_path(path: Path) -> Path:
    """Return the recording itself, or the one in a folder."""
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
