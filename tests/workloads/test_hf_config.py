"""`--hf-config`: a transformers model from its configuration, on the meta device, and one sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracer.errors import UserModelError
from tracer.workloads.hf_config import build_hf_workload
from tracer.workloads.step_options import StepOptions
from tracer.workloads.user_model import as_workload

CPU = torch.device("cpu")
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1,
    "n_embd": 16,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 32,
}


def built(tmp_path: Path, config: Any, *arguments: str, tokens: int | None = None, **options: Any) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    step = StepOptions(batch_size=2, **options)
    return build_hf_workload(tmp_path, device=CPU, model_args=arguments, options=step, tokens=tokens)


def test_a_configuration_is_trained_without_memory(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    workload = built(tmp_path, GPT2, "n_layer=2", "dtype=bfloat16")
    assert {each.device.type for each in workload.model.parameters()} == {"meta"}
    assert {each.dtype for each in workload.model.parameters()} == {torch.bfloat16}
    assert len(workload.model.transformer.h) == 2
    _, inputs = workload.next_batch()
    assert {name: tuple(each.shape) for name, each in inputs.items()} == {"input_ids": (2, 8), "labels": (2, 8)}


def test_inference_needs_no_labels(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _, inputs = built(tmp_path, GPT2, inference=True).next_batch()
    assert list(inputs) == ["input_ids"]


@pytest.mark.parametrize(
    ("config", "words"), [({"n_layer": 1}, "no configuration of a transformers model"), ({"model_type": "no"}, "no no")]
)
def test_mistakes_are_one_sentence(tmp_path: Path, config: Any, words: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserModelError, match=words):
        built(tmp_path, config)


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 96,
}


def test_samples_have_as_many_tokens_as_are_said(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _, inputs = built(tmp_path, LLAMA, tokens=24).next_batch()
    assert {name: tuple(each.shape) for name, each in inputs.items()} == {"input_ids": (2, 24), "labels": (2, 24)}


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        (65, {}, "more than the 64 positions"),
        (0, {}, "too few"),
        (8, {"inference": True}, "too few"),
        (16, {"inputs": ("input_ids=8:int64",)}, "--input both"),
        (16, {"inference": True, "checkpoint": True}, "no backward"),
    ],
)
def test_numbers_of_tokens_that_cannot_be(tmp_path: Path, tokens: int, options: Any, words: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserModelError, match=words):
        built(tmp_path, LLAMA, tokens=tokens, **options)


def test_a_model_on_the_meta_device_is_taken_where_it_needs_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(8, 2)
    options = StepOptions(inputs=("8",), batch_size=4)
    with pytest.raises(UserModelError, match="meta device"):
        as_workload(model, device=CPU, options=options)
    assert as_workload(model, device=CPU, options=options, without_memory=True).model is model
