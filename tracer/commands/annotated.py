"""`--annotate` of `report` and of `snapshot`: one source file with the bytes that its lines allocated."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated

from tracer.commands.common import snapshot_path
from tracer.commands.options import option
from tracer.commands.usage import OUTPUTS
from tracer.errors import RecordingError, SnapshotError
from tracer.exporters.screen.terminal import say, screen
from tracer.working_folder import working_folder

_MOST_FILES = 8  # Named in an error

Annotate = Annotated[
    Path | None,
    option("Only print this source file, with the bytes that its lines allocated.", OUTPUTS, metavar="<file>"),
]


def annotate_recording(recording: Path, wanted: Path) -> None:
    """Print a file that the recording names, with the bytes of its lines."""
    from tracer.analysis.profiles.line_memory import line_memory
    from tracer.exporters.annotated_source import annotate, has_changed, print_annotated
    from tracer.exporters.recording_file.kept_run_file import load_kept_run
    from tracer.sessions.stored_results import results_of

    results = results_of(load_kept_run(recording))
    if results.findings is None:
        raise RecordingError("The recording has no memory to annotate with.", hint="Record a whole step.")
    cycle = results.findings.worst
    memory = line_memory(cycle, results.known)
    name = _file_named(wanted, tuple(dict.fromkeys(one.at.file for one in memory)))
    text = results.source_of(name)
    with screen() as console:
        file = annotate(name, [one for one in memory if one.at.file == name], text)
        print_annotated(file, cycle.peak.peak_bytes, console)
    if text is not None and has_changed(name, text):
        say(f"Note: {name} has changed since; what is printed is what ran.")


def annotate_snapshot(path: Path, wanted: Path, index: int | None) -> None:
    """Print a source file as it lies here, with the bytes that its lines allocated on the worst device."""
    from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
    from tracer.analysis.snapshots.line_memory import files_of, line_memory
    from tracer.exporters.annotated_source import annotate, print_annotated, text_on_disk
    from tracer.snapshot.load import load_snapshot

    snapshot = load_snapshot(snapshot_path(path))
    name = _file_named(wanted, files_of(snapshot.stacks))
    replayed = replay_snapshot(snapshot, device=index)
    finding = explain_replayed(replayed)
    if (shown := finding.worst) is None:
        raise SnapshotError(f"{path} has no device with memory to annotate with.")
    memory, text = line_memory(replayed.devices[shown], name), text_on_disk(working_folder() / wanted)
    file = annotate(name, memory, text, missing="Its source is not here: name the path of the file.")
    with screen() as console:
        print_annotated(file, finding.devices[shown].peak.requested_bytes, console)
    if text is not None:
        say(f"Note: the source is {wanted} as it is here now; the snapshot has the lines of {name}.")


def _file_named(wanted: Path, files: Sequence[str]) -> str:
    """Return the recorded file of this path, or the one that has most of its end in common.

    Raises:
        RecordingError: No file has this name, or several have as much in common.
    """
    path = os.path.normpath(working_folder() / wanted)
    common = {file: _num_common(file, path) for file in files}
    most = max(common.values(), default=0)
    found = [file for file, number in common.items() if number == most > 0]
    if len(found) == 1:
        return found[0]
    which = "Several files of the recording end" if found else "No line of the recording is"
    known = ", ".join(sorted(found or [_parts(file)[-1] for file in files[:_MOST_FILES]]))
    raise RecordingError(f"{which} in {wanted}.", hint=f"Name one of {known}.")


def _num_common(file: str, other: str) -> int:
    """The number of parts that two paths have in common from their ends; both separators count on any machine."""
    pairs = zip(reversed(_parts(file)), reversed(_parts(other)), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _parts(path: str) -> list[str]:
    return re.split(r"[/\\]", path)
