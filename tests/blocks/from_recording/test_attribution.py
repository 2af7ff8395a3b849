"""Owners of operators and allocations, and of the buffers of collectives."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.fno_workload import FnoSettings, build_fno_workload
from tests.exporters.recording_file.samples import kept_on_cpu
from tests.skips import by_default
from tests.training_steps import ONE_OF_EACH, build_workload, each_workload, record
from tests.truth.isolate import value_in_fresh_process
from tracer.answers.findings import CycleFindings
from tracer.answers.recording_findings import find_in_cycle
from tracer.answers.rows import Row
from tracer.arrays import Bools
from tracer.blocks.from_recording.attribution import attribute, backward_calls, closure_calls
from tracer.blocks.kinds import Kind
from tracer.blocks.table import Phase
from tracer.capture.objects.training_objects import Models
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.capture.torch_names import makes_buckets, makes_collectives_buffers, modules_of_collective
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

# ---- Modules, lines, phases and steps of what small programs allocate, each known by construction.
ONE_CYCLE = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=3, num_repeats=1)


def profiled(
    model: nn.Module, step: Callable[[], object], optimizer: torch.optim.Optimizer | None = None
) -> CycleFindings:
    with ProfileSession(model, optimizer, schedule=ONE_CYCLE) as session:
        for _ in range(ONE_CYCLE.num_steps):
            step()
            session.step()
    return session.findings.worst


def line_of(function: Callable[..., object], text: str) -> int:
    """Number of the one line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    numbers = [first + offset for offset, line in enumerate(lines) if text in line]
    assert len(numbers) == 1, (text, numbers)
    return numbers[0]


def rows_of_size(findings: CycleFindings, size_bytes: int) -> list[Row]:
    return [row for row in findings.peak.rows if row.bytes == size_bytes * row.count]


# ------------------------------------------------------------------------------------------------- lines and modules
class Named(nn.Module):
    """Every block it makes has a size of its own, so that a test can tell which one it looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(10, 30)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        wide = torch.cat([h, h[:, :1]], dim=1)
        return wide * wide


def test_a_block_carries_the_module_and_the_line_that_made_it() -> None:
    model = Named()

    def step() -> None:
        model(torch.randn(7, 10)).sum().backward()
        model.zero_grad()

    findings = profiled(model, step)
    # [7, 31] floats of cat, saved by the product, and the product itself, which `sum` does not keep.
    cat = [row for row in rows_of_size(findings, 7 * 31 * 4) if row.op == "aten::cat"]
    assert [(row.module, row.line) for row in cat] == [("Named", line_of(Named.forward, "torch.cat"))]
    assert all(row.file == __file__ for row in cat)
    assert {row.category for row in cat} == {"ACTIVATION"}


class Twice(nn.Module):
    """One linear layer called at two places, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tied = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        first = torch.sigmoid(self.layer(x))
        second = torch.sigmoid(self.layer(first))
        return torch.sigmoid(self.tied(second))


def test_a_module_used_twice_and_a_shared_weight_are_counted_at_each_place_once() -> None:
    model = Twice()

    def step() -> None:
        model(torch.randn(5, 16)).sum().backward()
        model.zero_grad()

    findings = profiled(model, step)
    # Other tests' models are alive too; their names begin with a class.
    weights = [row for row in findings.peak.rows if row.category == "PARAMETER" and str(row.name).startswith("layer")]
    assert [(row.bytes, row.count, row.name) for row in weights] == [(16 * 16 * 4, 1, "layer.weight")]
    recording, attribution = findings.source.recording, findings.source.attribution
    forward = attribution.op_node < 0
    lines = [
        int(recording.frames.line[attribution.op_frame[op]])
        for op in range(len(recording.ops.name))
        if forward[op] and recording.strings[recording.ops.name[op]] == "aten::sigmoid"
    ]
    assert lines == [line_of(Twice.forward, name) for name in ("first = ", "second = ", "return ")] * 3
    # Backward undoes them in the opposite order, each on its own line.
    backward = [
        int(recording.frames.line[attribution.op_frame[op]])
        for op in range(len(recording.ops.name))
        if recording.strings[recording.ops.name[op]] == "aten::sigmoid_backward"
    ]
    assert backward == [line_of(Twice.forward, name) for name in ("return ", "second = ", "first = ")] * 3


