"""Rehearsals of a few programs worked out by hand: what is allocated, when it is freed, what CUDA's rules change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracer.capture.torch_private import torch_fake
from tracer.errors import RehearsalError
from tracer.rehearsal.cuda_rules import RULE_NAMES, RULES
from tracer.rehearsal.device_memory import reserved_spread, serve
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.units import MIB
from tracer.workloads.module_steps import StepWorkload

CPU = torch.device("cpu")


def rehearsed(step: Any, model: nn.Module, optimizer: Any = None, **options: Any) -> Rehearsal:
    return rehearse(StepWorkload(step, model, optimizer, CPU), **options)


def sizes(done: Rehearsal, step: int) -> list[int]:
    """Bytes of the allocations and frees of one step."""
    mine = done.requests.step == step
    found: list[int] = done.requests.size_bytes[mine].tolist()
    return found


def test_a_step_by_hand() -> None:
    """x [4, 8] floats: 128 B; the layer's output [4, 2]: 32 B; relu's: 32 B; its sum: 4 B."""
    model = nn.Linear(8, 2, bias=False)

    def step() -> None:
        x = torch.ones(4, 8)
        y = torch.relu(model(x))
        del x
        y.sum()

    done = rehearsed(step, model, device="cpu", num_steps=2)
    # The output of the layer is freed when relu has made its own, which keeps its result and not its argument.
    assert sizes(done, 1)[:5] == [128, 32, 32, -32, 4]
    assert sum(sizes(done, 1)) == 0
    assert done.requests.size_bytes[done.requests.step < 0].tolist() == [64]


def test_hooks_of_parameters_are_called_as_in_a_run() -> None:
    """An optimizer that steps as each gradient comes: of four layers [32, 32] only one gradient is alive at a time."""
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(4)))
    seen: list[tuple[int, ...]] = []
    handles = [
        weight.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
        for weight in model.parameters()
    ]
    handles += [weight.register_hook(lambda grad: seen.append(tuple(grad.shape))) for weight in model.parameters()]

    def step() -> None:
        model(torch.ones(1, 32)).sum().backward()

    done = rehearsed(step, model, device="cpu", num_steps=2)
    assert seen == [(32, 32)] * 4 * 2
    of_weights = done.requests.size_bytes[(done.requests.step == 1) & (abs(done.requests.size_bytes) == 32 * 32 * 4)]
    assert of_weights.cumsum().max() == 32 * 32 * 4
    for handle in handles:
        handle.remove()
    rehearsed(step, model, device="cpu", num_steps=1)
    assert len(seen) == 8


def test_what_a_program_made_before_is_there_as_long_as_it_is_held() -> None:
    """A batch [4, 8] in a variable: 128 B, asked for once; a piece of a data set only while something reads it."""
    model = nn.Linear(8, 2, bias=False)
    held, data = [torch.ones(4, 8)], torch.ones(1024, 8)

    def step() -> None:
        model(held[0])

    done = rehearsed(step, model, device="cpu", num_steps=3)
    is_batch = abs(done.requests.size_bytes) == 128
    assert done.requests.size_bytes[is_batch].tolist() == [128]
    held.clear()
    done = rehearsed(lambda: model(data[:4]), model, device="cpu", num_steps=2)
    assert abs(done.requests.size_bytes).max() == 128


def test_every_rule_is_described() -> None:
    described = (Path(__file__).parents[2] / "docs" / "predict-inside.md").read_text("utf-8")
    for rule in RULES:
        assert f"| {rule.name} | {rule.does} | {rule.source} |" in described


def test_gradients_of_one_tensor_are_added_in_place() -> None:
    """Two uses of h give two gradients of it, [64, 64] floats; the engine adds the second to the first."""
    weight = nn.Parameter(torch.zeros(64, 64))
    model = nn.ParameterList([weight])

    def step() -> None:
        h = weight * 2.0
        (torch.relu(h) + torch.sigmoid(h)).sum().backward()  # type: ignore[no-untyped-call]
        weight.grad = None

    done = rehearsed(step, model, device="cpu", num_steps=2)
    op_of = dict(enumerate(done.whole.strings[name] for name in done.whole.ops.name.tolist()))
    makers = [
        op_of[op]
        for op, size in zip(done.requests.op.tolist(), done.requests.size_bytes.tolist(), strict=True)
        if size == 64 * 64 * 4 and op >= 0
    ]
    assert "aten::add" in makers  # that of forward
    assert makers.count("aten::add") == 2  # one a step


def test_optimizer_state_is_of_the_first_step() -> None:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    done = rehearsed(step, model, optimizer, device="cpu")
    weight = 64 * 64 * 4
    assert sum(sizes(done, 0)) == 2 * weight + 4  # two averages and the number of steps
    assert sum(sizes(done, 1)) == sum(sizes(done, 2)) == 0
    assert sizes(done, 1) == sizes(done, 2)


def test_pieces_of_a_data_set_are_what_counts_of_it() -> None:
    model, data = nn.Linear(8, 2, bias=False), torch.zeros(10_000, 8)
    done = rehearsed(lambda: model(data[:4]), model, device="cpu", num_steps=1)
    assert done.memory.peak_requested_bytes == 64 + 128 + 32


def test_the_program_hears_of_numbers_and_it_is_said() -> None:
    model = nn.Linear(8, 2)

    def step() -> None:
        y = model(torch.ones(4, 8))
        while float(y.sum()) > 2.0:
            y = y * 0.5
        if y[0, 0] > 0:
            y = y + 1.0
        y[y > 0].sum()

    read = {(each.line - step.__code__.co_firstlineno, each.answer) for each in rehearsed(step, model).value_reads}
    assert read == {(2, "1.0"), (4, "False"), (6, "all")}


def test_a_number_is_formatted_as_it_is_read() -> None:
    model, shown = nn.Linear(8, 2), []

    def step() -> None:
        loss = model(torch.ones(4, 8)).sum()
        shown.append(f"{loss:.3f} {loss}")

    read = {(one.line - step.__code__.co_firstlineno, one.answer) for one in rehearsed(step, model).value_reads}
    assert read == {(2, "1.0")} and shown == ["1.000 1.0"] * 3


def test_a_number_drawn_between_bounds_is_the_largest_of_them() -> None:
    model, read = nn.Linear(8, 2), []

    def step() -> None:
        chosen = (4, 8, 16)[int(torch.empty(1).uniform_(0.0, 3.0).item())]
        other = torch.rand(1)
        other.add_(5.0)
        drawn = (int(torch.rand(()).item() * 5), torch.randint(2, 5, (1,)).item(), torch.randint(7, (1,)).item())
        read.append((chosen, *drawn, torch.empty(1).random_(2, 9).item(), other.item()))
        model(torch.ones(chosen, 8)).sum()

    rehearsed(step, model)
    assert set(read) == {(16, 4, 4, 6, 8, 1.0)}


def test_a_model_of_several_processes_is_refused() -> None:
    class DistributedDataParallel(nn.Sequential):
        """As torch's own, which needs a group of processes to be made."""

    model = DistributedDataParallel(nn.Linear(8, 2))
    with pytest.raises(RehearsalError, match="it has a DistributedDataParallel") as caught:
        rehearsed(lambda: model(torch.ones(4, 8)), model)
    assert caught.value.hint is not None and "null GPU" in caught.value.hint


