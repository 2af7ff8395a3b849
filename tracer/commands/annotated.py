"""The file that `--annotate` names, among those of a recording."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from tracer.errors import RecordingError
from tracer.working_folder import working_folder

_MOST_FILES = 8  # Named in an error


def file_named(wanted: Path, files: Sequence[str]) -> str:
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
