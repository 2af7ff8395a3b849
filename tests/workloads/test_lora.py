"""`--lora`: adapters through peft are what is trained, and one sentence for each mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.workloads.test_hf_config import LLAMA
from tracer.errors import UserModelError
from tracer.rehearsal.rehearse import rehearse
from tracer.workloads.hf_config import build_hf_workload
from tracer.workloads.user_model import StepOptions, as_workload

CPU = torch.device("cpu")


def of_module(model: nn.Module, **options: Any) -> Any:
    return as_workload(model, device=CPU, options=StepOptions(inputs=("16",), batch_size=4, **options))


def test_only_adapters_have_gradients_and_state(tmp_path: Path) -> None:
    """Rank 4 at query and value of two layers: 4 x (32 + 32) and 4 x (32 + 16) floats each, in 32 bits beside 16."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    options = StepOptions(batch_size=2, lora="4")
    workload = build_hf_workload(tmp_path, device=CPU, model_args=["dtype=bfloat16"], options=options, tokens=16)
    trained = [each for each in workload.model.parameters() if each.requires_grad]
    assert sum(each.numel() for each in trained) == 2 * (4 * 64 + 4 * 48)
    assert {each.dtype for each in trained} == {torch.float32}
    done = rehearse(workload, rules=())
    first = done.requests.step == 0
    state = 2 * 4 * sum(each.numel() for each in trained)
    assert state <= done.requests.size_bytes[first].sum() <= state + 1024


def test_checkpointed_blocks_pass_a_gradient_to_adapters(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    options = StepOptions(batch_size=2, lora="4", checkpoint=True)
    workload = build_hf_workload(tmp_path, device=CPU, model_args=[], options=options, tokens=16)
    rehearse(workload)
    assert workload.optimizer is not None
    assert len(workload.optimizer.state) == 8


@pytest.mark.parametrize(("lora", "adapted"), [("2", ["0", "1"]), ("2:1", ["1"])])
def test_any_module_can_have_them(lora: str, adapted: list[str]) -> None:
    pytest.importorskip("peft")
    workload = of_module(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(8, 2)), lora=lora)
    names = {name.split(".")[-4] for name, each in workload.model.named_parameters() if each.requires_grad}
    assert sorted(names) == adapted


@pytest.mark.parametrize(
    ("lora", "words"), [("many", "has no rank"), ("0", "has no rank"), ("2:nowhere", "makes no adapters")]
)
def test_mistakes_are_one_sentence(lora: str, words: str) -> None:
    if words != "has no rank":
        pytest.importorskip("peft")
    with pytest.raises(UserModelError, match=words):
        of_module(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 2)), lora=lora)


def test_without_peft_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserModelError, match="--lora needs peft"):
        of_module(nn.Linear(16, 2), lora="2")


def test_an_optimizer_of_the_factory_trains_other_parameters() -> None:
    model = nn.Linear(16, 2)
    with pytest.raises(UserModelError, match="--lora trains other parameters"):
        as_workload((model, torch.optim.SGD(model.parameters())), device=CPU, options=StepOptions(lora="2"))
