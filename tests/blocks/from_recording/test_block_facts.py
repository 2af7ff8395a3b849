"""Whole programs in which kinds are told by what backward used, by where data came from and by who called."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.histories import START_NS, Key, recording_of
from tests.training_steps import record
from tracer.answers.findings import CycleFindings
from tracer.answers.recording_findings import find_in_cycle
from tracer.answers.rows import Row
from tracer.blocks.from_recording.block_facts import Facts, dropout_states
from tracer.blocks.from_recording.blocks import categories_at
from tracer.blocks.from_recording.origins import CompiledOrigins
from tracer.blocks.kinds import Kind
from tracer.blocks.table import Phase
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.storage_observer import StorageObserver, input_tensors
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import DataFlow, Ops, Recording


def findings(
    step: Callable[[], object], *, model: nn.Module | None = None, known: KnownStorages | None = None
) -> CycleFindings:
    names = {id(module): name for name, module in model.named_modules()} if model is not None else None
    recording = read_recording(record(step, n_active=2)[0])
    return find_in_cycle(recording, module_names=names, known=known)


def kinds_of(cycle: CycleFindings, size_bytes: int) -> Counter[Kind]:
    """Kinds of all blocks of a size, alive at the peak or not."""
    mine = cycle.blocks.size_bytes == size_bytes
    return Counter(Kind(kind) for kind in cycle.blocks.kind[mine].tolist())


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        waves = x[:, None] * torch.ones(50, 1)
        waves = torch.cat([waves.sin(), waves.cos()], -1)
        return self.head(waves).mean(1)  # type: ignore[no-any-return]


def test_what_is_computed_from_inputs_alone_is_no_input() -> None:
    model = Features()

    def step() -> None:
        x, y = torch.randn(10, 32), torch.randn(10, 4)
        F.mse_loss(model(x), y).backward()
        model.zero_grad()

    cycle = findings(step, model=model)
    assert kinds_of(cycle, 10 * 32 * 4) == {Kind.INPUT: 2}
    assert kinds_of(cycle, 10 * 50 * 64 * 4)[Kind.INPUT] == 0
    # Of waves, sines and cosines backward uses none; the linear layer keeps what they are put together to.
    assert kinds_of(cycle, 10 * 50 * 32 * 4) == {Kind.TEMPORARY: 6}
    assert kinds_of(cycle, 10 * 50 * 64 * 4)[Kind.ACTIVATION] == 2


def test_what_was_there_before_is_held_where_a_walk_found_it_and_else_not_known() -> None:
    data, hidden, observer = torch.randn(100, 32), torch.randn(200, 32), StorageObserver()
    model = nn.Linear(32, 4)
    observer.observe([(Role.HELD, "", data)])

    def step() -> None:
        model(data[:10] + hidden[:10]).sum().backward()
        model.zero_grad()

    cycle = findings(step, model=model, known=observer.observations())
    assert kinds_of(cycle, 100 * 32 * 4) == {Kind.HELD: 1}
    assert kinds_of(cycle, 200 * 32 * 4) == {Kind.BEFORE_RECORDING: 1}


def test_what_the_loop_computes_for_the_model_is_no_input_and_its_batch_is() -> None:
    model = nn.Linear(32, 8)
    observer = StorageObserver()

    def hook(module: nn.Module, args: Any) -> None:
        observer.observe(input_tensors(args, role=Role.ARGUMENT))

    model.register_forward_pre_hook(hook)

    def step() -> None:
        images = torch.randn(16, 32)
        noisy = images * 0.5 + torch.randn_like(images)
        # Here is the peak, whatever garbage of the step before is still there.
        torch.empty(8192)
        model(noisy).square().mean().backward()
        model.zero_grad()

    recording = read_recording(record(step, n_active=2)[0])
    cycle = find_in_cycle(recording, known=observer.observations())
    rows = {row.op: row.category for row in cycle.peak.rows if row.bytes == 16 * 32 * 4 and row.phase == "other"}
    assert rows["aten::add"] == "ACTIVATION" and rows["aten::randn"] == "INPUT"


def test_a_number_that_went_from_a_gradient_to_a_block_of_another_size_makes_it_none() -> None:
    """As a gradient from before the recording leaves its address and number, whose end no profiler sees."""
    model, kept = nn.Linear(32, 8), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.randn(4, 32)).sum().backward()
        kept[:] = [torch.zeros(3000), torch.zeros(8, 32)]
        optimizer.step()
        optimizer.zero_grad()

    recording = read_recording(record(step, n_active=2)[0])
    by_loop = [number for number, text in enumerate(recording.strings) if text in ("aten::zeros", "aten::empty")]
    for size_bytes, num_gradients in ((3000 * 4, 0), (8 * 32 * 4, 2)):
        made = (recording.allocations.size_bytes == size_bytes) & (recording.allocations.key >= 0)
        made &= np.isin(recording.ops.name[recording.allocations.op], by_loop)
        keys = recording.allocations.key[made]
        listed = replace(recording, gradient_keys=np.union1d(recording.gradient_keys, keys))
        found = kinds_of(find_in_cycle(listed), size_bytes), kinds_of(find_in_cycle(recording), size_bytes)
        assert len(keys) == 2 and found[0][Kind.GRADIENT] - found[1][Kind.GRADIENT] == num_gradients


def test_pieces_of_a_batch_are_not_the_batch() -> None:
    model = nn.Linear(32, 8)

    def step() -> None:
        rows = [torch.randn(4, 32) for _ in range(4)]
        model(torch.stack(rows)).square().mean().backward()
        model.zero_grad()

    cycle = findings(step, model=model)
    assert kinds_of(cycle, 4 * 4 * 32 * 4)[Kind.INPUT] == 2
    assert kinds_of(cycle, 4 * 32 * 4)[Kind.INPUT] == 0


def test_a_data_set_is_no_input_and_a_full_batch_is() -> None:
    model, data, target = nn.Linear(32, 8), torch.randn(100, 32), torch.randn(10, 8)

    def step() -> None:
        F.mse_loss(model(data[torch.randperm(100)[:10]]), target).backward()
        model.zero_grad()

    cycle = findings(step, model=model)
    assert kinds_of(cycle, 100 * 32 * 4) == {Kind.BEFORE_RECORDING: 1}
    assert kinds_of(cycle, 10 * 32 * 4) == {Kind.INPUT: 2}
    assert kinds_of(cycle, 10 * 8 * 4)[Kind.INPUT] == 1


def test_evaluation_is_evaluation_and_a_hooks_clones_are_held() -> None:
    model, kept = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), list[Tensor]()
    model[1].register_forward_hook(lambda module, args, output: kept.append(output.detach().clone()))

    def step() -> None:
        model(torch.randn(16, 32)).square().mean().backward()
        model.zero_grad()
        with torch.no_grad():
            model(torch.randn(100, 32))

    cycle = findings(step, model=model)
    assert set(kinds_of(cycle, 100 * 64 * 4)) == {Kind.EVALUATION}
    found = kinds_of(cycle, 16 * 64 * 4)
    assert (found[Kind.HELD], found[Kind.EVALUATION]) == (2, 0)
    assert found[Kind.ACTIVATION] == 2  # ReLU's result; its input is let go of


def test_what_a_second_backward_needs_is_kept_and_belongs_to_its_module() -> None:
    critic = nn.Sequential(nn.Linear(16, 64), nn.Softplus(), nn.Linear(64, 1))

    def step() -> None:
        x = torch.randn(32, 16, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        critic.zero_grad()

    cycle = findings(step, model=critic)
    in_backward = (cycle.blocks.size_bytes == 32 * 64 * 4) & (cycle.blocks.phase == Phase.BACKWARD)
    modules = {cycle.blocks.value(at) for at in cycle.blocks.module[in_backward].tolist()}
    assert modules == {"0", "1", "2"}
    assert Kind.ACTIVATION in cycle.blocks.kind[in_backward]
    # Siblings that backward makes on its way are one kind, whichever of them one node made and freed.
    assert set(cycle.blocks.kind[in_backward].tolist()) == {Kind.ACTIVATION, Kind.AUTOGRAD_DETAIL}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        scratch = torch.zeros(50_000)
        return gradients[0] * 2 + scratch[0]


def test_python_in_backward_has_lines_of_its_own() -> None:
    weight = torch.randn(8, 8, requires_grad=True)

    def hook(gradient: Tensor) -> Tensor:
        return gradient + torch.zeros(60_000)[0]

    weight.register_hook(hook)

    def step() -> None:
        (Doubled.apply(torch.randn(4, 8) @ weight)).sum().backward()
        weight.grad = None

    cycle = findings(step)
    blocks, frames = cycle.blocks, cycle.source.recording.frames
    lines = {
        size: {int(frames.line[at]) for at in blocks.frame[blocks.size_bytes == size].tolist()}
        for size in (200_000, 240_000)
    }
    assert lines == {200_000: {line_of(Doubled.backward, "zeros")}, 240_000: {line_of(hook, "zeros")}}
    assert kinds_of(cycle, 240_000) == {Kind.AUTOGRAD_DETAIL: 2}


def test_an_optimizer_inside_backward_is_the_optimizer() -> None:
    model = nn.Linear(64, 32)
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def hook(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    cycle = findings(lambda: model(torch.randn(8, 64)).square().mean().backward(), model=model)
    size = cycle.blocks.size_bytes == 64 * 32 * 4
    by_phase = Counter(zip(cycle.blocks.phase[size].tolist(), cycle.blocks.kind[size].tolist(), strict=True))
    assert by_phase[Phase.OPTIMIZER, Kind.TEMPORARY] > 0
    assert by_phase[Phase.BACKWARD, Kind.GRADIENT] == 2  # one in each step, and none of Adam's scratch memory
    optimizing = cycle.blocks.phase == Phase.OPTIMIZER
    lines = {int(cycle.source.recording.frames.line[at]) for at in cycle.blocks.frame[optimizing].tolist() if at >= 0}
    assert lines <= {line_of(hook, "step()"), line_of(hook, "zero_grad()")} and lines


def test_resized_storages_that_share_an_id_are_no_gradients() -> None:
    weight = torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        out = torch.empty(0)
        x = torch.randn(32, 64)
        for _ in range(2):
            with torch.no_grad():
                torch.mul(x, 2.0, out=out.resize_(0))
        (x @ weight).square().mean().backward()
        weight.grad = None

    cycle = findings(step)
    gradients = cycle.blocks.kind == Kind.GRADIENT
    assert set(cycle.blocks.phase[gradients].tolist()) <= {Phase.BACKWARD}


def test_rows_know_shape_and_dtype() -> None:
    model = nn.Linear(32, 8).to(torch.bfloat16)

    def step() -> None:
        model(torch.randn(16, 32, dtype=torch.bfloat16)).square().mean().backward()
        model.zero_grad()

    rows: tuple[Row, ...] = findings(step, model=model).peak.rows
    known = {(row.category, row.shape, row.dtype) for row in rows}
    assert {("PARAMETER", (8, 32), "bfloat16"), ("INPUT", (16, 32), "bfloat16")} <= known


def test_the_model_itself_goes_by_its_class() -> None:
    model = Features()

    def step() -> None:
        model(torch.randn(10, 32)).sum().backward()
        model.zero_grad()

    assert set(findings(step, model=model).source.attribution.modules) == {"Features", "head"}


class WithUnused(nn.Module):
    """A layer, and a weight that no operator is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(32, 8), nn.Parameter(torch.randn(300, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("has_compiled", [False, True])
def test_what_no_operator_uses_is_over_unless_compiled_code_may_use_it(has_compiled: bool) -> None:
    """What compiled code reads, no operator reads."""
    model = WithUnused()

    def step() -> None:
        model(torch.randn(16, 32)).square().mean().backward()
        model.zero_grad()

    cycle = findings(step, model=model)
    recording = cycle.source.recording
    none = np.full(len(recording.allocations.time_ns), -1, np.int64)
    attribution = replace(cycle.source.attribution, origins=CompiledOrigins((), none, none) if has_compiled else None)
    end_ns = int(recording.allocations.time_ns[-1])
    category = categories_at(recording, cycle.source.categories, cycle.source.lifetimes, end_ns)
    table = Facts(recording, cycle.source.categories, attribution, cycle.source.lifetimes, category, None, end_ns)
    unused = cycle.blocks.size_bytes == 300 * 32 * 4
    assert table.is_over[unused].tolist() == [not has_compiled]


@pytest.mark.parametrize(("points", "kinds"), [(48, {Kind.GRADIENT, Kind.AUTOGRAD_DETAIL}), (64, {Kind.GRADIENT})])
def test_the_gradient_of_what_is_no_parameter_is_none_of_the_parameters(points: int, kinds: set[Kind]) -> None:
    """As of WGAN-GP's interpolates, a leaf that keeps a gradient; one as long as a parameter may be the parameter's."""
    model = nn.Linear(96, 64)

    def step() -> None:
        between = torch.ones(points, 96, requires_grad=True)
        score = model(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
        (score.mean() + (slope.norm(2, dim=1) - 1).square().mean()).backward()
        model.zero_grad()

    cycle = findings(step)
    is_accumulated = np.isin(cycle.source.lifetimes.key, cycle.source.recording.gradient_keys)
    accumulated = set(map(Kind, cycle.blocks.kind[is_accumulated].tolist()))
    assert Kind.GRADIENT in kinds_of(cycle, 96 * 64 * 4)
    assert accumulated == kinds


def given_to(operator: str, dtypes: list[str], *, allocated: bool = False) -> Recording:
    """A recording of one operator that is given a storage of each type."""
    keys = [Key(100 * number, 8, number) for number in range(len(dtypes))]
    recording = recording_of([], keys)
    names = list(Ops.__dataclass_fields__)
    row = dict.fromkeys(names, -1) | {"name": 0, "kind": 0, "start_ns": START_NS - 5, "end_ns": START_NS + 5}
    none = np.zeros(len(keys), bool)
    return replace(
        recording,
        strings=(operator, *dtypes),
        ops=Ops(*(np.array([row[name]]) for name in names)),
        keys=replace(recording.keys, dtype=np.arange(1, len(keys) + 1)),
        flow=DataFlow(
            np.array([START_NS]), np.array([False]), np.zeros(len(keys), np.int64), np.arange(len(keys)),
            none | allocated, none, none,
        ),
    )  # fmt: skip


def test_bytes_that_a_recurrent_layer_is_given_are_its_dropouts_state() -> None:
    assert dropout_states(given_to("aten::lstm", ["float32", "uint8", "float32"])).tolist() == [False, True, False]
    assert dropout_states(given_to("aten::gru", ["uint8"])).tolist() == [True]


def test_what_the_layer_makes_and_bytes_of_others_are_none() -> None:
    assert dropout_states(given_to("aten::lstm", ["uint8"], allocated=True)).tolist() == [False]
    assert dropout_states(given_to("aten::embedding", ["uint8"])).tolist() == [False]
    assert dropout_states(recording_of([], [Key(100, 8, 1)])).tolist() == [False]
