"""Builds the pretend accelerator's extension, once for each torch and each state of its sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCES = Path(__file__).parent / "device"
_NAME = "pretend_device"
# Little is computed here, and the compiler's time is what the tests wait for.
_FLAGS = ["-O1", "-g0", "-Wall", "-Wno-sign-compare", "-Wno-unknown-pragmas"]


def missing_tool() -> str | None:
    """What keeps the extension from being built here, or None."""
    compiler = os.environ.get("CXX", "g++")
    for tool in (compiler, "ninja"):
        if shutil.which(tool) is None and not (Path(sys.executable).parent / tool).exists():
            return f"needs {tool} to build the pretend accelerator, and there is none here"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "needs Python's headers to build the pretend accelerator, and they are not here"
    return None


def build_folder() -> Path:
    """Where what was built lies: in the user's cache, under the versions of torch and Python and what was compiled."""
    text = "".join(path.read_text() for path in sorted(SOURCES.iterdir())) + " ".join(_FLAGS)
    state = hashlib.sha256(text.encode()).hexdigest()[:12]
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch-timeline-tests"
    return root / f"torch{torch.__version__}-py{sys.version_info[0]}{sys.version_info[1]}-{state}"


@cache
def load_extension() -> Any:
    """The extension, built if it was not yet. Processes that come meanwhile wait for the first."""
    folder = build_folder()
    library, is_whole = folder / f"{_NAME}.so", folder / "is_whole"
    if is_whole.is_file():
        return _loaded(library)
    folder.mkdir(parents=True, exist_ok=True)
    found = _build(folder)
    is_whole.touch()
    return found


def _loaded(library: Path) -> Any:
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(folder: Path) -> Any:
    from torch.utils.cpp_extension import load

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return load(
        _NAME,
        [str(path) for path in sorted(SOURCES.glob("*.cpp"))],
        extra_cflags=_FLAGS,
        build_directory=str(folder),
        verbose=bool(os.environ.get("PRETEND_VERBOSE")),
    )


if __name__ == "__main__":
    load_extension()
    print(build_folder())
