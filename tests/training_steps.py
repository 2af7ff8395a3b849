"""Small training steps, one for each way in which programs use memory, and how to record them.

Each is a function that builds a `Workload`; `WORKLOADS` lists them by name. All follow from a fixed seed, take a few
milliseconds per step and a few thousand events.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

from models.fno_workload import FnoSettings, build_fno_workload
from tests.skips import by_default
from tracer.answers.findings import CycleFindings
from tracer.answers.recording_findings import find_in_cycle
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording

Builder = Callable[[], "Workload"]
WORKLOADS: dict[str, Builder] = {}
REPORT_WORKLOADS: dict[str, Builder] = {}  # For the SQLite reports alone
ONE_OF_EACH = (
    *("fno_2d_new_zeros", "convnet", "transformer", "checkpointing_reentrant", "lbfgs", "functional_model"),
    *("growing_list", "inference_mode", "sparse_and_resize", "replaced_data"),
)
"""Of each kind of workload one, for a claim that needs a run of its own for each and looks at no operator itself."""
SMALL_OF_EACH = tuple(
    name for name in ONE_OF_EACH if name not in ("fno_2d_new_zeros", "convnet", "transformer", "inference_mode")
)
"""Of these the ones with few events, for a claim of which each event costs much."""
REPORT_QUICK = ("every_other_step", "auxiliary_head", "retain_graph", "saved_unread")
"""Of `REPORT_WORKLOADS` those of which each breaks another rule."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A training step, and the model and optimizer behind it, or its parameters, for those who want to look at them."""

    step: Callable[[], None]
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    parameters: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Recorded:
    """A workload and what the profiler kept of it: one `kineto_results` per cycle, the profiler itself is gone."""

    name: str
    workload: Workload
    results: tuple[Any, ...]
    num_steps: int

    @cached_property
    def recordings(self) -> tuple[Recording, ...]:
        """Ours, one per cycle."""
        return tuple(map(read_recording, self.results))

    @cached_property
    def cycles(self) -> tuple[CycleFindings, ...]:
        """What is found in each."""
        return tuple(map(find_in_cycle, self.recordings))

    @cached_property
    def oracle(self) -> Any:
        """Torch's own `MemoryProfileTimeline` of the last cycle; it takes torch three times as long as a recording."""
        return torch_timeline(self.results[-1])


def torch_timeline(results: Any) -> Any:
    """Torch's own analysis of a recording."""
    from torch.profiler._memory_profiler import MemoryProfile, MemoryProfileTimeline

    return MemoryProfileTimeline(MemoryProfile(results))


def workload(build: Builder) -> Builder:
    """Enter a builder in `WORKLOADS`, under its own name."""
    WORKLOADS[build.__name__] = build
    return build


def report_workload(build: Builder) -> Builder:
    """Enter a builder in `REPORT_WORKLOADS`."""
    REPORT_WORKLOADS[build.__name__] = build
    return build


def record_workload(name: str, *, n_cycles: int = 2, n_active: int = 2) -> Recorded:
    """Build a workload and record some cycles of it."""
    built = build_workload(name)
    results = record(built.step, n_cycles=n_cycles, n_active=n_active)
    return Recorded(name, built, tuple(results), n_active)


@cache
def recorded_workload(name: str) -> Recorded:
    """Two cycles of two steps, recorded once a process."""
    return record_workload(name)


