"""Files as the screen names them: short where what is left out says nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tracer.capture.sources.source_files import is_cell
from tracer.capture.sources.source_line import SourceLine
from tracer.working_folder import working_folder

_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_HOME = re.compile(r"^(?:/home/[\w.@-]+|/Users/[\w.@-]+|/root|[A-Za-z]:\\Users\\[\w. -]+)(?=[/\\])")


def short_path(path: str) -> str:
    """A path without the folder of installed packages, relative to the working directory, or from somebody's home.

    A recording may be of another machine: any user's home is `~`.
    """
    if (packaged := packaged_file(path)) is not None:
        return packaged
    try:
        folder = working_folder()
        relative = os.path.relpath(folder / path, folder)
    except ValueError:  # another drive
        relative = ".."
    if Path(path).is_absolute() and not relative.startswith(".."):
        return Path(relative).as_posix()
    return _HOME.sub("~", path)


def packaged_file(path: str) -> str | None:
    """The part of a path that lies below a folder of installed packages; None for any other file."""
    match = _PACKAGES.match(path)
    return None if match is None else path[match.end() :]


def source_place(file: str, line: int | None) -> str:
    """A line of source: `train.py:14`, in a notebook `cell 3, line 14`."""
    if is_cell(file) and line is not None:
        return f"{file}, line {line}"
    return short_path(file) if line is None else f"{short_path(file)}:{line}"


def whole_place(file: str, line: int | None) -> str:
    """A line of source with its whole path, for documents: `/home/me/train.py:14`; `shorten_paths` is for people."""
    return source_place(file, line) if is_cell(file) or line is None else f"{file}:{line}"


def behind(line: SourceLine | None) -> str:
    """File and line, to be put behind a sentence."""
    return f" ({source_place(line.file, line.line)})" if line is not None else ""


_IN_SENTENCE = re.compile(r"(?:/[^\s:()]+){2,}")


def shorten_paths(sentence: str) -> str:
    """A sentence with its paths as `short_path` writes them."""
    return _IN_SENTENCE.sub(lambda match: short_path(match[0]), sentence)
