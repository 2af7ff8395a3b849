"""New tokens of a step of vLLM's newer runner, counted without the kernel that counts them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from tracer.null_gpu.engine_tokens import count_new_tokens


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
