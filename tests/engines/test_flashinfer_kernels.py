"""FlashInfer's sampler without its kernels; its other kernels are built as ever."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from tracer.engines.vllm_changes import leave_out_sampling_kernels
from tracer.null_gpu.process import LEFT_OUT_VARIABLE, SAMPLER_VARIABLE

_CORE = """
class JitSpec:
    def __init__(self, name):
        self.name = name
    def build_and_load(self, verbose=False):
        return f"built {self.name}"
"""


def test_the_sampler_alone_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flashinfer" / "jit").mkdir(parents=True)
    (tmp_path / "flashinfer" / "jit" / "core.py").write_text(_CORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    leave_out_sampling_kernels()
    specs = importlib.import_module("flashinfer.jit.core").JitSpec
    assert specs("norm").build_and_load(verbose=True) == "built norm"
    assert specs("sampling").build_and_load().softmax(1, enable_pdl=True) is None
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_the_user_says_of_the_sampler_stays(monkeypatch: pytest.MonkeyPatch, is_ours: bool) -> None:
    monkeypatch.setenv(SAMPLER_VARIABLE, "0")
    if is_ours:
        monkeypatch.setenv(LEFT_OUT_VARIABLE, "1")
    leave_out_sampling_kernels()
    assert (SAMPLER_VARIABLE in os.environ) is not is_ours and LEFT_OUT_VARIABLE not in os.environ
