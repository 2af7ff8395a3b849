"""Whose file a Python frame is in: the user's, or torch's, Python's and other packages'.

The profiler shortens file names by the entries of `sys.path`; a name that is to be shown, opened or compared has to be
made whole again in the process that made the recording.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

_TORCH = Path(torch.__file__).resolve().parent
_OURS = Path(__file__).resolve().parent.parent
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


@cache
def _prefixes() -> tuple[Path, ...]:
    """Folders that the profiler cuts off, longest first.

    Source: `torch.profiler.python_tracer._prefix_regex`.
    """
    raw = [*site.getsitepackages(), *sys.path, site.getuserbase(), site.getusersitepackages(), str(_TORCH.parent)]
    absolute = {os.path.abspath(path) for path in raw if path}  # noqa: PTH100 - links are left alone, as torch does
    return tuple(Path(path) for path in sorted(absolute, reverse=True))


@cache
def _library_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in names)


@cache
def whole_path(file_name: str) -> str:
    """The file's absolute path where it can be found, else the name as recorded."""
    if file_name.startswith("<") or Path(file_name).is_absolute():
        return file_name
    for prefix in _prefixes():
        candidate = prefix / file_name
        if candidate.is_file():
            return str(candidate)
    return file_name


@cache
def is_user_code(file_name: str) -> bool:
    """Whether a recorded file name is neither torch's nor Python's nor an installed package's nor this program's."""
    if file_name.startswith("<") or not file_name:
        return False
    path = Path(whole_path(file_name))
    if not path.is_absolute():
        return False
    if _PACKAGE_FOLDERS.intersection(path.parts):
        return False
    resolved = path.resolve()
    return not any(resolved.is_relative_to(folder) for folder in (_TORCH, _OURS, *_library_folders()))