class Recomputing(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 512)
        self.narrow = nn.Linear(512, 8)
        self.use_reentrant = use_reentrant

    def block(self, x: Tensor) -> Tensor:
        return self.narrow(torch.tanh(self.wide(x)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.block, x, use_reentrant=self.use_reentrant)
        return y


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_is_work_of_backward_in_the_modules_own_lines(use_reentrant: bool) -> None:
    model = Recomputing(use_reentrant=use_reentrant)

    def step() -> None:
        model(torch.randn(64, 8, requires_grad=True)).sum().backward()
        model.zero_grad()

    findings = profiled(model, step)
    tanh = [row for row in findings.peak.rows if row.op == "aten::tanh"]
    assert tanh, findings.peak.rows
    for row in tanh:
        assert (row.phase, row.category) == ("backward", "ACTIVATION")
        assert row.evidence == "recomputed in backward by its module"
        assert row.line == line_of(Recomputing.block, "torch.tanh")
        assert row.module == "Recomputing"
    # What backward itself makes below tanh goes to tanh's line as well, and to the same module.
    gradients = [row for row in findings.peak.rows if row.op == "aten::tanh_backward"]
    assert all(row.line == line_of(Recomputing.block, "torch.tanh") for row in gradients)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        square = x * x
        return grad * (3 * square)


class Cubic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1000))

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.weight * x
        cubed: Tensor = Cube.apply(scaled)
        return cubed


def test_a_custom_functions_backward_belongs_to_the_module_that_applied_it() -> None:
    model = Cubic()

    def step() -> None:
        model(torch.randn(1000)).sum().backward()
        model.zero_grad()

    findings = profiled(model, step)
    ops, attribution, recording = findings.source.recording.ops, findings.source.attribution, findings.source.recording
    inside = [
        op
        for op in range(len(ops.name))
        if attribution.op_node[op] >= 0 and "CubeBackward" in recording.strings[ops.name[attribution.op_node[op]]]
    ]
    assert inside
    assert {attribution.modules[attribution.op_module[op]] for op in inside} == {"Cubic"}
    assert {recording.strings[ops.name[attribution.op_forward[op]]] for op in inside} == {"Cube"}


# ----------------------------------------------------------------------------------------------- laws on every model
QUICK = {"fno_2d_new_zeros", "checkpointing_reentrant", "lbfgs", "functional_model", "custom_function"}


@pytest.mark.parametrize("name", by_default([*ONE_OF_EACH, "custom_function"], QUICK))
def test_rows_sum_to_the_allocators_peak_and_say_where_they_come_from(name: str) -> None:
    workload = build_workload(name)
    findings = profiled(workload.model or nn.Module(), workload.step, workload.optimizer)
    peak = findings.peak
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == peak.allocator_peak_bytes
    above = [row for row in peak.rows if row.phase != "before recording"]
    named = ("INPUT", "OPTIMIZER_STATE", "GRADIENT")
    explained = [row for row in above if row.category in named or (row.module is not None and row.line is not None)]
    assert sum(row.bytes for row in explained) >= 0.99 * sum(row.bytes for row in above)


@each_workload
def test_parents_come_first_and_backward_goes_back_to_forward(name: str, recorded: Callable[[str], object]) -> None:
    recording = recorded(name).recordings[0]  # type: ignore[attr-defined]
    attribution = attribute(recording)
    for op, forward in enumerate(attribution.op_forward.tolist()):
        if forward >= 0:
            assert attribution.op_node[op] >= 0, "only backward operators have a forward one"
            assert recording.ops.start_ns[forward] < recording.ops.start_ns[op]
            assert recording.ops.sequence_number[forward] >= 0
    assert (attribution.op_phase[attribution.op_node >= 0] == Phase.BACKWARD).all()


