"""Cells of a notebook, which IPython compiles as files that nobody has: `/tmp/ipykernel_123/456.py`.

IPython itself says which input it compiled under which name, and torch's profiler, frames and tracebacks have the name.
Without a running IPython nothing is a cell.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_LOOKS_LIKE_ONE = re.compile(r"^<ipython-input-|ipykernel_\d+[/\\]\w+\.py$")
_NUMBER = re.compile(r"\d+")
_CELL = re.compile(r"cell \d+")
_files: dict[str, str] = {}


def cell_name(file: str) -> str | None:
    """`cell 3` for the file of the third input; None for any other file, and where IPython does not know the number.

    A cell that is run again is another input. One that is run again unchanged has the file of the first time, and the
    number of the last.
    """
    if not _LOOKS_LIKE_ONE.search(file):
        return None
    shell = running_shell()
    if shell is None or not hasattr(shell.compile, "format_code_name"):
        return None
    named = shell.compile.format_code_name(file)  # ("Cell", "In[3]"), as its tracebacks say
    number = _NUMBER.search(named[1]) if named is not None else None
    if number is None or not int(number[0]):
        return None
    name = f"cell {number[0]}"
    _files[name] = file
    return name


def is_cell(file: str) -> bool:
    """Whether a name is `cell_name`'s."""
    return _CELL.fullmatch(file) is not None


def file_of_cell(name: str) -> str:
    """The file under which IPython compiled a cell; any other name is its own."""
    return _files.get(name, name)


def running_shell() -> Any:
    """The running IPython, which is not imported for it."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
