"""Changes of an unchanged script, made from outside: what each does to models and optimizers, and to nothing else."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.processes import run_python
from tracer.changes.applied import AppliedChanges
from tracer.changes.flops import flops_of
from tracer.changes.hooks import Hooks
from tracer.changes.kinds import all_kinds
from tracer.changes.kinds.data_parallel import parallel_made
from tracer.changes.script_changes import SCRIPT_CHANGES, allocator_variables, script_changes
from tracer.errors import UsageError
from tracer.workloads.module_steps import repeated_blocks

ROOT = Path(__file__).resolve().parents[2]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return x + torch.tanh(self.linear(x))


def stacked() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(), Block(), Block()))


def test_names_are_put_in_the_order_of_what_they_give_up() -> None:
    assert script_changes("bf16, checkpoint,expandable-segments") == ("expandable-segments", "checkpoint", "bf16")
    assert script_changes("") == ()
    groups = [change.group for change in SCRIPT_CHANGES.values()]
    assert groups == sorted(groups)
    with pytest.raises(UsageError, match="There is no change fp8"):
        script_changes("fp8")
    with pytest.raises(KeyError, match="fp8"):
        AppliedChanges(["fp8"])


def test_each_change_but_settings_has_hooks() -> None:
    all_kinds()
    assert set(Hooks.of) == {name for name, change in SCRIPT_CHANGES.items() if not change.settings}


def test_settings_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    for _ in range(2):
        os.environ.update(allocator_variables(["expandable-segments", "fused-optimizer"]))
        assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"


def test_blocks_compute_again_and_gradients_are_the_same() -> None:
    plain, changed = stacked(), stacked()
    plain(torch.ones(2, 4)).sum().backward()
    with AppliedChanges(["checkpoint"]) as applied:
        changed(torch.ones(2, 4)).sum().backward()
    assert applied.hooks["checkpoint"].num_made == 3 and applied.notes == ()
    assert [block.num_calls for block in repeated_blocks(changed)] == [2, 2, 2]  # type: ignore[misc]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), changed.parameters(), strict=True))  # type: ignore[arg-type]


def test_changes_are_asked_for_once_and_made_in_the_call_that_asks() -> None:
    asked: list[int] = []
    model = stacked()

    def choose() -> tuple[str, ...]:
        asked.append(len(asked))
        return ("checkpoint",)

    with AppliedChanges((), choose=choose) as applied:
        assert not asked
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        applied.decide()
    assert asked == [0] and applied.hooks["checkpoint"].num_made == 3
    assert [block.num_calls for block in repeated_blocks(model)] == [4, 4, 4]  # type: ignore[misc]
    model(torch.ones(2, 4))
    assert asked == [0]


@pytest.mark.parametrize("changes", [(), ("chunked-loss",)])
def test_a_loss_that_was_imported_before_the_choice_follows_it(changes: tuple[str, ...]) -> None:
    original = functional.cross_entropy
    with AppliedChanges((), choose=lambda: changes) as applied:
        own = functional.cross_entropy  # as `from torch.nn.functional import cross_entropy`
        applied.decide()
        assert (functional.cross_entropy is original) is not bool(changes)
        own(torch.zeros(1024, 1024), torch.zeros(1024, dtype=torch.int64))
        applied.step_ended()
        assert applied.notes == ()
        assert applied._all["chunked-loss"].num_made == len(changes)
    assert functional.cross_entropy is original


def test_gradients_become_views_of_buckets_where_the_script_keeps_copies() -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with AppliedChanges(["bucket-views"]) as applied:
            model = DistributedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=False)
            optimizer = torch.optim.SGD(model.parameters())
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert model.gradient_as_bucket_view and applied.notes == ()
        with AppliedChanges(["bucket-views"]) as applied:
            DistributedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=True)
            optimizer.step()
        (note,) = applied.notes
        assert note == "bucket-views: no DistributedDataParallel was made that copies gradients."
        assert not DistributedDataParallel(nn.Linear(4, 4)).gradient_as_bucket_view
    finally:
        distributed.destroy_process_group()


def test_a_model_whose_part_was_called_before_computes_it_again_once() -> None:
    model = stacked()
    with AppliedChanges(["checkpoint"]) as applied:
        model[1](torch.ones(2, 4)).sum().backward()
        model(torch.ones(2, 4)).sum().backward()
    assert applied.hooks["checkpoint"].num_made == 3
    assert [block.num_calls for block in repeated_blocks(model)] == [4, 4, 4]  # type: ignore[misc]


def test_models_that_follow_each_other_in_memory_are_all_changed() -> None:
    with AppliedChanges(["bf16-weights"]):
        for _ in range(10):
            model = nn.Linear(2, 2)
            model(torch.ones(1, 2))
            assert model.weight.dtype == torch.bfloat16
            del model


def test_complex_weights_stay_what_they_are() -> None:
    model = nn.Linear(2, 2)
    model.spectrum = nn.Parameter(torch.full((2,), 1 + 2j))
    optimizer = torch.optim.AdamW(model.parameters())
    with AppliedChanges(["bf16-weights", "fused-optimizer"]):
        loss = model(torch.ones(1, 2, dtype=torch.bfloat16)).sum() + (model.spectrum * 1j).real.sum()
        loss.backward()
        optimizer.step()
    assert model.spectrum.dtype == torch.complex64 and model.spectrum.imag.abs().min() > 1
    assert (optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]) == (None, False)


# What each says of a linear layer on the CPU, under a torch.optim.SGD.
FOUND_NOTHING = {
    "checkpoint": "the model has no repeated blocks.",
    "shard": "no DistributedDataParallel was made.",
    "8-bit-state": "SGD is not torch's Adam or AdamW.",
}


@pytest.mark.parametrize("change", FOUND_NOTHING)
def test_a_change_that_found_nothing_says_so(change: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with AppliedChanges([change]) as applied:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert applied.notes == (f"{change}: {FOUND_NOTHING[change]}",)


def test_a_loss_that_no_step_came_to_may_come_yet() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with AppliedChanges(["chunked-loss", "8-bit-state"]) as applied:
        model(torch.ones(1, 2)).sum().backward()
        before = applied.notes
        optimizer.step()
    assert not before and applied.notes == (
        "chunked-loss: no large loss over classes was computed.",
        "8-bit-state: SGD is not torch's Adam or AdamW.",
    )


def test_optimizers_are_fused_before_they_have_state() -> None:
    early, late, other = (nn.Linear(2, 2) for _ in range(3))
    optimizers = [
        torch.optim.AdamW(early.parameters()),
        torch.optim.AdamW(late.parameters()),
        torch.optim.RMSprop(other.parameters()),
    ]
    late.weight.grad = torch.ones(2, 2)
    optimizers[1].step()
    for model in (early, late, other):
        model.weight.grad = torch.ones(2, 2)
    with AppliedChanges(["fused-optimizer"]) as applied:
        assert not applied.notes
        for optimizer in optimizers:
            optimizer.step()
    assert applied.notes == ("fused-optimizer is foreach=False here: RMSprop can use no fused form.",)
    assert [optimizer.param_groups[0].get("fused") for optimizer in optimizers] == [True, None, None]
    assert [optimizer.param_groups[0]["foreach"] for optimizer in optimizers] == [False, None, False]


def test_weights_are_converted_and_the_optimizer_knows_them() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with AppliedChanges(["bf16-weights"]):
        model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert model.weight is optimizer.param_groups[0]["params"][0]
    assert model.weight.dtype == optimizer.state[model.weight]["exp_avg"].dtype == torch.bfloat16


@pytest.mark.parametrize("fails", [False, True])
def test_autocast_is_on_in_calls_alone(fails: bool) -> None:
    seen: list[bool] = []

    class Seeing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            if fails:
                raise ValueError
            return x

    model = nn.Sequential(nn.Linear(1, 1), Seeing(), Seeing())
    with AppliedChanges(["bf16"]):
        try:
            model(torch.ones(1))
        except ValueError:
            assert fails
        assert not torch.is_autocast_enabled("cpu")
    assert seen == [True] * (1 if fails else 2)


# ---- operations of a step, by hand -----------------------------------------------------------------------------------


def counted(name: str, *args: object, out: object = None) -> int:
    return flops_of(f"aten::{name}", args, {}, out)


def test_a_matrix_product_has_two_operations_for_each_product_of_numbers() -> None:
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    assert counted("mm", a, b, out=a @ b) == 2 * 3 * 5 * 7


def test_one_of_complex_numbers_has_four_times_as_many() -> None:
    a, b = (torch.zeros(2, 3, 5, dtype=torch.complex64), torch.zeros(2, 5, 7, dtype=torch.complex64))
    assert counted("bmm", a, b, out=a @ b) == 4 * 2 * 2 * 3 * 5 * 7


def test_a_transform_has_five_n_log_n_and_a_real_one_half() -> None:
    real, whole = torch.zeros(3, 16, 8), torch.zeros(3, 16, 8, dtype=torch.complex64)
    half = torch.fft.rfft2(real)
    count = 5 * 3 * 128 * math.log2(128)
    assert counted("_fft_c2c", whole, [1, 2], 0, True, out=whole) == count
    assert counted("_fft_r2c", real, [1, 2], 0, True, out=half) == count / 2
    assert counted("_fft_c2r", half, [1, 2], 0, 8, out=real) == count / 2


def test_what_has_no_formula_counts_nothing() -> None:
    one = torch.zeros(3)
    assert counted("relu", one, out=one) == 0
    assert flops_of("mine::mm", (one, one), {}, one) == 0


# ---- a script's DistributedDataParallel: made by whom is asked to, and sharded in its place --------------------------


def test_what_makes_it_is_given_all_arguments_by_name() -> None:
    original, seen = DistributedDataParallel.__init__, []

    def make(own: Callable[..., None], bound: inspect.BoundArguments) -> None:
        seen.append((own, bound.arguments))

    model = nn.Linear(1, 1)
    with pytest.raises(KeyError), parallel_made(make):
        made = DistributedDataParallel(model, bucket_cap_mb=1)
        raise KeyError
    assert DistributedDataParallel.__init__ is original
    ((own, arguments),) = seen
    assert own is original and arguments == {"self": made, "module": model, "bucket_cap_mb": 1}


@pytest.mark.slow
def test_two_ranks_train_the_same_and_have_half_of_it_each(tmp_path: Path) -> None:
    done = run_python("-m", "tests.changes.sharded_ranks", tmp_path, folder=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights_agree"] and found["is_parallel"]
    assert (found["num_parts"], found["share"]) == (6, 0.5)
    assert found["notes"] == ["bucket-views: no DistributedDataParallel was made that copies gradients."]
    assert (
        found["error"]
        == "shard: the optimizer was made before DistributedDataParallel, with parameters that are whole."
    )
