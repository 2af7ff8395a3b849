"""What sums, softmaxes and products take beside their results on a GPU, worked out by hand from torch's sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.null_gpu.cards import Card
from tracer.rehearsal.cuda_rules import RULE_NAMES
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.workloads.module_steps import StepWorkload

MIB = 1 << 20
FLOAT, INDEX = 4, 8
# For each of 3 x 2 heads two tiles of 64 x 64 values, for 100 rows of 40, each with a lock of four
TILES = 3 * 2 * 2 * (64 * 64 + 4) * FLOAT
Step = Callable[[], object]


def softmax(function: Any, *, is_transposed: bool = False, dtype: torch.dtype = torch.float32) -> Step:
    def step() -> None:
        result = function(leaf(4, 8, 16, dtype=dtype), -1)
        given = result.transpose(1, 2) if is_transposed else result
        given.backward(torch.randn(given.shape, dtype=dtype))

    return step


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def group_norm() -> None:
    module = nn.GroupNorm(8, 32)
    module(leaf(4, 32, 16)).sum().backward()


def embedding(number: int) -> Step:
    def step() -> None:
        weight = leaf(100, 16)
        F.embedding(torch.zeros(number, dtype=torch.int64), weight).backward(torch.randn(number, 16))

    return step


def attention(dtype: torch.dtype, key_heads: int = 2, width: int = 40) -> Step:
    def step() -> None:
        query = leaf(3, 2, 100, width, dtype=dtype)
        key, value = leaf(3, key_heads, 100, width, dtype=dtype), leaf(3, key_heads, 100, width, dtype=dtype)
        out = F.scaled_dot_product_attention(query, key, value, enable_gqa=key_heads != 2)
        out.backward(torch.randn(3, 100, 2, width, dtype=dtype).transpose(1, 2))

    return step


def large_sum() -> None:
    torch.randn(1 << 24).sum()


def bias_sum() -> None:
    torch.randn(1 << 16, 64).sum(0)


def sum_of_columns(number: int) -> Step:
    return lambda: torch.randn(2048, number).sum(0)


# What each rule adds in all, piece by piece, in bytes.
CASES: dict[str, tuple[str, Step, list[int]]] = {
    # forward a, b [4, 32]; backward ds, db [4, 32], c2, c3 [4, 8], c1 [4, 32]
    "group norm": ("group-norm", group_norm, [512, 512, 512, 512, 128, 128, 512]),
    # the product; where the gradient comes with its axes exchanged, the product does, too, and is copied in order
    "softmax": ("softmax-backward", softmax(F.softmax), [512 * FLOAT]),
    "softmax, transposed": ("softmax-backward", softmax(F.softmax, is_transposed=True), [512 * FLOAT] * 2),
    "softmax of half": ("softmax-backward", softmax(F.softmax, dtype=torch.bfloat16), [512 * 2]),
    "logarithm of softmax": ("softmax-backward", softmax(F.log_softmax), []),
    "logarithm of softmax, transposed": (
        "softmax-backward", softmax(F.log_softmax, is_transposed=True), [512 * FLOAT],
    ),
    "embedding, few indices": ("embedding-backward", embedding(3072), []),
    "embedding, many indices": (
        # sorted and original indices, where each begins; of 100 of them sums, where they begin, 307 + 100 rows of sums
        "embedding-backward", embedding(3073),
        [3073 * INDEX] * 3 + [100 * INDEX] * 2 + [407 * INDEX, 407 * 16 * FLOAT, INDEX, INDEX],
    ),
    "efficient backward": (
        "efficient-backward", attention(torch.float32),
        [3 * 2 * 100 * 40 * FLOAT] + [3 * 2 * 100 * FLOAT] * 2 + [TILES],
    ),
    # Two heads of queries share one of keys and values, whose gradients are made for each of the two, and summed then.
    "efficient backward, shared keys": (
        "efficient-backward", attention(torch.float32, key_heads=1),
        [3 * 2 * 100 * 40 * FLOAT] * 3 + [3 * 2 * 100 * FLOAT] * 2 + [TILES],
    ),
    # One result: a row of 512 threads with 2**24 / 512 = 32,768 values each; 108 x 2,048 / 512 = 432 blocks can run,
    # fewer than 32,768 / 16: a sum for each, and a counter
    "sum of everything": ("reduction", large_sum, [432 * FLOAT, FLOAT]),
    # 64 results, 4 to a thread: 16 threads across and 8 down with 65,536 / 8 = 8,192 values each; 8,192 / 16 = 512
    # blocks, fewer than 108 x 2,048 / 128 that can run: a sum for each of 16 x 4 lanes of each of 64 results
    "sum of columns": ("reduction", bias_sum, [64 * 512 * 64 * FLOAT, FLOAT]),
    # Blocks of 32 threads across and 4 down, each of 4 results and 2,048 / 4 = 512 values: 108 x 2,048 / 128 = 1,728
    # can run. As many are needed for 1,728 x 128 results, and 512 / 256 = 2 share each; more are not shared.
    "sum of as many columns as run at once": (
        "reduction", sum_of_columns(1728 * 128), [1728 * 128 * 2 * 128 * FLOAT, 1728 * FLOAT],
    ),
    "sum of more columns": ("reduction", sum_of_columns(1728 * 128 + 4), []),
}  # fmt: skip


def rehearsed(step: Step, without: str = "") -> Rehearsal:
    rules = [name for name in RULE_NAMES if name != without]
    return rehearse(StepWorkload(step, nn.Module(), None, torch.device("cpu")), rules=rules, num_steps=1)


def allocations(rehearsal: Rehearsal) -> list[int]:
    sizes = rehearsal.requests.size_bytes
    return sizes[sizes > 0].tolist()


@pytest.mark.parametrize("name", CASES)
def test_scratch_is_what_the_source_says_and_freed_with_its_operator(name: str) -> None:
    rule, step, pieces = CASES[name]
    with_rule, without = rehearsed(step), rehearsed(step, without=rule)
    added = allocations(with_rule)
    for size in allocations(without):
        added.remove(size)
    assert sorted(added) == sorted(pieces)
    assert with_rule.requests.size_bytes.sum() == without.requests.size_bytes.sum()
    assert with_rule.memory.peak_allocated_bytes >= without.memory.peak_allocated_bytes


def test_group_norm_of_a_published_measurement() -> None:
    """Liger's group norm of 128 x 2048 x 512 on a B200: 2,564.0625 MiB, to the byte."""
    kept: dict[str, Tensor] = {}
    module = nn.ModuleList(nn.GroupNorm(512, 2048) for _ in range(2))

    def step() -> None:
        if not kept:
            kept["x"], kept["given"] = torch.randn(128, 2048, 512), torch.randn(128, 2048, 512)
            kept["x"].requires_grad_(True)
        module[0](kept["x"]).backward(kept["given"], retain_graph=True)

    rehearsal = rehearse(StepWorkload(step, module, None, torch.device("cpu")), num_steps=3)
    assert rehearsal.memory.peak_allocated_bytes == 2564.0625 * MIB


