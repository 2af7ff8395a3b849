"""Programs on a null GPU, in a process of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.processes import run_python
from tracer.errors import NullGpuError
from tracer.null_gpu.build import find_toolchain, library, read_torch, torch_folder
from tracer.null_gpu.cards import H100, Card
from tracer.null_gpu.process import environment

ROOT = Path(__file__).resolve().parent.parent.parent


@cache
def reason_to_skip() -> str:
    """Why no null GPU can be built here, or the empty string."""
    try:
        find_toolchain(read_torch(torch_folder()))
    except NullGpuError as error:
        return str(error)
    return ""


needs_null_gpu = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "it is here")


def called(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of this program, in a folder."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return run_python(ROOT / "main.py", *arguments, folder=folder, variables=variables, limit_s=500)


def null_gpu_library() -> Path:
    """The library for the torch that runs the tests."""
    return library(torch_folder())


def run_program(
    *names: str,
    cards: Sequence[Card] = (H100,),
    variables: Mapping[str, str] = MappingProxyType({}),
    module: str = "programs",
) -> subprocess.CompletedProcess[str]:
    """Functions of a module of this folder, one after the other in one process on the null GPU.

    The process works in an empty folder: `python -m` looks there first, and a file `tests.py` of the shared temporary
    folder would hide the package of tests.
    """
    found = environment(cards) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    with tempfile.TemporaryDirectory() as place:
        if "backend:" in variables.get("PYTORCH_CUDA_ALLOC_CONF", ""):  # torch reads it when it is loaded
            command = [sys.executable, "-m", f"tests.null_gpu.{module}", *names]
            return subprocess.run(
                command, cwd=place, env=found, capture_output=True, text=True, timeout=600, check=False
            )
        return run_python("-m", f"tests.null_gpu.{module}", *names, folder=Path(place), variables=found, limit_s=600)


def programs_in(file: str, *, but: Sequence[str] = ()) -> list[str]:
    """Names of a file's public functions without arguments, each of which is a program, in their order."""
    found = re.findall(r"^def ([a-z]\w*)\(\) -> None:", Path(__file__).with_name(file).read_text("utf-8"), re.MULTILINE)
    assert set(but) <= set(found)
    return [name for name in found if name not in but]


def assert_well(ended: subprocess.CompletedProcess[str], *names: str) -> None:
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.split() == list(names)
