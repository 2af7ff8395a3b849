"""Which kernel attention runs as on a card, what recurrent layers keep, and where optimizers count: by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.null_gpu.cards import Card
from tracer.rehearsal.cuda_rules import RULE_NAMES, RULES
from tracer.rehearsal.recurrent import Batch, Layers
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.workloads.module_steps import StepWorkload

CPU = torch.device("cpu")
T4, A100, RTX_3090, H100 = (7, 5), (8, 0), (8, 6), (9, 0)
HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32


def gpu(capability: tuple[int, int]) -> Card:
    return Card("", 0, capability=capability)


def rehearsed(step: Callable[[], object], model: nn.Module | None = None, **options: Any) -> Rehearsal:
    options = {"num_steps": 1, **options}
    return rehearse(StepWorkload(step, model or nn.Module(), None, CPU), **options)


def without(*rules: str) -> list[str]:
    return [name for name in RULE_NAMES if name not in rules]


def operators(done: Rehearsal) -> set[str]:
    return {done.whole.strings[name].removeprefix("aten::") for name in set(done.whole.ops.name.tolist())}


# ---- attention -------------------------------------------------------------------------------------------------------


def attending(
    dtype: torch.dtype, *, width: int = 64, key_heads: int = 4, mask: bool = False, causal: bool = False, keys: int = 96
) -> Callable[[], object]:
    def step() -> None:
        query = torch.randn(2, 4, 96, width, dtype=dtype, requires_grad=True)
        key, value = (torch.randn(2, key_heads, keys, width, dtype=dtype, requires_grad=True) for _ in range(2))
        added = torch.ones(96, keys, dtype=torch.bool) if mask else None
        out = F.scaled_dot_product_attention(query, key, value, added, is_causal=causal, enable_gqa=key_heads < 4)
        out.sum().backward()

    return step


@pytest.mark.parametrize(
    ("card", "options", "kernel"),
    [
        (A100, {"dtype": HALF}, "flash"),
        (T4, {"dtype": HALF}, "efficient"),  # flash begins with compute capability 8.0
        (T4, {"dtype": BRAIN}, "none"),  # efficient knows no bfloat16 there
        (A100, {"dtype": FLOAT}, "efficient"),
        (A100, {"dtype": FLOAT, "width": 66}, "none"),  # rows of 66 floats are not aligned to 16 bytes
        (A100, {"dtype": HALF, "mask": True}, "efficient"),
        (A100, {"dtype": HALF, "causal": True, "keys": 128}, "efficient"),
        (A100, {"dtype": HALF, "width": 224}, "flash"),
        (RTX_3090, {"dtype": HALF, "width": 264}, "efficient"),
        (A100, {"dtype": HALF, "width": 256}, "flash"),
        (A100, {"dtype": HALF, "width": 264}, "efficient"),  # wider than flash takes anywhere
        # Small cards lack the memory for the backward of heads wider than 192 and up to 224.
        (RTX_3090, {"dtype": HALF, "width": 192}, "flash"),
        (RTX_3090, {"dtype": HALF, "width": 200}, "efficient"),
        (RTX_3090, {"dtype": HALF, "width": 224}, "efficient"),
        (RTX_3090, {"dtype": HALF, "width": 232}, "flash"),
        (H100, {"dtype": HALF}, "cudnn"),
        (H100, {"dtype": HALF, "mask": True}, "cudnn"),
        (H100, {"dtype": HALF, "width": 160}, "flash"),  # wider than cuDNN takes
        (H100, {"dtype": FLOAT}, "efficient"),
    ],
)
def test_attention_runs_as_the_kernel_of_the_card(card: tuple[int, int], options: Any, kernel: str) -> None:
    found = operators(rehearsed(attending(**options), card=gpu(card)))
    names = {name: f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn")}
    assert {kernel} == {name for name, operator in names.items() if operator in found} or kernel == "none"
    assert ("_softmax_backward_data" in found) is (kernel == "none")


def test_a_kernel_that_is_switched_off_is_not_taken() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert "_softmax_backward_data" in operators(rehearsed(attending(HALF)))


def test_cudnns_attention_can_be_left_out() -> None:
    found = operators(rehearsed(attending(HALF), card=gpu(H100), rules=without("cudnn-attention")))
    assert "_scaled_dot_product_flash_attention" in found


def test_fewer_key_heads_are_not_repeated_for_flash() -> None:
    """Two key heads of 96 x 64 halves, two samples: 48 KiB; repeated they would be as large as the query, 96."""
    sizes = rehearsed(attending(HALF, key_heads=2), rules=without("flash-backward")).requests.size_bytes.tolist()
    query, key = 2 * 4 * 96 * 64 * 2, 2 * 2 * 96 * 64 * 2
    # Query, output, the gradient of the output and that of the query; of key and value each and its gradient.
    assert sizes.count(key) == 4
    assert sizes.count(query) <= 4


def test_cudnns_backward_takes_a_gradient_in_float() -> None:
    """[2, 4, 96, 64] in float, and a sum a row; with two key heads, gradients in 16 bits for all four."""
    for heads, expanded in ((4, 0), (2, 2 * (2 * 4 * 96 * 64 * 2))):
        done = rehearsed(attending(HALF, key_heads=heads), card=gpu(H100))
        plain = rehearsed(attending(HALF, key_heads=heads), card=gpu(H100), rules=without("cudnn-attention-backward"))
        more = sorted(done.requests.size_bytes.tolist())
        for size in plain.requests.size_bytes.tolist():
            more.remove(size)
        size = 2 * 4 * 96 * 64 * 4 + 2 * 4 * 96 * 4 + expanded
        assert more == [-size, size]


def test_attention_in_mixed_precision_casts_its_arguments() -> None:
    def step() -> None:
        with torch.autocast("cuda", BRAIN):
            attending(FLOAT)()

    assert "_scaled_dot_product_flash_attention" in operators(rehearsed(step))


# ---- recurrent layers ------------------------------------------------------------------------------------------------

STEPS, SAMPLES, INPUT, HIDDEN = 5, 3, 16, 32


def running(layer: nn.RNNBase, x: Tensor) -> Callable[[], object]:
    def step() -> None:
        layer(x)[0].sum().backward()

    return step


@pytest.mark.parametrize(
    ("kind", "gates", "kept"), [(nn.LSTM, 4, 5), (nn.GRU, 3, 6), (nn.RNN, 1, 1)], ids=["lstm", "gru", "rnn"]
)
def test_recurrent_layers_keep_gates_and_states_of_all_steps(kind: Any, gates: int, kept: int) -> None:
    """Two layers, both ways: `kept` values an element and layer, and the output of the first layer."""
    layer = kind(INPUT, HIDDEN, num_layers=2, bidirectional=True)
    done = rehearsed(running(layer, torch.randn(STEPS, SAMPLES, INPUT)), layer)
    sizes = done.requests.size_bytes.tolist()
    rows = STEPS * SAMPLES * 2
    assert rows * (2 * kept + 1) * HIDDEN * 4 + 256 in sizes  # the reserve
    assert rows * HIDDEN * 4 in sizes  # the output
    weights = sum(each.numel() for each in layer.parameters())
    assert weights == 2 * gates * HIDDEN * (INPUT + HIDDEN + 2 * HIDDEN + HIDDEN + 4)
    assert weights * 4 in sizes  # all gradients in one buffer
    assert all(each.grad is not None and each.grad.shape == each.shape for each in layer.parameters())


def test_batch_first_is_turned_for_the_kernel_and_back() -> None:
    layer = nn.LSTM(INPUT, HIDDEN, batch_first=True)
    shapes: list[torch.Size] = []

    def step() -> None:
        out, (hidden, cell) = layer(torch.randn(SAMPLES, STEPS, INPUT))
        shapes.extend((out.shape, hidden.shape, cell.shape))

    rehearsed(step, layer)
    assert shapes == [(SAMPLES, STEPS, HIDDEN), (1, SAMPLES, HIDDEN), (1, SAMPLES, HIDDEN)]


def test_packed_sequences_and_projections_are_taken() -> None:
    layer = nn.LSTM(INPUT, HIDDEN, proj_size=8)
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, INPUT) for n in (5, 3, 2)])
    shapes: list[torch.Size] = []

    def step() -> None:
        out, _ = layer(packed)
        shapes.append(out.data.shape)

    rehearsed(step, layer)
    assert shapes == [(10, 8)]


def test_an_evaluated_layer_keeps_nothing() -> None:
    layer = nn.LSTM(INPUT, HIDDEN).eval()
    done = rehearsed(lambda: layer(torch.randn(STEPS, SAMPLES, INPUT)), layer)
    assert STEPS * SAMPLES * 5 * HIDDEN * 4 + 256 not in done.requests.size_bytes.tolist()


def test_recurrent_layers_can_be_the_cpus() -> None:
    layer = nn.LSTM(INPUT, HIDDEN)
    step = running(layer, torch.randn(STEPS, SAMPLES, INPUT))
    assert "mkldnn_rnn_layer" in operators(rehearsed(step, layer, rules=without("recurrent")))


# ---- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "on_device"), [({}, 0), ({"foreach": False}, 0), ({"fused": True}, 2)])
def test_steps_are_counted_on_the_host_unless_the_optimizer_is_fused(
    options: Any, on_device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight and bias have a counter each, of 4 bytes."""
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    layer = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), **options)

    def step() -> None:
        layer(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    done = rehearse(StepWorkload(step, layer, optimizer, CPU), num_steps=1)
    state = 2 * (8 * 4 + 4) * 4
    in_step = done.requests.size_bytes[done.requests.step == 0].sum() - 2 * 8_519_680  # less cuBLAS's workspaces
    assert in_step == state + on_device * 4
    counted = rehearse(StepWorkload(step, layer, optimizer, CPU), num_steps=1, rules=without("optimizer-steps"))
    assert counted.num_steps == 1


@pytest.mark.parametrize(
    ("options", "foreach"),
    [({}, True), ({"foreach": False}, False), ({"fused": True}, None), ({"differentiable": True}, None)],
)
def test_optimizers_work_on_all_parameters_at_once_unless_they_cannot(options: Any, foreach: bool | None) -> None:
    """torch takes neither a fused nor a differentiable one for such."""
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), **options)
    (rule,) = (rule for rule in RULES if rule.name == "foreach")
    assert rule.optimizer is not None
    rule.optimizer(optimizer)
    assert optimizer.param_groups[0]["foreach"] is foreach