# ------------------------------------------------------------------------------------------------- the FNO's numbers
def saved_by_an_fno(sizes: tuple[int, ...], modes: tuple[int, ...], *, batch: int, hidden: int, layers: int) -> int:
    """Bytes that autograd saves in a forward pass with one channel in and out, coordinates and a mean squared error.

    With A = 4BCN, H = 4B round(C/2) N and T = 8BCK bytes: lifting, (L - 1) (4A + 2H + T) + (2A + 2H + T) for the
    blocks, of which the last has no activation outside its MLP, projection and loss. K counts the kept modes.
    """
    per_channel = 4 * batch * math.prod(sizes)
    field, mlp = hidden * per_channel, 2 * round(hidden / 2) * per_channel
    spectrum = 8 * batch * hidden * math.prod((*modes[:-1], modes[-1] // 2 + 1))
    lifting = (1 + len(sizes) + 2 * 2 * hidden) * per_channel
    blocks = (layers - 1) * (4 * field + mlp + spectrum) + (2 * field + mlp + spectrum)
    return lifting + blocks + field + 2 * 2 * hidden * per_channel + 2 * per_channel


@pytest.mark.parametrize(
    ("sizes", "modes", "spectrum"),
    [
        pytest.param((32, 32), (8, 8), "new_zeros", marks=pytest.mark.slow),
        ((8, 8, 8), (4, 4, 4), "torch_zeros"),
    ],
)
def test_the_fnos_saved_activations_equal_the_closed_form(
    sizes: tuple[int, ...], modes: tuple[int, ...], spectrum: Any
) -> None:
    """What forward makes and backward frees is what autograd saved, but for the target, which the loop made."""
    settings = FnoSettings(
        batch_size=4, hidden_channels=16, in_channels=1, out_channels=1, n_layers=3,
        data_size=sizes, n_modes=modes, spectrum=spectrum,
    )  # fmt: skip
    workload = build_fno_workload(settings, device="cpu")

    def step() -> None:
        inputs, target = workload.next_batch()
        F.mse_loss(workload.model(inputs), target).backward()
        workload.optimizer_step()

    findings = profiled(workload.model, step, workload.optimizer)
    expected = saved_by_an_fno(sizes, modes, batch=4, hidden=16, layers=3)
    target_bytes = 4 * settings.batch_size * settings.out_channels * torch.Size(sizes).numel()
    lifetimes, attribution = findings.source.lifetimes, findings.source.attribution
    for step_index in range(len(attribution.step_names)):
        saved = 0
        for block, row in enumerate(lifetimes.allocation.tolist()):
            freed_at = int(lifetimes.freed_at[block])
            if row < 0 or freed_at == len(lifetimes.events) or attribution.allocation_step[row] != step_index:
                continue
            made = attribution.allocation_phase[row]
            freed = attribution.allocation_phase[lifetimes.events[freed_at]]
            if (made, freed) == (Phase.FORWARD, Phase.BACKWARD):
                saved += int(lifetimes.size_bytes[block])
        assert saved + target_bytes == expected


# ------------------------------------------------------------------------------------------------ why torch lost track
def test_what_called_this_program_explains_nothing() -> None:
    """Here it is a file of the tests, as a package's: its lines would be named where no user's code is."""
    recording = kept_on_cpu().cycles[0].recording
    frames = recording.frames

    def files(own: Bools) -> set[str]:
        nobodys = replace(frames, user=np.zeros(len(own), bool), own=own)
        rows = np.unique(attribute(replace(recording, frames=nobodys)).op_frame)
        return {recording.strings[frames.file[row]] for row in rows.tolist() if row >= 0}

    assert frames.own.any() and not (frames.own & frames.user).any()
    assert not [file for file in files(frames.own) if file.endswith("samples.py")]
    assert [file for file in files(np.zeros_like(frames.own)) if file.endswith("samples.py")]


TWO_STEPS = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=2, num_repeats=1)


class Descent(torch.optim.Optimizer):
    """Somebody's own: `step` is not torch's code."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.mul(0.1))
        return loss


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "AdamW": torch.optim.AdamW,
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, max_iter=2),
    "LBFGS, strong Wolfe": lambda parameters: torch.optim.LBFGS(parameters, max_iter=2, line_search_fn="strong_wolfe"),
    "somebody's own": Descent,
}


def model_and_step(optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Module, Any, Callable[[], None]]:
    """A closure that prepares its batch, zeroes, and whose backward holds most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 4))
    optimizer = optimizer_of(model.parameters())

    def step() -> None:
        images, labels = torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,))

        def closure() -> Tensor:
            target = F.one_hot(labels, 4).float()
            loss = F.cross_entropy(model(images.clamp(-1, 1)), target)
            optimizer.zero_grad()
            loss.backward()
            return loss

        optimizer.step(torch.enable_grad()(closure))  # type: ignore[arg-type]

    return model, optimizer, step


