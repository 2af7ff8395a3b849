"""Rules of single layers and optimizers, each worked by hand, and beside a rehearsal without the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.null_gpu.cards import devices_of
from tracer.rehearsal import recorder
from tracer.rehearsal.cuda_rules import RULE_NAMES
from tracer.rehearsal.recurrent import flatten_weights
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.workloads.module_steps import StepWorkload

CPU = torch.device("cpu")
ROWS, WIDTH = 32, 256
X_BYTES = ROWS * WIDTH * 4


def rehearsed(
    step: Callable[[], object], model: nn.Module, optimizer: Any = None, *, num_steps: int = 1, **options: Any
) -> Rehearsal:
    return rehearse(StepWorkload(step, model, optimizer, CPU), num_steps=num_steps, **options)


def without(rule: str) -> list[str]:
    assert rule in RULE_NAMES
    return [name for name in RULE_NAMES if name != rule]


def kept_in_forward(function: Callable[[Tensor], Tensor], model: nn.Module, **options: Any) -> list[int]:
    """What a step asks for behind its input and does not give back before backward, in bytes."""

    def step() -> None:
        y = function(torch.ones(ROWS, WIDTH, requires_grad=True))
        torch.zeros(7).tolist()  # marks the end of forward: 28 bytes
        y.sum().backward()

    sizes = rehearsed(step, model, **options).requests.size_bytes.tolist()
    first, end = sizes.index(X_BYTES) + 1, sizes.index(28)
    left: list[int] = []
    for size in sizes[first:end]:
        if size > 0:
            left.append(size)
        else:
            left.remove(-size)
    return left


@pytest.mark.parametrize("is_followed", [True, False])
def test_rms_norm_keeps_its_result_and_a_number_for_each_row(is_followed: bool) -> None:
    norm = nn.RMSNorm(WIDTH)
    kept = kept_in_forward(norm, norm, rules=None if is_followed else without("rms-norm"))
    assert (sorted(kept) == [ROWS * 4, X_BYTES]) is is_followed
    assert is_followed or sum(kept) >= 2 * X_BYTES  # operators of the CPU keep what each of them needs


@pytest.mark.parametrize("is_followed", [True, False])
def test_log_sigmoid_keeps_no_buffer(is_followed: bool) -> None:
    kept = kept_in_forward(F.logsigmoid, nn.Module(), rules=None if is_followed else without("log-sigmoid"))
    assert kept == [X_BYTES] if is_followed else kept == [X_BYTES] * 2


def training(kind: Any, layer: nn.Module, **options: Any) -> tuple[Callable[[], None], Any]:
    optimizer = kind(layer.parameters(), **options)

    def step() -> None:
        layer(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def test_nadam_takes_steps_whose_product_is_no_division_by_zero() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    step, optimizer = training(torch.optim.NAdam, layer)
    assert rehearsed(step, layer, optimizer, num_steps=2).num_steps == 2
    layer = nn.Linear(WIDTH, WIDTH)
    step, optimizer = training(torch.optim.NAdam, layer, foreach=False)
    with pytest.raises(Exception, match="division by zero"):
        rehearsed(step, layer, optimizer, num_steps=2, rules=without("nadam-product"))


def test_adafactor_goes_one_parameter_after_the_other() -> None:
    """With foreach, temporaries of several weights are alive together."""

    def peak(**options: Any) -> int:
        layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)])
        optimizer = torch.optim.Adafactor(layers.parameters(), **options)

        def step() -> None:
            for layer in layers:
                layer(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        done = rehearsed(step, layers, optimizer)
        levels = done.requests.size_bytes.cumsum()
        return int(levels.max())

    by_default = peak()
    assert by_default == peak(foreach=False)
    assert peak(foreach=True) > by_default + WIDTH * WIDTH * 4


@pytest.mark.parametrize("is_followed", [True, False])
def test_the_gradient_of_a_maximum_is_filled_in_place(is_followed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward of `max(dim)` makes zeros of the input's size and scatters into them."""
    if not is_followed:
        monkeypatch.setattr(recorder, "FILLS_ZEROS", {})

    def step() -> None:
        x = torch.ones(ROWS, WIDTH, requires_grad=True)
        x.max(-1).values.sum().backward()

    sizes = rehearsed(step, nn.Module()).requests.size_bytes.tolist()
    assert sizes.count(X_BYTES) == (2 if is_followed else 3)  # the input and its gradient


