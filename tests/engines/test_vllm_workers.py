"""vLLM on the null GPU: tokens that no kernel counts, no queues, FlashInfer's sampler without its kernels."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from tracer.engines.vllm_workers import count_new_tokens, leave_out_sampling_kernels, leave_out_warm_up
from tracer.null_gpu.job.lone_rank import without_vllm_queues
from tracer.null_gpu.process import LEFT_OUT_VARIABLE, SAMPLER_VARIABLE


class _Runner:
    def sample(self, hidden_states: Any, batch: Any, grammar: None) -> tuple[str, torch.Tensor, torch.Tensor]:
        return "output", torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)


class _Output:
    def __init__(self, num_sampled: torch.Tensor) -> None:
        self.num_sampled_tokens, self.num_sampled_tokens_np = num_sampled, num_sampled.numpy()

    def get_output(self) -> list[int]:
        return self.num_sampled_tokens_np.tolist()


def test_requests_get_a_token_unless_more_of_their_prompt_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(GPUModelRunner=_Runner, AsyncOutput=_Output)
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.model_runner", module)
    monkeypatch.setattr(_Runner, "sample", _Runner.sample)
    monkeypatch.setattr(_Output, "get_output", _Output.get_output)
    count_new_tokens()
    batch = SimpleNamespace(
        num_computed_prefill_tokens_np=numpy.array([0, 0, 512]),
        num_scheduled_tokens=numpy.array([512, 2048, 1]),
        prefill_len_np=numpy.array([512, 4000, 512]),
    )
    output, num_sampled, _ = _Runner().sample(None, batch, None)
    assert output == "output" and _Output(num_sampled).get_output() == [1, 0, 1]
    assert _Output(torch.ones(2, dtype=torch.int32)).get_output() == [1, 1]  # not of a step: a warm-up


@pytest.mark.parametrize("given", ["full", None])
def test_deep_gemm_is_not_warmed_up_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.setenv("VLLM_DEEP_GEMM_WARMUP", given or "")
    if given is None:
        monkeypatch.delenv("VLLM_DEEP_GEMM_WARMUP")
    leave_out_warm_up()
    assert os.environ["VLLM_DEEP_GEMM_WARMUP"] == (given or "skip")


class _Queue:
    @staticmethod
    def create_from_process_group(group: str, num_bytes: int) -> str:
        return f"waits for the readers in {group}"


def test_no_reader_of_a_queue_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(MessageQueue=_Queue)
    monkeypatch.setitem(sys.modules, "vllm.distributed.device_communicators.shm_broadcast", module)
    monkeypatch.setattr(_Queue, "create_from_process_group", staticmethod(_Queue.create_from_process_group))
    without_vllm_queues()
    assert _Queue.create_from_process_group("tensor parallel", 1) is None


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