def build_workload(name: str) -> Workload:
    """Build a workload, also of `REPORT_WORKLOADS`, from its seed.

    It has the two threads that make its kernels the same on every machine.
    """
    torch.set_num_threads(2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {**WORKLOADS, **REPORT_WORKLOADS}[name]()


def record(
    step: Callable[[], object],
    *,
    n_cycles: int = 1,
    n_active: int = 1,
    record_shapes: bool = True,
    with_stack: bool = True,
    activities: Sequence[ProfilerActivity] = (ProfilerActivity.CPU,),
    **options: Any,
) -> list[Any]:
    """Run a step under torch's profiler, one warmup before each cycle.

    Returns:
        The `kineto_results` of each cycle.
    """
    kept: list[Any] = []
    gc.collect()  # what other tests have left is freed now, and not in the recording
    with profile(
        activities=list(activities),
        schedule=schedule(wait=0, warmup=1, active=n_active, repeat=n_cycles),
        on_trace_ready=lambda prof: kept.append(prof.profiler.kineto_results),
        record_shapes=record_shapes,
        profile_memory=True,
        with_stack=with_stack,
        **options,
    ) as prof:
        for _ in range(n_cycles * (1 + n_active)):
            step()
            prof.step()
    return kept


def training(
    model: nn.Module,
    batch: Callable[[], tuple[Tensor, Tensor]],
    loss: Callable[[Any, Tensor], Tensor] = F.mse_loss,
    optimizer: torch.optim.Optimizer | None = None,
) -> Workload:
    """The usual step: gradients away first, then forward, backward, optimizer."""
    chosen = optimizer or torch.optim.AdamW(model.parameters())

    def step() -> None:
        chosen.zero_grad()
        inputs, target = batch()
        loss(model(inputs), target).backward()
        chosen.step()

    return Workload(step, model, chosen)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


def mlp_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 32), torch.randn(16, 8)


# ---- the FNO: 1d, 2d, 3d, and both ways to allocate a spectrum -------------------------------------------------------


def _fno(data_size: tuple[int, ...], n_modes: tuple[int, ...], n_layers: int, spectrum: Any) -> Workload:
    settings = FnoSettings(
        batch_size=2, hidden_channels=8, data_size=data_size, n_modes=n_modes, n_layers=n_layers, spectrum=spectrum
    )
    training_step = build_fno_workload(settings, device=torch.get_default_device())

    def step() -> None:
        training_step.backward(training_step.forward(training_step.next_batch()))
        training_step.optimizer_step()

    return Workload(step, training_step.model, training_step.optimizer)


for _size, _modes, _layers, _spectrum in (
    ((32,), (8,), 1, "new_zeros"),
    ((16, 16), (8, 6), 2, "new_zeros"),
    ((16, 16), (8, 6), 1, "torch_zeros"),
    ((8, 8, 8), (4, 4, 4), 1, "torch_zeros"),
):
    WORKLOADS[f"fno_{len(_size)}d_{_spectrum}"] = partial(_fno, _size, _modes, _layers, _spectrum)


# ---- architectures ---------------------------------------------------------------------------------------------------


@workload
def convnet() -> Workload:
    """Batch norm, whose running averages are written in forward, and a ReLU that writes over its input."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return training(
        model,
        lambda: (torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))),
        F.cross_entropy,
        torch.optim.Adam(model.parameters()),
    )


def _next_token_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (2, 16))


@workload
def transformer() -> Workload:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return training(nn.Sequential(nn.Embedding(50, 32), encoder, nn.Linear(32, 50)), _tokens, _next_token_loss)


@workload
def lstm() -> Workload:
    model = nn.LSTM(16, 32, batch_first=True)
    return training(
        model,
        lambda: (torch.randn(4, 10, 16), torch.randn(4, 10, 32)),
        lambda output, target: F.mse_loss(output[0], target),
        torch.optim.RMSprop(model.parameters()),
    )


@workload
def shared_weights() -> Workload:
    """One embedding at both ends: a parameter that two modules list and that gets two gradients in a step."""
    embedding, hidden, head = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 50, bias=False)
    head.weight = embedding.weight
    return training(nn.Sequential(embedding, hidden, nn.ReLU(), head), _tokens, _next_token_loss)


class _Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32)) for _ in range(2)
        )
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


def _checkpointing(*, use_reentrant: bool) -> Workload:
    return training(
        _Checkpointed(use_reentrant=use_reentrant),
        lambda: (torch.randn(16, 32, requires_grad=True), torch.randn(16, 32)),
    )


@workload
def checkpointing_reentrant() -> Workload:
    """Backward starts a second backward inside itself."""
    return _checkpointing(use_reentrant=True)


@workload
def checkpointing() -> Workload:
    """Forward operators run again inside backward."""
    return _checkpointing(use_reentrant=False)


class _ScaledSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * ctx.scale * x * gradients[0], None


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 64), nn.Linear(64, 8)
        self.function, self.arguments = function, arguments

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x), *self.arguments))  # type: ignore[no-any-return]


@workload
def custom_function() -> Workload:
    return training(Between(_ScaledSquare.apply, 0.5), mlp_batch)


# ---- optimizers and loops --------------------------------------------------------------------------------------------


@workload
def gradient_accumulation() -> Workload:
    """The second backward adds to gradients that are there."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(3):
            inputs, target = mlp_batch()
            (F.mse_loss(model(inputs), target) / 3).backward()
        optimizer.step()

    return Workload(step, model, optimizer)


