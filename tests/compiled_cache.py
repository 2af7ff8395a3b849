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

from tracer.user_cache import make_private, user_cache


def cache_folder() -> Path:
    """The tests' own, which the user alone writes in, beside that of builds: a home may be missing or only to read."""
    builds = user_cache()
    return builds.with_name(f"{builds.name}-tests")


def share_compiled() -> None:
    """For every process that is started from now on, workers of pytest-xdist among them."""
    folder = cache_folder()
    make_private(folder)
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
