"""The page's data without absolute paths, so that the page can be sent: who reads it need not know whose home it was.

A file below the working directory is named from there, one of somebody's home from `~`, one of an installed package
from `site-packages`. Any other path stays: nothing shorter names it. The page links lines to the folder that its reader
chooses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tracer.exporters.screen.paths import packaged_file, short_path

_PACKED = "packed"
_PYTHONS = re.compile(r"(?:/|[A-Za-z]:\\).*[/\\](lib[/\\]python3[\d.]*[/\\].+)", re.IGNORECASE)
_FRAME = re.compile(r"\(((?:/|torch/|[A-Za-z]:\\)[^()]*):(\d+)\)$")
_WHOLE = re.compile(r"(?:/|torch/|[A-Za-z]:[\\/])[^\s:()\"'<>]*(?: [^\s:()\"'<>]*)*\.\w+")
_IN_WORDS = re.compile(r"(?<![\w/.~-])(?:(?:/[^\s:()\"',;]+){2,}|[A-Za-z]:\\[^\s:()\"',;]+)")


Names = Callable[[str], str | None]  # What the project calls a file, or None for one that is not of it


def relative_paths(data: Any, names: Names = lambda path: None) -> Any:
    """JSON values of a page with every path in them as a page names it.

    Args:
        names: Names of files of the project, where more is known of it than that it lies below the working directory.
    """
    read = cache(partial(readable_text, names=names))
    return mapped(data, read)


def mapped(data: Any, change: Callable[[str], str]) -> Any:
    """JSON values with every text changed, except keys and packed columns."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {key: value if key == _PACKED else mapped(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [mapped(value, change) if isinstance(value, str | dict | list | tuple) else value for value in data]
    return data


def readable_path(path: str, names: Names = lambda path: None) -> str:
    """A file as the page names it."""
    # Torch's profiler names torch's own files so.
    packaged = path if path.startswith("torch/") else packaged_file(path)
    if packaged is not None:
        return f"site-packages/{packaged}"
    # Python's own: the folders above it are somebody's.
    match = _PYTHONS.match(path)
    return names(path) or (short_path(path) if match is None else match[1])


def readable_text(text: str, names: Names = lambda path: None) -> str:
    """A path, a frame of a stack, or a sentence, with the paths in it as the page names them."""
    if "/" not in text and "\\" not in text:
        return text
    if _WHOLE.fullmatch(text):
        return readable_path(text, names)
    if match := _FRAME.search(text):  # before words: a folder may have a space in its name
        return f"{text[: match.start()]}({readable_path(match[1], names)}:{match[2]})"

    def read(match: re.Match[str]) -> str:
        # A folder is named by no project: a command's --save-dir, say.
        return readable_path(match[0], names) if Path(match[0]).suffix else readable_path(match[0])

    return _IN_WORDS.sub(read, text)


def folders_up(page: Path, root: Path) -> int | None:
    """How many folders above a page's own one that of the sources is; None where it is elsewhere."""
    try:
        relative = os.path.relpath(root, page.resolve().parent)
    except ValueError:  # another drive
        return None
    parts = [part for part in Path(relative).parts if part != os.curdir]
    return len(parts) if all(part == os.pardir for part in parts) else None