@workload
def sgd_momentum() -> Workload:
    """Gradients are kept and zeroed, not released."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        inputs, target = mlp_batch()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()

    return Workload(step, model, optimizer)


@workload
def adamw_foreach() -> Workload:
    """Operators on lists of tensors."""
    model = mlp()
    return training(model, mlp_batch, optimizer=torch.optim.AdamW(model.parameters(), foreach=True))


@workload
def lbfgs() -> Workload:
    """An optimizer that runs forward and backward itself, several times."""
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step() -> None:
        inputs, target = mlp_batch()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), target)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]

    return Workload(step, model, optimizer)


@workload
def mixed_precision_clipping() -> Workload:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        inputs, target = mlp_batch()
        with torch.autocast(torch.get_default_device().type, torch.bfloat16):
            loss = F.mse_loss(model(inputs), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Workload(step, model, optimizer)


@workload
def no_optimizer() -> Workload:
    """Gradients only; they are dropped by hand."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        F.mse_loss(model(inputs), target).backward()
        for parameter in model.parameters():
            parameter.grad = None

    return Workload(step, model)


@workload
def zero_grad_at_start() -> Workload:
    """The gradients of the last step are alive when a cycle begins."""
    return training(mlp(), mlp_batch)


@workload
def zero_grad_at_end() -> Workload:
    """No gradient is alive when a cycle begins."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        inputs, target = mlp_batch()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(step, model, optimizer)


@workload
def functional_model() -> Workload:
    """No module and no optimizer class: parameters can only be told from the data flow."""
    weight, bias = torch.randn(32, 8, requires_grad=True), torch.zeros(8, requires_grad=True)

    def step() -> None:
        inputs, target = mlp_batch()
        F.mse_loss(torch.relu(inputs @ weight + bias), target).backward()
        with torch.no_grad():
            for parameter in (weight, bias):
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
                parameter.grad = None

    return Workload(step, parameters=(weight, bias))


@workload
def growing_list() -> Workload:
    """What a step makes outlives the step and its cycle."""
    model, kept = mlp(), itertools.count()
    outputs: list[Tensor] = []

    def step() -> None:
        outputs.append(model(torch.randn(16, 32)))
        if next(kept) % 4 == 3:
            del outputs[:2]

    return Workload(step, model)


# ---- without autograd ------------------------------------------------------------------------------------------------


@workload
def inference_no_grad() -> Workload:
    model = mlp().eval()

    def step() -> None:
        with torch.no_grad():
            model(torch.randn(16, 32))

    return Workload(step, model)


@workload
def inference_mode() -> Workload:
    model = mlp().eval()

    def step() -> None:
        with torch.inference_mode():
            model(torch.randn(16, 32))

    return Workload(step, model)


@workload
def sparse_and_resize() -> Workload:
    """Tensors without storage, storages that change their size, lists in and out of operators."""

    def step() -> None:
        a = torch.randn(30, 30)
        where = torch.nonzero(a > 0)
        a.resize_(60, 60)
        del a
        dense = torch.sparse_coo_tensor(where.t(), torch.ones(len(where)), (60, 60), check_invariants=True).to_dense()
        torch._foreach_add_([dense, dense], 1.0)
        written = dense.index_put_((torch.tensor([1, 2]),), torch.tensor(3.0))
        torch.cat([written, written])
        float(written.cpu().numpy().sum())
        torch.stack([written] * 3).unbind(0)
        torch.empty(0).set_(written.untyped_storage())

    return Workload(step)


@workload
def replaced_data() -> Workload:
    """`x.data = y`: one tensor shows several storages in turn, which torch's profiler joins under one id."""
    x = torch.zeros(32, 32)

    def step() -> None:
        for _ in range(3):
            x.data = torch.randn(32, 32)
            x.mul_(2.0)
        other = torch.ones(16)
        other.data = x.data
        other.add_(1.0)

    return Workload(step)


