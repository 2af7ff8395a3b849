"""What CUDA's kernels take beside their results, on sizes worked out by hand from the sources that the table names.

Each case is one operator, rehearsed with all rules and without the one that it is about: the difference is the scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.null_gpu.cards import Card
from tracer.rehearsal.cuda_rules import RULE_NAMES, RULES
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.workloads.module_steps import StepWorkload

MIB = 1 << 20
FLOAT, INDEX = 4, 8
# For each of 3 x 2 heads two tiles of 64 x 64 values, for 100 rows of 40, each with a lock of four
TILES = 3 * 2 * 2 * (64 * 64 + 4) * FLOAT
Step = Callable[[], object]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def group_norm() -> None:
    module = nn.GroupNorm(8, 32)
    module(leaf(4, 32, 16)).sum().backward()


def layer_norm_of_permuted() -> None:
    F.layer_norm(torch.randn(8, 16, 32).permute(0, 2, 1), (16,))


def layer_norm_of_rows(number: int) -> Step:
    def step() -> None:
        x, weight, bias = torch.randn(number, 64), leaf(64), leaf(64)
        F.layer_norm(x, (64,), weight, bias).backward(torch.randn(number, 64))

    return step


def softmax(function: Any, *, is_transposed: bool = False, dtype: torch.dtype = torch.float32) -> Step:
    def step() -> None:
        result = function(leaf(4, 8, 16, dtype=dtype), -1)
        given = result.transpose(1, 2) if is_transposed else result
        given.backward(torch.randn(given.shape, dtype=dtype))

    return step


def embedding(number: int) -> Step:
    def step() -> None:
        weight = leaf(100, 16)
        F.embedding(torch.zeros(number, dtype=torch.int64), weight).backward(torch.randn(number, 16))

    return step


def indexing() -> None:
    x = leaf(50, 10)
    x[torch.zeros(30, dtype=torch.int64)].backward(torch.randn(30, 10))


def sorting(*shape: int) -> Step:
    return lambda: torch.sort(torch.randn(*shape), -1)


def attention(dtype: torch.dtype, key_heads: int = 2, width: int = 40) -> Step:
    def step() -> None:
        query = leaf(3, 2, 100, width, dtype=dtype)
        key, value = leaf(3, key_heads, 100, width, dtype=dtype), leaf(3, key_heads, 100, width, dtype=dtype)
        out = F.scaled_dot_product_attention(query, key, value, enable_gqa=key_heads != 2)
        out.backward(torch.randn(3, 100, 2, width, dtype=dtype).transpose(1, 2))

    return step


def largest(k: int, *shape: int) -> Step:
    return lambda: torch.topk(torch.randn(*shape), k)


def inverse_transform() -> None:
    torch.fft.irfft2(torch.randn(4, 16, 9, dtype=torch.complex64))


def transform_of_first_axes() -> None:
    torch.fft.rfftn(torch.randn(8, 8, 16), dim=(0, 1, 2))


def logits(**options: Any) -> Step:
    return lambda: F.binary_cross_entropy_with_logits(torch.randn(6, 7), torch.zeros(6, 7), **options)


def soft_margin() -> None:
    F.soft_margin_loss(leaf(6, 7), torch.ones(6, 7)).backward()


def large_sum() -> None:
    torch.randn(1 << 24).sum()


def bias_sum() -> None:
    torch.randn(1 << 16, 64).sum(0)


def sum_of_columns(number: int) -> Step:
    return lambda: torch.randn(2048, number).sum(0)


# What each rule adds in all, piece by piece: (rule, step, its pieces in bytes).
CASES: dict[str, tuple[str, Step, list[int]]] = {
    # forward a, b [4, 32]; backward ds, db [4, 32], c2, c3 [4, 8], c1 [4, 32]
    "group norm": ("group-norm", group_norm, [512, 512, 512, 512, 128, 128, 512]),
    "layer norm, copied": ("layer-norm", layer_norm_of_permuted, [8 * 32 * 16 * FLOAT]),
    # 64 columns are 2 blocks; 70,000 rows in sums of 32 are 2,188 rows, below the limit of 16,384
    "layer norm, partial sums": ("layer-norm", layer_norm_of_rows(70_000), [2188 * 64 * FLOAT] * 2),
    "layer norm, 65,536 rows": ("layer-norm", layer_norm_of_rows(65_536), []),
    "layer norm, one more": ("layer-norm", layer_norm_of_rows(65_537), [2049 * 64 * FLOAT] * 2),
    "embedding, few indices": ("embedding-backward", embedding(3072), []),
    # the product; where the gradient comes with its axes exchanged, the product does, too, and is copied in order
    "softmax": ("softmax-backward", softmax(F.softmax), [512 * FLOAT]),
    "softmax, transposed": ("softmax-backward", softmax(F.softmax, is_transposed=True), [512 * FLOAT] * 2),
    "softmax of half": ("softmax-backward", softmax(F.softmax, dtype=torch.bfloat16), [512 * 2]),
    "logarithm of softmax": ("softmax-backward", softmax(F.log_softmax), []),
    "logarithm of softmax, transposed": (
        "softmax-backward", softmax(F.log_softmax, is_transposed=True), [512 * FLOAT],
    ),
    "embedding, many indices": (
        # sorted and original indices, where each begins; of 100 of them sums, where they begin, 307 + 100 rows of sums
        "embedding-backward", embedding(3073),
        [3073 * INDEX] * 3 + [100 * INDEX] * 2 + [407 * INDEX, 407 * 16 * FLOAT, INDEX, INDEX],
    ),
    # linear, sorted, original indices and their range; CUB's second keys and values
    "indexing": ("index-put", indexing, [30 * INDEX] * 4 + [30 * 2 * INDEX]),
    "sort, short": ("sort", sorting(3, 4096), [4096 * INDEX]),
    "sort, one long": ("sort", sorting(5000), [5000 * INDEX, 5000 * (FLOAT + INDEX)]),
    "sort, some long": ("sort", sorting(2, 5000), [10_000 * INDEX] * 2 + [10_000 * (FLOAT + INDEX)]),
    "sort, many long": ("sort", sorting(130, 5000), [650_000 * INDEX, 650_000 * (FLOAT + INDEX)]),
    # sorted values and their indices, and the sort of "sort, one long"
    "median of all": (
        "median", lambda: torch.randn(50, 100).median(),
        [5000 * FLOAT, 5000 * INDEX, 5000 * INDEX, 5000 * (FLOAT + INDEX)],
    ),
    "median along an axis": ("median", lambda: torch.randn(50, 100).median(-1), []),
    "topk, few": ("topk", largest(4096, 2, 9000), []),
    # Sorted values and their indices of 2 x 5,000, the sort of "sort, some long", and the indices gathered
    "topk, many": (
        "topk", largest(5000, 2, 9000),
        [10_000 * INDEX, 10_000 * FLOAT] + [10_000 * INDEX] * 2 + [10_000 * (FLOAT + INDEX)] + [10_000 * INDEX],
    ),
    # 100 rows become 128, a width of 40 becomes 64: the output in order, a sum a row, the query's gradient in float
    "flash backward": (
        "flash-backward", attention(torch.bfloat16),
        [3 * 2 * 100 * 40 * 2, 3 * 2 * 128 * FLOAT, 3 * 128 * 2 * 64 * FLOAT],
    ),
    # up to a width of 128 in steps of 32, beyond of 64
    "flash backward, 96 wide": (
        "flash-backward", attention(torch.bfloat16, width=96),
        [3 * 2 * 100 * 96 * 2, 3 * 2 * 128 * FLOAT, 3 * 128 * 2 * 96 * FLOAT],
    ),
    "flash backward, 136 wide": (
        "flash-backward", attention(torch.bfloat16, width=136),
        [3 * 2 * 100 * 136 * 2, 3 * 2 * 128 * FLOAT, 3 * 128 * 2 * 192 * FLOAT],
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
    "complex to real": ("fft", inverse_transform, [4 * 16 * 9 * 8]),
    "first axes": ("fft", transform_of_first_axes, [8 * 8 * 9 * 8]),
    # the logarithm of the sigmoid, one loss for each element; a weight for each column less one, and for each element
    "cross-entropy of logits": ("losses", logits(), [42 * FLOAT] * 2),
    "cross-entropy of logits, not reduced": ("losses", logits(reduction="none"), [42 * FLOAT]),
    "cross-entropy of logits, weighted": (
        "losses", logits(pos_weight=torch.ones(7)), [42 * FLOAT, 7 * FLOAT] + [42 * FLOAT] * 2
    ),
    # the mean before it is copied; in backward the target with its sign changed, and by it the input
    "soft margin": ("losses", soft_margin, [FLOAT] + [42 * FLOAT] * 2),
    # 8 bytes for each flag; 4 where small integers are added up in 32 bits, and none where the type is the same
    "sum of flags": ("sum-type", lambda: torch.ones(30, 7, dtype=torch.bool).sum(-1), [210 * INDEX]),
    "sum of bytes": ("sum-type", lambda: torch.ones(9, dtype=torch.uint8).sum(dtype=torch.int32), [9 * 4]),
    "running sum of flags": ("sum-type", lambda: torch.ones(30, 7, dtype=torch.bool).cumsum(-1), [210 * INDEX]),
    "running sum of half": ("sum-type", lambda: torch.zeros(9).half().cumsum(0, dtype=torch.float), [9 * FLOAT]),
    "sum of half": ("sum-type", lambda: torch.ones(9, dtype=torch.half).sum(dtype=torch.float), []),
    "sum of indices": ("sum-type", lambda: torch.ones(9, dtype=torch.int64).sum(), []),
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


def test_every_rule_of_kernels_has_a_case() -> None:
    elsewhere = {"cublas-workspace", "cudnn-workspace", "cudnn-attention-backward"}
    of_kernels = {rule.name for rule in RULES if rule.scratch} - elsewhere
    assert of_kernels == {rule for rule, _, _ in CASES.values()}


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
