"""The tests that need a GPU, on the null GPU: where there is no other, they run here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ON_NULL_GPU
from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.processes import run_python
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

pytestmark = [needs_null_gpu, pytest.mark.slow]
FAILING = "import pytest\n\n\n@pytest.mark.gpu\ndef test_fails() -> None:\n    raise AssertionError\n"


def run_module(*words: object) -> subprocess.CompletedProcess[str]:
    """`python -m ...` on the null GPU, in the repository's root."""
    variables = environment([H100]) | {"OMP_NUM_THREADS": "1", "NULL_GPU_KERNELS": "1"}
    return run_python("-m", *words, folder=ROOT, variables=variables, limit_s=600)


def run_gpu_tests(*files: Path) -> subprocess.CompletedProcess[str]:
    return run_module("pytest", "-m", "gpu", "-n", "0", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT, *files)


def test_every_gpu_test_passes_or_says_what_it_needs(tmp_path: Path) -> None:
    """Only files that name the mark are collected; all others would take longer to read than these to run."""
    files = [path for path in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in path.read_text(encoding="utf-8")]
    ended = run_gpu_tests(*(path for path in files if path != Path(__file__)))
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    skipped = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", ended.stdout, re.MULTILINE)
    assert set(skipped) == set(ON_NULL_GPU.values())
    (num_passed,) = re.findall(r"(\d+) passed", ended.stdout)
    assert int(num_passed) >= 12
    # One that fails is seen.
    failing = tmp_path / "test_failing.py"
    failing.write_text(FAILING, encoding="utf-8")
    assert run_gpu_tests(failing).returncode == 1