def recorded(step: Callable[[], None]) -> Recording:
    torch.set_num_threads(1)
    return read_recording(record(step, n_active=2)[0])


def phases_of(recording: Recording, op: str) -> set[str]:
    found = attribute(recording)
    named = [row for row, name in enumerate(recording.ops.name.tolist()) if recording.strings[name] == op]
    return {Phase(found.op_phase[row]).name for row in named if recording.ops.parent[row] < 0}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_closure_does_is_not_the_optimizers_work(name: str) -> None:
    _, _, step = model_and_step(OPTIMIZERS[name])
    recording = recorded(step)
    for op in ("aten::clamp", "aten::one_hot"):
        assert phases_of(recording, op) == {"OTHER"}
    assert phases_of(recording, "aten::conv2d") == {"FORWARD"}
    assert phases_of(recording, "autograd::engine::evaluate_function: ConvolutionBackward0") <= {"BACKWARD"}
    findings = find_in_cycle(recording, device="cpu")
    assert findings.peak.phase in ("forward", "backward")  # oneDNN's own memory decides which
    assert all(row.phase != "optimizer" for row in findings.peak.rows if row.op in ("aten::clamp", "aten::one_hot"))


def test_the_optimizers_own_work_stays_its_own() -> None:
    _, _, step = model_and_step(OPTIMIZERS["somebody's own"])
    assert phases_of(recorded(step), "aten::sub_") == {"OPTIMIZER"}
    _, _, step = model_and_step(OPTIMIZERS["LBFGS"])
    assert "OPTIMIZER" in phases_of(recorded(step), "aten::neg")


def test_each_backward_pass_has_its_closure() -> None:
    """LBFGS of `tests.training_steps` evaluates several times in a step; each evaluation is a call of its closure."""
    recording = recorded(build_workload("lbfgs").step)
    calls, closures = recording.calls, closure_calls(recording)
    names = {recording.strings[recording.frames.function[calls.function[row]]] for row in closures.tolist()}
    assert names == {"closure"}
    assert len(closures) == len(backward_calls(recording)) > 2


@pytest.mark.parametrize("name", ["zero_grad_at_start", "gradient_accumulation", "inference_mode"])
def test_a_loop_without_closure_has_none(name: str) -> None:
    assert not len(closure_calls(recorded(build_workload(name).step)))


# ---- gradients that are made during the optimizer's step -------------------------------------------------------------


@pytest.mark.parametrize("name", ["AdamW", "LBFGS, strong Wolfe", "somebody's own"])
def test_parameters_are_judged_after_the_closure_ran(name: str) -> None:
    """Gradients are let go of after each step, so before the next one there are none."""
    model, optimizer, step = model_and_step(OPTIMIZERS[name])
    model.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    optimizer.param_groups[0]["params"].append(model.idle)
    with ProfileSession(model, optimizer, schedule=TWO_STEPS) as session:
        for _ in range(TWO_STEPS.num_steps):
            step()
            optimizer.zero_grad()
            session.step()
    assert session.observed.without_gradient == ("idle",)