@pytest.mark.parametrize(("setting", "size_bytes"), [("", 8_519_680), (":16:8", 16 * 8 << 10), (":0:0", 0)])
def test_cublas_workspace_is_what_is_set(setting: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "0")
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    sizes = rehearsed(lambda: layer(torch.ones(3, WIDTH)), layer).requests.size_bytes.tolist()
    assert sizes[1:2] == [3 * WIDTH * 4]
    assert max(sizes[2:], default=0) == max(size_bytes, 3 * WIDTH * 4)


# ---- recurrent layers ------------------------------------------------------------------------------------------------


def recurring(layer: nn.LSTM, dtype: torch.dtype | None = None) -> list[int]:
    def step() -> None:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            y = layer(torch.ones(5, 3, WIDTH))[0].sum()
        if layer.training:
            y.backward()

    return rehearsed(step, layer, card=devices_of("H100").card, num_steps=2).requests.size_bytes.tolist()


@pytest.mark.parametrize(("dropout", "is_made"), [(0.0, 0), (0.5, 1)])
def test_the_random_state_of_dropout_is_made_once_and_kept(dropout: float, is_made: int) -> None:
    """Of 132 multiprocessors 48 bytes for each of 1,024 threads, as cuDNN said on an H100."""
    sizes = recurring(nn.LSTM(WIDTH, 8, num_layers=2, dropout=dropout))
    assert sizes.count(132 * 1024 * 48) == is_made
    assert sizes.count(-132 * 1024 * 48) == 0
    layer = nn.LSTM(WIDTH, 8, num_layers=2, dropout=dropout).eval()
    assert 132 * 1024 * 48 not in recurring(layer)


@pytest.mark.parametrize("bias", [True, False])
def test_mixed_precision_casts_weights_into_one_buffer_with_places_for_biases(bias: bool) -> None:
    sizes = recurring(nn.LSTM(WIDTH, 8, bias=bias), torch.bfloat16)
    values = 4 * 8 * (WIDTH + 8 + 2)
    assert sizes.count(values * 2) == 4  # in both steps: the weights in 16 bits, and their gradients
    assert (4 * 8 * WIDTH * 2 in sizes) is not bias  # gradients are copied out of a buffer with places for biases


@pytest.mark.parametrize("bias", [True, False])
def test_weights_of_a_recurrent_layer_come_one_by_one_and_are_copied_into_one_buffer(bias: bool) -> None:
    """As `flatten_parameters` does on a GPU: the buffer has places for biases too where there are none."""
    apart = [4 * 8 * WIDTH * 4, 4 * 8 * 8 * 4, *([4 * 8 * 4] * 2 if bias else [])]
    whole = 4 * 8 * (WIDTH + 8 + 2) * 4
    sizes = recurring(nn.LSTM(WIDTH, 8, bias=bias))
    assert sizes[: 2 * len(apart) + 1] == [*apart, whole, *(-size for size in apart)]
    assert sum(sizes[: 2 * len(apart) + 1]) == whole


def test_weights_that_are_shared_or_not_of_a_type_of_cudnns_stay_apart() -> None:
    shared = nn.LSTM(8, 8)
    shared.weight_hh_l0 = shared.weight_ih_l0
    for layer in (shared, nn.LSTM(8, 8, dtype=torch.bfloat16)):
        assert flatten_weights(layer) == []
    assert flatten_weights(nn.LSTM(8, 8)) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]


def test_recurrent_layers_are_float16_in_mixed_precision_with_bfloat16_too() -> None:
    """Autocast of cuDNN's recurrent layers knows no other type, so that what follows is cast once more."""
    layer, seen = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LSTM(WIDTH, 8)), []

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            x = layer[0](torch.ones(5, 3, WIDTH))
            seen.append((x.dtype, layer[1](x)[0].dtype))

    rehearsed(step, layer)
    assert seen == [(torch.bfloat16, torch.float16)]