def test_a_gradient_that_somebody_else_holds_is_not_added_to_in_place() -> None:
    """`h` takes a gradient from the caller and one from `h.exp()`: their sum is new while the caller's is alive."""
    weight = nn.Parameter(torch.randn(1 << 20))
    module = nn.ParameterList([weight])

    def step(held: bool) -> Step:
        def run() -> None:
            given = torch.randn(1 << 20)
            hidden = weight * 1.5
            torch.autograd.backward((hidden, hidden.exp()), (given, torch.randn(1 << 20)))
            if held:
                given.sum()

        return run

    def num_additions(one: Step) -> int:
        rehearsal = rehearse(StepWorkload(one, module, None, torch.device("cpu")), num_steps=1)
        return sum(size == 4 * MIB for size in allocations(rehearsal))

    # weight, given, hidden, exp, its given gradient, its gradient, their sum, the weight's gradient
    assert num_additions(step(held=True)) == 8


@pytest.mark.parametrize(("capability", "workspace"), [((8, 0), 8.125), ((9, 0), 32.0), ((12, 0), 32.0)])
@pytest.mark.parametrize("is_kept", [True, False])
def test_cublas_workspaces_of_an_architecture(
    capability: tuple[int, int], workspace: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, one for the thread of forward, one for autograd's; else one for each product of both steps."""
    if torch.__version__ < "2.15" and not is_kept:
        pytest.skip("torch keeps them before 2.15")
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", str(int(is_kept)))
    layer = nn.Linear(16, 16, bias=False)

    def step() -> None:
        layer(torch.randn(4, 16)).sum().backward()

    rehearsal = rehearse(
        StepWorkload(step, layer, None, torch.device("cpu")), num_steps=2, card=Card("", 0, capability=capability)
    )
    num_taken = 2 if is_kept else 4  # forward's and, as the input wants no gradient, one of backward's
    assert [size for size in allocations(rehearsal) if size > MIB] == [workspace * MIB] * num_taken
    assert (rehearsal.memory.allocated_bytes[-1] > workspace * MIB) == is_kept


@pytest.mark.parametrize(
    ("bias", "dtype", "mebibytes"),
    [
        (True, torch.float32, 1),
        (False, torch.float32, 8.125),
        (True, torch.bfloat16, 1),
        (False, torch.bfloat16, 8.125),
    ],
)
def test_a_product_with_a_bias_is_by_cublaslt(
    bias: bool, dtype: torch.dtype, mebibytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's CUDA code asks on the null GPU: 1 MiB where cublasLt adds the bias."""
    if torch.__version__ < "2.15":
        pytest.skip("torch keeps workspaces before 2.15")
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE", raising=False)
    layer = nn.Linear(64, 64, bias=bias, dtype=dtype)

    def step() -> None:
        with torch.no_grad():
            layer(torch.randn(4, 64, dtype=dtype))

    rehearsal = rehearse(StepWorkload(step, layer, None, torch.device("cpu")), num_steps=1)
    assert max(allocations(rehearsal)) == mebibytes * MIB
