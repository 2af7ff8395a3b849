"""CUDA's kernels stand in for the CPU's however a program calls the operator: by any name, in any mode, from C++."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, full, nn, where
from torch._VF import lstm  # type: ignore[attr-defined]
from torch.nn.functional import dropout, log_softmax, scaled_dot_product_attention, softmax
from torch.nn.init import trunc_normal_

from tests.rehearsal.test_attention_and_layers import operators, rehearsed
from tracer.rehearsal.unfilled import unfilled_weights

HALF = torch.float16
Call = Callable[[Tensor], Tensor]


def _module(layer: nn.LSTM, x: Tensor) -> Tensor:
    return layer(x.view(-1, 16, 8))[0]


def _by_name(layer: nn.LSTM, x: Tensor) -> Tensor:
    state = torch.zeros(1, 16, 8), torch.zeros(1, 16, 8)
    return lstm(x.view(-1, 16, 8), state, list(layer.parameters()), True, 1, 0.0, True, False, False)[0]


def _heads(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = x.view(2, 4, -1, 64)
    return parts, parts, parts


DROPOUT: dict[str, Call] = {
    "F.dropout": lambda x: F.dropout(x, 0.5),
    "imported": lambda x: dropout(x, 0.5),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "module": nn.Dropout(0.5),
    "feed-forward": lambda x: nn.Sequential(nn.Dropout(0.5))(x),
}
SOFTMAX: dict[str, Call] = {
    "F.softmax": lambda x: F.softmax(x.to(HALF), -1, dtype=torch.float32),
    "imported": lambda x: softmax(x.to(HALF), -1, dtype=torch.float32),
    "torch.softmax": lambda x: torch.softmax(x.to(HALF), -1, dtype=torch.float32),
    "method": lambda x: x.to(HALF).softmax(-1, dtype=torch.float32),
}
LOG_SOFTMAX: dict[str, Call] = {
    "F.log_softmax": lambda x: F.log_softmax(x.to(HALF), -1, dtype=torch.float32),
    "imported": lambda x: log_softmax(x.to(HALF), -1, dtype=torch.float32),
    "method": lambda x: x.to(HALF).log_softmax(-1, dtype=torch.float32),
}
ATTENTION: dict[str, Call] = {
    "F": lambda x: F.scaled_dot_product_attention(*_heads(x)),
    "imported": lambda x: scaled_dot_product_attention(*_heads(x)),
    "torch._C._nn": lambda x: torch._C._nn.scaled_dot_product_attention(*_heads(x)),
}
FAMILIES = {
    "native_dropout": DROPOUT,
    "_softmax": SOFTMAX,
    "_log_softmax": LOG_SOFTMAX,
    "_scaled_dot_product_efficient_attention": ATTENTION,
}
CASES = [(operator, name) for operator, ways in FAMILIES.items() for name in ways]


def _trained(call: Call) -> Callable[[], object]:
    return lambda: call(torch.ones(256, 64, requires_grad=True)).float().sum().backward()


def _inferred(call: Call) -> Callable[[], object]:
    def step() -> None:
        with torch.inference_mode():
            call(torch.ones(256, 64))

    return step


@pytest.mark.parametrize("of", [_trained, _inferred])
@pytest.mark.parametrize(("operator", "way"), CASES)
def test_an_operator_is_cudas(operator: str, way: str, of: Callable[[Call], Callable[[], object]]) -> None:
    ways = FAMILIES[operator]
    done, first = rehearsed(of(ways[way])), rehearsed(of(next(iter(ways.values()))))
    assert operator in operators(done)
    assert done.memory.allocated_bytes.max() == first.memory.allocated_bytes.max()


def test_a_recurrent_layer_keeps_cudnns_reserve_however_it_is_called() -> None:
    def peak(call: Callable[[nn.LSTM, Tensor], Tensor], **options: Any) -> int:
        layer = nn.LSTM(8, 8)
        return int(rehearsed(_trained(partial(call, layer)), layer, **options).memory.allocated_bytes.max())

    assert peak(_by_name) == peak(_module) != peak(_module, rules=())


def test_other_threads_and_real_tensors_meet_torchs_own_kernels() -> None:
    made: list[Tensor] = []

    def step() -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            made.append(
                pool.submit(lambda: F.dropout(torch.ones(1000), 1.0) + F.softmax(torch.zeros(4), 0).sum()).result()
            )
        torch.ones(4)

    rehearsed(step)
    assert made[0].tolist() == [1.0] * 1000


def test_nothing_stands_in_when_it_is_over() -> None:
    rehearsed(_trained(DROPOUT["F.dropout"]))
    torch.manual_seed(0)
    once = dropout(torch.ones(64))
    torch.manual_seed(0)
    assert torch.equal(once, torch.ones(64) * torch.empty(64).bernoulli_(0.5).div_(0.5))


# ------------------------------------------------------------------------------------------------------------- unfilled
def test_a_truncated_normal_ends_whatever_stands_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's function draws until all values lie between its bounds; what is left unwritten never does."""
    calls: list[None] = []

    def counted(mask: Tensor, *values: Tensor) -> Tensor:
        calls.append(None)
        assert len(calls) < 10, "it does not end"
        return where(mask, values[0], values[1])

    monkeypatch.setattr(torch, "where", counted)
    weight = nn.Parameter(full((8, 8), 1e9))
    with unfilled_weights():
        assert trunc_normal_(weight, std=0.02) is weight
    assert not calls and bool((weight == 1e9).all())
    assert float(trunc_normal_(weight, std=0.02).detach().abs().max()) <= 2