def test_a_triton_kernel_is_refused_with_the_line() -> None:
    def step() -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    with pytest.raises(RehearsalError, match=r"launches a Triton kernel.*test_rehearse\.py:\d+"):
        rehearsed(step, nn.Linear(8, 2))


def test_an_operator_without_a_fake_kernel_is_named_with_the_line() -> None:
    @torch.library.custom_op("tracer_tests::unknown", mutates_args=())
    def unknown(x: Tensor) -> Tensor:
        return x.clone()

    model = nn.Linear(8, 2)
    with pytest.raises(RehearsalError, match=r"unknown has no fake kernel.*test_rehearse\.py:\d+") as caught:
        rehearsed(lambda: unknown(model(torch.ones(4, 8))), model)
    assert "register_fake" in caught.value.hint


def test_a_compiled_model_is_rehearsed_as_an_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    compiled: Any = torch.compile(model)
    eager = rehearsed(lambda: model(torch.ones(4, 8)), model).memory
    same = rehearsed(lambda: compiled(torch.ones(4, 8)), compiled).memory
    # What calls the compiled model may hold on to a tensor for longer.
    assert 0 <= same.peak_requested_bytes - eager.peak_requested_bytes <= 4 * 16 * 4


def test_the_model_holds_no_memory_afterwards_and_is_the_same_object() -> None:
    model = nn.Linear(8, 2)
    weight, optimizer = model.weight, torch.optim.AdamW(model.parameters())
    rehearsed(lambda: model(torch.ones(4, 8)), model, optimizer)
    assert model.weight is weight and optimizer.param_groups[0]["params"][0] is weight
    assert isinstance(weight, nn.Parameter) and weight.requires_grad
    assert torch_fake.is_fake(weight)


# ---- CUDA's rules ----------------------------------------------------------------------------------------------------


def test_rules_have_names_sources_and_words() -> None:
    assert len(set(RULE_NAMES)) == len(RULES)
    assert all(rule.source and rule.does.endswith(".") for rule in RULES)


def _requested(rules: set[str]) -> int:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(256, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return rehearsed(step, model, optimizer, device="cuda", rules=rules).memory.peak_requested_bytes


def test_every_rule_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    none = _requested(set())
    assert _requested({"cublas-workspace"}) == none + 2 * 8_519_680
    assert _requested({"dropout-mask"}) == none - 256 * 64 * 3  # a byte an element instead of four


# ---- the allocator ---------------------------------------------------------------------------------------------------


def test_it_runs_out_at_the_request_that_does_not_fit() -> None:
    model = nn.Linear(1024, 1024, bias=False)  # 4 MiB

    def step() -> None:
        x = torch.ones(1024, 1024)
        torch.relu(model(x))

    done = rehearsed(step, model, device="cuda", rules=())
    # Weight, x and the layer's output: 4 MiB each, of a segment of 20 MiB each five.
    assert done.memory.peak_reserved_bytes == 20 * MIB
    assert done.on_device(capacity_bytes=20 * MIB).failure is None
    failure = done.on_device(capacity_bytes=19 * MIB).failure
    assert failure is not None and failure.request == 0
    spread = reserved_spread(done.requests, done.memory)
    assert spread.low_bytes <= done.memory.peak_reserved_bytes <= spread.high_bytes
    again = serve(done.requests)
    assert again.peak_allocated_bytes == done.memory.peak_allocated_bytes == again.allocated_bytes.max()
