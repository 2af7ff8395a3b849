"""Bytecode of a test run, where the environment forbids to write any beside the sources.

Many tests start processes of their own, and each would compile torch's Python code again: half of their time. A folder
of this run holds it for all of them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

_folders: list[str] = []


def share_bytecode() -> None:
    """For every process that is started from now on, workers of pytest-xdist among them."""
    if sys.dont_write_bytecode:
        folder = tempfile.mkdtemp(prefix="bytecode-")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
        sys.dont_write_bytecode = False
        _folders.append(folder)


def remove_bytecode() -> None:
    """By the process that began it alone."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