def test_without_a_closure_they_are_judged_before_the_optimizer_lets_go_of_them() -> None:
    class Forgetful(Descent):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    model = nn.Linear(4, 2)
    optimizer = Forgetful(model.parameters())
    with ProfileSession(model, optimizer, schedule=TWO_STEPS) as session:
        for _ in range(TWO_STEPS.num_steps):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            session.step()
    assert session.observed.without_gradient == ()


pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
WORLD_SIZE = 4
HIDDEN = 48
# Weight and bias of the layers of one of `blocks`, in bytes.
BLOCK_BYTES = 4 * (32 * HIDDEN + HIDDEN + HIDDEN * 32 + 32)


@contextmanager
def one_of_four() -> Iterator[None]:
    """This process is one of four; collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    yield
    dist.destroy_process_group()


@pytest.fixture
def four_ranks() -> Iterator[None]:
    with one_of_four():
        yield


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only one."""
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def blocks() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, HIDDEN), nn.Linear(HIDDEN, 32)) for _ in range(3)))


def train(
    model: nn.Module,
    *,
    models: Callable[[nn.Module], Models] = lambda model: model,
    also: Callable[[], object] = lambda: None,
) -> CycleFindings:
    """The findings of two steps, after two that nobody has recorded: DDP makes its buckets anew in the second."""
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.randn(16, 32)).square().mean().backward()
        also()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    with ProfileSession(models(model), optimizer, schedule=Schedule(0, 0, 2, 1)) as session:
        for _ in range(2):
            step()
            session.step()
    return session.findings.worst


def bytes_of(rows: list[Row], category: str) -> int:
    return sum(row.bytes for row in rows if row.category == category)


def modules_of(cycle: CycleFindings, kind: Kind) -> Counter[str]:
    """Bytes of all blocks of a kind by module, alive at the peak or not."""
    found: Counter[str] = Counter()
    chosen = cycle.blocks.kind == kind
    for module, size in zip(
        cycle.blocks.module[chosen].tolist(), cycle.blocks.size_bytes[chosen].tolist(), strict=True
    ):
        found[cycle.blocks.value(module) or ""] += size
    return found


