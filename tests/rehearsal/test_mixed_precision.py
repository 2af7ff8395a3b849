"""CUDA's mixed precision on fake tensors of the CPU: its lists, its cache of weights, its scaler of gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.capture.torch_private import torch_dispatch
from tracer.rehearsal import cuda_autocast as lists
from tracer.rehearsal.cuda_autocast import cuda_autocast
from tracer.rehearsal.cuda_rules import RULE_NAMES
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.workloads.module_steps import ModuleWorkload, StepWorkload, own_loss

CPU = torch.device("cpu")
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"


def rehearsed(step: Callable[[], object], model: nn.Module | None = None, **options: Any) -> Rehearsal:
    return rehearse(StepWorkload(step, model or nn.Module(), None, CPU), num_steps=1, **options)


def without(rule: str) -> list[str]:
    return [name for name in RULE_NAMES if name != rule]


# ---- the lists -------------------------------------------------------------------------------------------------------


def _of_header(macro: str) -> set[str]:
    """The operators of one of torch's lists: `_(pow, Scalar)` is `pow.Scalar`."""
    text = HEADER.read_text(encoding="utf-8")
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", text)
    assert body is not None, f"{macro} is gone"
    return {
        f"{name}.{overload}" if overload else name for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
    }


def _cast_here(names: Iterable[str]) -> set[str]:
    """Those that this version of torch casts, but for overloads with names of dimensions, which 2.15 has no more."""
    return {name for name in torch_dispatch.autocast_operators("CUDA") & set(names) if "imname" not in name}


@pytest.mark.skipif(not HEADER.is_file(), reason="this torch comes without its headers")
@pytest.mark.parametrize(
    ("macro", "ours"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", lists.LOWER_PRECISION),
        ("AT_FORALL_FP32", lists.FLOAT),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", lists.FLOAT_RESULT),
        ("AT_FORALL_PROMOTE", lists.WIDEST),
    ],
)
def test_lists_are_those_of_torchs_header(macro: str, ours: tuple[str, ...]) -> None:
    assert len(set(ours)) == len(ours)
    assert _cast_here(ours) == _cast_here(_of_header(macro))


def test_lists_are_what_torch_registers_for_cuda() -> None:
    ours = {*lists.LOWER_PRECISION, *lists.FLOAT, *lists.FLOAT_RESULT, *lists.FLOAT_APPENDED, *lists.WIDEST}
    of_cudnn = {"_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose"}
    registered = _cast_here(torch_dispatch.autocast_operators("CUDA")) - of_cudnn - {"binary_cross_entropy"}
    # linalg_matrix_sqrth and its like are registered by files of their own.
    assert {name for name in registered ^ _cast_here(ours) if not name.startswith("linalg_matrix_")} == set()


def _types(x: Tensor, weight: Tensor) -> dict[str, torch.dtype]:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ weight
        image = F.conv2d(x.view(1, 1, 4, 8), weight.view(1, 1, 8, 8)[:, :, :2, :2])
        results = {
            "matmul": y,
            "einsum": torch.einsum("ab,bc->ac", x, weight),
            "layer_norm": F.layer_norm(y, (8,)),
            "group_norm": F.group_norm(y, 2),
            "softmax": y.softmax(-1),
            "log_softmax": F.log_softmax(y, -1),
            "sum": y.sum(),
            "cumsum": y.cumsum(0),
            "norm": y.norm(),
            "norm of an axis": torch.norm(y, dim=1),
            "power": y**2,
            "exponential": y.exp(),
            "cross entropy": F.cross_entropy(y, torch.zeros(4, dtype=torch.int64)),
            "mean square": F.mse_loss(y, y),
            "upsampling": F.interpolate(image, scale_factor=2),
            "gelu": F.gelu(y),
            "addition": y + y,
            "mean": y.mean(),
            "widest of two": torch.addcmul(y, y, x),
            "widest of equal ones": torch.addcmul(y, y, y),
            "said": y.softmax(-1, dtype=torch.float64),
            "doubles": y.double().exp(),
        }
    return {name: result.dtype for name, result in results.items()}


def test_operators_have_the_types_that_cuda_gives_them() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    before = _types(x, weight)
    with cuda_autocast():
        found = _types(x, weight)
    in_16_bits = {"matmul", "einsum", "gelu", "addition", "mean", "widest of equal ones"}
    assert {name for name, dtype in found.items() if dtype is torch.bfloat16} == in_16_bits
    assert {name for name, dtype in found.items() if dtype is torch.float64} == {"said", "doubles"}
    # What the CPU does in 16 bits and CUDA does not: the reason for all this.
    assert {"layer_norm", "softmax", "power", "norm"} <= {n for n, t in before.items() if t is torch.bfloat16}
    assert _types(x, weight) == before