# ---- steps that broke one of the originals of the SQLite reports -----------------------------------------------------


def _pair() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 32), torch.randn(16, 32)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@report_workload
def residual() -> Workload:
    return training(_Residual(), _pair)


class _Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(self.linear(x))
        return x


@report_workload
def loop() -> Workload:
    return training(_Loop(), _pair)


@report_workload
def backward_function() -> Workload:
    """`torch.autograd.backward(loss)` instead of `loss.backward()`."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        torch.autograd.backward(F.mse_loss(model(inputs), target))
        model.zero_grad()

    return Workload(step, model)


@report_workload
def retain_graph() -> Workload:
    """One graph, two backwards."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        loss = F.mse_loss(model(inputs), target)
        loss.backward(retain_graph=True)
        loss.backward()
        model.zero_grad()

    return Workload(step, model)


@report_workload
def held_output() -> Workload:
    """The output, which the loss saves, outlives backward."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        output = model(inputs)
        F.mse_loss(output, target).backward()
        output.detach().abs().mean().item()
        model.zero_grad()

    return Workload(step, model)


class _Unread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (float(x.shape[0]) / 8)


@report_workload
def saved_unread() -> Workload:
    """A function that saves a tensor and then only asks for its shape."""
    return training(Between(_Unread.apply), mlp_batch)


@report_workload
def every_other_step() -> Workload:
    """A step that takes one more layer every second time."""
    model = nn.ModuleDict({"first": nn.Linear(32, 32), "extra": nn.Linear(32, 32), "last": nn.Linear(32, 8)})
    number = 0

    def step() -> None:
        nonlocal number
        inputs, target = mlp_batch()
        x = model["first"](inputs)
        if number % 2:
            x = model["extra"](x).relu()
        number += 1
        F.mse_loss(model["last"](x), target).backward()
        model.zero_grad()

    return Workload(step, model)


@report_workload
def auxiliary_head() -> Workload:
    """A part of the graph through which no backward runs."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 8), nn.Linear(64, 3))

    def step() -> None:
        inputs, target = mlp_batch()
        hidden = model[0](inputs)
        model[2](hidden).sin()
        F.mse_loss(model[1](hidden), target).backward()
        model.zero_grad()

    return Workload(step, model)


class _RebindingDescent(torch.optim.Optimizer):
    """Gives every parameter a new storage at each step, and keeps the old ones.

    torch's profiler gives a block from before the recording, whose free it does not report, one number with the block
    that lies at its address next: in steps of a millisecond that happened in one recording of three.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.replaced: list[Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.replaced.append(parameter.data)
                parameter.data = parameter.data - 0.01 * parameter.grad


@report_workload
def rebinding_optimizer() -> Workload:
    """Parameters that the optimizer made inside the recording."""
    model = mlp()
    return training(model, mlp_batch, optimizer=_RebindingDescent(model.parameters()))


each_workload = pytest.mark.parametrize("name", by_default(WORKLOADS, ONE_OF_EACH))
"""A law of all recordings: by default on one of each kind."""
each_small_workload = pytest.mark.parametrize("name", by_default(WORKLOADS, SMALL_OF_EACH))
"""A law of all recordings that costs much for each event."""
