"""Attention without scores and losses without logits: the same numbers, with the memory that the lines say."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.changes.test_changes import losses_and_parameters
from tracer.changes.change import Change
from tracer.changes.kinds import attention, loss_in_chunks
from tracer.changes.planner import _Trials, applied
from tracer.workloads.module_steps import ModuleWorkload

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the package transformers")
_TOKENS, _WIDTH = 256, 64


class _Attention(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.pairs, self.out = way, nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.pairs(x).chunk(3, -1))
        later = torch.ones(_TOKENS, _TOKENS, dtype=torch.bool, device=x.device).triu(1)
        if self.way == "filled":
            scores = (query @ key.transpose(-2, -1) / 4.0).masked_fill(later, float("-inf"))
        elif self.way == "added":
            hidden = torch.zeros(_TOKENS, _TOKENS, device=x.device).masked_fill(later, float("-inf"))
            scores = torch.matmul(query, key.transpose(-2, -1)) * 0.25 + hidden
        else:
            scores = query @ key.transpose(-2, -1)
        shares = F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
        if self.way == "read":
            shares = shares.clamp(max=0.5)
        y: Tensor = self.out((shares @ value).transpose(1, 2).flatten(2))
        return x + y


def naive(way: str) -> ModuleWorkload:
    torch.manual_seed(0)
    return _workload(nn.Sequential(*(_Attention(way) for _ in range(3))), ((torch.rand(2, _TOKENS, _WIDTH),), {}))


def language_model() -> ModuleWorkload:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(  # type: ignore[call-arg]
        n_layer=1, n_embd=32, n_head=2, vocab_size=8192, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokens = torch.arange(4 * 64).view(4, 64) * 7 % 8192
    return _workload(GPT2LMHeadModel(config), ((), {"input_ids": tokens, "labels": tokens}))


def _workload(model: nn.Module, batch: tuple[tuple[Tensor, ...], dict[str, Tensor]]) -> ModuleWorkload:
    return ModuleWorkload(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        next_batch=lambda: batch,
        device=torch.device("cpu"),
        loss=lambda output: output.loss if hasattr(output, "loss") else output.square().mean(),
    )


@pytest.mark.parametrize("way", ["plain", "filled", "added"])
def test_naive_attention_is_found_and_fused_with_the_same_numbers(way: str) -> None:
    """The scores alone are 2 * 4 * 256 * 256 floats in each of three modules: 6 MiB."""
    trials = _Trials(lambda: naive(way), "cuda", {})
    (change,) = attention.candidates(trials.situation)
    found = trials.outcome((change,))
    assert found is not None and found.saved_bytes > 6 << 20
    losses, parameters = losses_and_parameters(naive(way))
    changed_losses, changed = losses_and_parameters(applied(naive(way), (change,)))
    assert changed_losses == pytest.approx(losses, rel=1e-4)
    assert all(torch.allclose(parameters[key], changed[key], atol=1e-5) for key in parameters)


def test_attention_whose_weights_are_used_otherwise_stays_as_it_is() -> None:
    change = next(attention.candidates(_Trials(lambda: naive("filled"), "cuda", {}).situation))
    expected = losses_and_parameters(naive("read"))[0]
    assert losses_and_parameters(applied(naive("read"), (change,)))[0] == expected


def test_a_model_that_computes_its_loss_is_told_to_do_so_without_all_logits() -> None:
    """4 * 63 rows of 8192 logits: with the softmax, its gradient and a copy more than half of the peak."""
    trials = _Trials(language_model, "cuda", {})
    changes = [*loss_in_chunks.candidates(trials.situation), *attention.candidates(trials.situation)]
    names = {change.family for change in changes}
    assert "model loss" in names
    losses = losses_and_parameters(language_model())[0]
    for change in changes:
        found = trials.outcome((change,))
        assert found is not None, trials.not_tried
        if change.family == "model loss":
            assert found.saved_bytes > 0.3 * trials.base.peak_bytes, change.name
        assert losses_and_parameters(applied(language_model(), (change,)))[0] == pytest.approx(losses, rel=1e-4)
        assert _pasted(change) == pytest.approx(losses, rel=1e-4)


def _pasted(change: Change) -> list[float]:
    workload = language_model()
    exec("\n".join(change.lines), {"model": workload.model, "torch": torch})
    return losses_and_parameters(workload)[0]