def test_binary_cross_entropy_is_refused_as_on_cuda() -> None:
    with cuda_autocast(), torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="unsafe"):
        F.binary_cross_entropy(torch.rand(4), torch.rand(4))


# ---- what it comes to ------------------------------------------------------------------------------------------------


def _made(done: Rehearsal) -> list[int]:
    """Allocations of a KiB or more in the order of their sizes."""
    return sorted(size for size in done.requests.size_bytes.tolist() if 1024 <= size < 1 << 20)


def test_norms_in_32_bits_need_a_copy_and_a_larger_result() -> None:
    """x [64, 32] and weight [32, 32]: 8 and 4 KiB; both cast: 4 and 2; their product 4, as floats 8; its norm 8."""
    weight = nn.Parameter(torch.randn(32, 32))

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            F.layer_norm(torch.randn(64, 32) @ weight, (32,))

    model = nn.ParameterList([weight])
    kib = [round(size / 1024) for size in _made(rehearsed(step, model))]
    assert kib == [2, 4, 4, 4, 8, 8, 8]
    # Without the rule `cuda` is a device that is not there, and all of it has 32 bits.
    assert [round(size / 1024) for size in _made(rehearsed(step, model, rules=without("autocast")))] == [4, 8, 8, 8]


def test_weights_are_cast_once_a_region() -> None:
    weight = nn.Parameter(torch.randn(32, 32))  # 4 KiB, cast 2

    def step() -> None:
        x = torch.randn(8, 32)
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                for _ in range(3):
                    torch.einsum("ab,bc->ac", x, weight).sum()

    assert _made(rehearsed(step, nn.ParameterList([weight]))).count(2048) == 2


def test_programs_hear_that_cudas_precision_is_on() -> None:
    heard: list[object] = []

    def step() -> None:
        heard.append(torch.is_autocast_enabled("cuda"))
        with torch.autocast("cuda"):
            heard.extend((torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda")))
        with torch.autocast("cuda", torch.bfloat16), torch.autocast("cuda", enabled=False):
            heard.append(torch.is_autocast_enabled("cuda"))

    rehearsed(step)
    assert heard == [False, True, torch.float16, False]


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float16, 0), (torch.bfloat16, 1)])
def test_softmax_reads_halves_as_they_are(dtype: torch.dtype, copies: int) -> None:
    """32 x 32: 2 KiB in 16 bits; the result has 4, and so has a copy."""

    def step() -> None:
        F.softmax(torch.randn(32, 32, dtype=dtype), -1, dtype=torch.float32)

    assert _made(rehearsed(step)).count(4096) == 1 + copies
    assert _made(rehearsed(step, rules=without("softmax-half"))).count(4096) == 2


# ---- the scaler ------------------------------------------------------------------------------------------------------


def test_a_scaled_step_is_made_and_updates() -> None:
    """The scaler's answer to `has any gradient an infinity` is no: else an optimizer would never have state."""
    model = nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        loss = model(torch.randn(4, 32)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    done = rehearse(StepWorkload(step, model, optimizer, CPU), device="cpu")
    state = done.requests.step == 0
    assert done.requests.size_bytes[state].sum() >= 2 * 32 * 32 * 4
    assert len(optimizer.state) == 1


def test_float16_brings_a_scaler() -> None:
    """A factor, a count of steps, and in each step the scaled loss, its gradient and a count of infinities."""

    def built(amp: Any) -> ModuleWorkload:
        model = nn.Linear(32, 32, bias=False)
        optimizer = torch.optim.SGD(model.parameters())
        return ModuleWorkload(model, optimizer, lambda: ((torch.randn(4, 32),), {}), CPU, own_loss, amp)

    with_scaler = rehearse(built("float16"), num_steps=2)
    plain = rehearse(built("float16"), num_steps=2, rules=without("grad-scaler"))
    in_bfloat16 = rehearse(built("bfloat16"), num_steps=2)
    assert len(plain.requests.size_bytes) == len(in_bfloat16.requests.size_bytes)
    assert len(with_scaler.requests.size_bytes) > len(plain.requests.size_bytes)
    last = with_scaler.requests.size_bytes.sum() - plain.requests.size_bytes.sum()
    assert 8 <= last <= 64  # the factor and the count stay, and what the last step made
    assert rehearse(built("float16"), num_steps=2, device="cpu").num_steps == 2