def sharded(model: nn.Sequential, *, only_root: bool = False) -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in () if only_root else model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def test_shards_are_parameters_gradients_and_state() -> None:
    """In a process of its own: other tests keep parameters and optimizers, too."""
    rows, names = value_in_fresh_process(_peak_of_shards)
    local = 3 * BLOCK_BYTES // WORLD_SIZE
    assert bytes_of(rows, "PARAMETER") == local
    assert bytes_of(rows, "OPTIMIZER_STATE") == 2 * local + 4 * len(names)
    assert bytes_of(rows, "HELD") < 64  # losses
    named = {row.name: row.module for row in rows if row.category == "PARAMETER"}
    assert named == {name: name.rpartition(".")[0] for name in names}
    # What gradients are reduced to is the gradients of the shards.
    gradients = [row.name for row in rows if row.category == "GRADIENT" and row.bytes == BLOCK_BYTES // WORLD_SIZE]
    assert set(gradients) <= {"0.0.weight", "1.0.weight", "2.0.weight"} and gradients


def _peak_of_shards() -> tuple[list[Row], list[str]]:
    with one_of_four():
        model = sharded(blocks())
        return list(train(model).peak.rows), [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", by_default(["", "student"], {"student"}))
def test_what_is_gathered_and_reduced_has_the_module_that_it_is_of(four_ranks: None, name: str) -> None:
    model = sharded(blocks())
    cycle = train(model, models=lambda model: {name: model} if name else model)
    found = modules_of(cycle, Kind.COMMUNICATION)
    # Prefetching, one module's are gathered while another's backward runs: all three have as much. The last is not
    # gathered again in backward.
    prefix = f"{name}." if name else ""
    assert set(found) == {f"{prefix}0", f"{prefix}1", f"{prefix}2"}
    assert found[f"{prefix}0"] == found[f"{prefix}1"] >= found[f"{prefix}2"] >= 4 * BLOCK_BYTES


@pytest.mark.slow
def test_what_the_root_gathers_is_the_models(four_ranks: None) -> None:
    found = modules_of(train(sharded(blocks(), only_root=True)), Kind.COMMUNICATION)
    assert set(found) == {"FSDPSequential"}


@pytest.mark.slow
def test_one_rank_alone_copies_what_it_would_gather(alone: None) -> None:
    assert set(modules_of(train(sharded(blocks())), Kind.COMMUNICATION)) == {"0", "1", "2"}


def test_ddps_buckets_have_the_module_of_all_whose_gradients_they_carry(alone: None) -> None:
    cycle = train(nn.parallel.DistributedDataParallel(blocks()))
    rows = list(cycle.peak.rows)
    assert {row.module: row.bytes for row in rows if row.category == "COMMUNICATION"} == {"module": 3 * BLOCK_BYTES}
    assert bytes_of(rows, "UNKNOWN") == bytes_of(rows, "BEFORE_RECORDING") == 0


def test_buckets_that_a_communication_hook_has_seen_are_no_variables(alone: None) -> None:
    """C++ then keeps a tensor of Python's of each, and the garbage collector lists it."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = nn.parallel.DistributedDataParallel(blocks())
    model.register_comm_hook(None, allreduce_hook)
    assert modules_of(train(model), Kind.COMMUNICATION) == {"module": 3 * BLOCK_BYTES}


def test_buckets_that_are_the_gradients_are_gradients(alone: None) -> None:
    cycle = train(nn.parallel.DistributedDataParallel(blocks(), gradient_as_bucket_view=True))
    assert modules_of(cycle, Kind.COMMUNICATION) == {}
    assert bytes_of(list(cycle.peak.rows), "GRADIENT") >= 3 * BLOCK_BYTES


def test_what_python_holds_stays_held_though_it_is_reduced(alone: None) -> None:
    metrics = torch.zeros(1000)
    cycle = train(nn.Linear(32, 8), also=lambda: dist.all_reduce(metrics))
    assert bytes_of(list(cycle.peak.rows), "HELD") >= 4000
    assert modules_of(cycle, Kind.COMMUNICATION) == {}


@pytest.mark.parametrize(
    ("span", "modules"),
    [
        ("FSDP::all_gather (layers.0)", ("layers.0",)),
        ("FSDP::all_gather_copy_out (norm, output) [pg=8]", ("norm", "output")),
        ("FSDP::post_backward_reduce", ("",)),
        ("FSDP::backward_prefetch for layers.0", None),
        ("Optimizer.step#Adam.step", None),
    ],
)
def test_spans_name_modules(span: str, modules: tuple[str, ...] | None) -> None:
    assert modules_of_collective(span) == modules


def test_only_some_functions_of_some_files_make_such_buffers() -> None:
    assert makes_collectives_buffers("torch/distributed/pipelining/_recv_buffers.py", "allocate_buffer")
    assert makes_collectives_buffers("torch/distributed/pipelining/stage.py", "_create_act_recv_info")
    assert not makes_collectives_buffers("torch/distributed/pipelining/stage.py", "forward_one_chunk")
    folder = "torch/distributed/fsdp/_fully_shard"
    assert makes_collectives_buffers(f"{folder}/_fsdp_collectives.py", "anything")
    assert makes_collectives_buffers(f"{folder}/_fsdp_param.py", "alloc_storage")
    assert not makes_collectives_buffers(f"{folder}/_fsdp_param.py", "to_sharded")
    assert not makes_collectives_buffers("/home/me/_reduce.py", "_reduce_grad")
    assert makes_collectives_buffers("deepspeed/runtime/zero/stage_1_and_2.py", "setup_buckets")
    assert not makes_collectives_buffers("deepspeed/runtime/zero/stage_1_and_2.py", "step")
    assert makes_buckets("torch/nn/parallel/distributed.py", "_pre_forward")
    assert not makes_buckets("torch/nn/parallel/distributed.py", "forward")
