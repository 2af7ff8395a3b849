"""Names of Python's calls in a trace, and whose files they are in, judged by the names alone.

The trace may be from another machine: nothing is looked for on this one.

Source:
    torch/csrc/profiler/collection.cpp (`ExtraFields<EventType::PyCall>`): `file(line): function`, `nn.Module: Class_0`;
    C functions are named as `repr` names them. The profiler cuts the entries of `sys.path` off a file's name, so that
    torch's files begin with `torch/` and Python's are names of its modules.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from tracer.capture.recording import CallKind
from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.torch_names import MODULE_CALL

_MODULE_PREFIX: Final = "nn.Module: "
_FUNCTION = re.compile(r"^(.*)\((-?\d{1,9})\): (.*)$", re.DOTALL)
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})

_PACKAGE: Final = Path(__file__).resolve().parents[1]

Place = tuple[str, int, str]
"""File, line and function."""


class Called(NamedTuple):
    """What a call runs: a function with the line of its `def`, a module by torch's name of it, or a C function."""

    kind: CallKind
    function: Place | None
    module: str | None


def called(name: str) -> Called:
    """What the event of a call says that it runs."""
    if name.startswith(_MODULE_PREFIX):
        return Called(CallKind.MODULE, (MODULE_CALL[0], 0, MODULE_CALL[1]), name.removeprefix(_MODULE_PREFIX))
    match = None if name.startswith("<built-in ") else _FUNCTION.match(name)
    if match is None:
        return Called(CallKind.C_FUNCTION, None, None)
    return Called(CallKind.PYTHON, (match[1], int(match[2]), match[3]), None)


def line_of(called_from: str) -> tuple[str, int] | None:
    """File and line of `train.py:13`."""
    file, _, line = called_from.rpartition(":")
    return (file, int(line)) if file and line.isdecimal() and len(line) < 10 else None


def is_users(file: str) -> bool:
    """Whether a file is neither torch's, nor Python's own, nor in a folder of packages, nor generated."""
    if not file or file.startswith("<") or is_generated(file) or is_ours(file):
        return False
    path = PurePosixPath(file.replace("\\", "/"))
    first = path.parts[0] if path.parts else ""
    if path.is_absolute() or ":" in first:
        return not _PACKAGE_FOLDERS.intersection(path.parts) and not _is_pythons(path)
    return first not in ("torch", "triton") and first.removesuffix(".py") not in sys.stdlib_module_names


def is_ours(file: str) -> bool:
    """Whether a file is this program's, which the traces of its own runs name: asked of its own folder alone."""
    path = PurePosixPath(file)
    return path.parts[:1] == (_PACKAGE.name,) and ".." not in path.parts and (_PACKAGE.parent / path).is_file()


def _is_pythons(path: PurePosixPath) -> bool:
    """Whether a path has a folder such as `lib/python3.11` in it."""
    return any(re.fullmatch(r"python3\.\d+", part) is not None for part in path.parts)