# ------------------------------------------------------------------------------------------------------ recurrent sizes
# Kind, layers, directions, input, hidden, steps, samples, steps of all, packed, dropout, bytes of a value; then the
# workspaces of training and of inference, and the reserve.
ANSWERS = [
    ("rnn_tanh", 3, 1, 256, 128, 500, 4, 2000, False, True, 4, 33978656, 30263584, 5184256),
    ("rnn_tanh", 4, 1, 13, 512, 35, 20, 700, False, False, 4, 47097376, 44316640, 10035456),
    ("rnn_tanh", 2, 1, 512, 100, 10, 64, 640, True, False, 4, 18720192, 17409472, 768256),
    ("rnn_tanh", 4, 2, 13, 1024, 128, 128, 16384, False, False, 4, 987473152, 709797120, 939524352),
    ("rnn_tanh", 4, 2, 1, 100, 35, 80, 2800, True, False, 4, 77637920, 75397920, 15680256),
    ("gru", 3, 1, 128, 128, 35, 128, 4480, False, False, 2, 32441600, 31982848, 22937856),
    ("gru", 4, 1, 256, 32, 64, 48, 3072, False, False, 4, 44233344, 38580864, 10617088),
    ("gru", 2, 1, 80, 1024, 500, 80, 40000, True, False, 2, 162955520, 162955520, 1064960256),
    ("gru", 2, 2, 80, 50, 500, 80, 40000, False, True, 4, 175139328, 143139328, 209000256),
    ("gru", 2, 2, 13, 100, 100, 256, 25600, True, False, 4, 138993888, 138993888, 266240256),
    ("lstm", 3, 1, 1024, 128, 64, 64, 4096, False, False, 4, 84837120, 56820480, 35651840),
    ("lstm", 2, 1, 40, 8, 100, 48, 4800, True, False, 2, 17182464, 17097984, 845056),
    ("lstm", 2, 2, 80, 13, 64, 256, 16384, False, True, 2, 53066816, 42488896, 9478400),
    ("lstm", 2, 2, 40, 64, 10, 10, 100, True, True, 4, 34550016, 34550016, 566656),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: "-".join(map(str, answer[:5])))
def test_workspace_and_reserve_are_cudnns(answer: tuple[object, ...]) -> None:
    kind, layers, directions, width, hidden, longest, samples, steps, is_packed, has_dropout, item, *said = answer
    made = Layers(kind, layers, directions, hidden, hidden, True, False, True, has_dropout)  # type: ignore[arg-type]
    batch = Batch(samples, longest, steps, width, is_packed)  # type: ignore[arg-type]
    training, inference, reserve = said
    assert made.reserve_bytes(batch, item) == pytest.approx(reserve, abs=256)  # type: ignore[arg-type]
    assert made.workspace_bytes(batch, item) == pytest.approx(training, rel=0.02)  # type: ignore[arg-type]
    evaluated = replace(made, is_training=False)
    assert evaluated.workspace_bytes(batch, item) == pytest.approx(inference, rel=1e-3)  # type: ignore[arg-type]
