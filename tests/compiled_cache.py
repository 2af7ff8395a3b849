"""What a test run compiles and the next one finds again: bytecode, and what torch.compile made, in the user's cache.

Many tests start processes of their own. Where the environment forbids to write bytecode beside the sources, each would
compile torch's Python code again: half of their time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """The tests' own, which the user alone writes in."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "torch-timeline-tests"


def share_compiled() -> None:
    """For every process that is started from now on, workers of pytest-xdist among them."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder / "bytecode")
        sys.dont_write_bytecode = False


def forget_temporary_sources() -> None:
    """Remove the bytecode of programs that tests wrote into temporary folders."""
    of_temporary = cache_folder() / "bytecode" / tempfile.gettempdir().lstrip("/")
    for folder in (*of_temporary.glob("pytest-of-*"), *of_temporary.glob("tmp*")):  # beside a checkout's, for one
        shutil.rmtree(folder, ignore_errors=True)
