"""Programs for the harness: parts of torch that show tensors in other ways: torch.func, nested, scripted, compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from tests import compiled_programs
from tests.truth.program import PROGRAMS, Batch, Entry, Program, Provable, descend, mlp, program, supervised, there


def _pairs() -> tuple[Tensor, Tensor]:
    return torch.randn(512, 64), torch.randn(512, 32)


# ---- torch.func ------------------------------------------------------------------------------------------------------


@program(saves=False)
def functional_gradients() -> Program:
    """The parameters are a dict, and the model is only how they are called."""
    model, batch = mlp(), Batch()
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, weights, (x,)), y)

    def step() -> Tensor:
        x, y = batch.of(_pairs())
        gradients = grad(loss_of)(parameters, x, y)
        for name, gradient in gradients.items():
            parameters[name] = parameters[name] - 0.1 * gradient
        return parameters["4.bias"].sum()

    return Program(step, model, [], batch, held=parameters)


@program(saves=False)
def gradients_of_each_sample() -> Program:
    """Differential privacy: vmap over grad, clipped one by one."""
    model, batch = mlp(hidden=32), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, weights, (x[None],))[0], y)

    def step() -> Tensor:
        x, y = batch.of((torch.randn(64, 64), torch.randn(64, 32)))
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        each = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in each.values()]).norm(dim=0)
        scale = (1 / norms).clamp(max=1)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.einsum("b,b...->...", scale, each[name]) / 64
        optimizer.step()
        optimizer.zero_grad()
        return norms.mean()

    return Program(step, model, [optimizer], batch)


@program()
def ensemble_by_vmap() -> Program:
    models = [mlp(hidden=64) for _ in range(4)]
    weights, _ = stack_module_state(models)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(list(weights.values()))
    template, batch = models[0], Batch()

    def call(each: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(template, each, (x,))
        return output

    def step() -> Tensor:
        x, y = batch.of(_pairs())
        loss = F.mse_loss(vmap(call, in_dims=(0, None))(weights, x), y.expand(4, -1, -1))
        return descend(loss, optimizer, clear_first=True)

    others = {f"member {number}": member for number, member in enumerate(models[1:])}
    return Program(step, template, [optimizer], batch, others)  # type: ignore[arg-type]


@program()
def forward_mode_derivatives() -> Program:
    model, batch = mlp(hidden=64), Batch()

    def step() -> Tensor:
        x, direction = batch.of((torch.randn(128, 64), torch.randn(128, 64)))
        value, slope = jvp(model, (x,), (direction,))  # type: ignore[misc]
        loss = (value.square() + slope.square()).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.01 * gradient  # type: ignore[misc]
        return loss.detach()

    return Program(step, model, [], batch)


# ---- tensors that are not plain --------------------------------------------------------------------------------------


@program()
def nested_strided() -> Program:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = Batch()

    def step() -> Tensor:
        pieces = [torch.randn(int(length), 32) for length in torch.randint(5, 40, (16,))]
        x = batch.of(torch.nested.nested_tensor(pieces))
        return descend(sum(piece.square().mean() for piece in model(x).unbind()), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program()
def nested_jagged() -> Program:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    batch = Batch()

    def step() -> Tensor:
        pieces = [torch.randn(int(length), 32) for length in torch.randint(5, 40, (16,))]
        x = batch.of(torch.nested.nested_tensor(pieces, layout=torch.jagged))
        return descend(model(x).values().square().mean(), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program()
def sparse_adjacency() -> Program:
    """Graph convolution with a matrix in compressed rows, and sparse results in between."""
    first, second = nn.Linear(32, 64), nn.Linear(64, 4)
    model = nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(model.parameters())
    places = torch.randint(0, 300, (2, 1500))
    adjacency = torch.sparse_coo_tensor(places, torch.rand(1500), (300, 300), check_invariants=True).coalesce()
    batch = Batch()

    def step() -> Tensor:
        x = batch.of(torch.randn(300, 32))
        hidden = torch.sparse.mm(adjacency, first(x)).relu()
        dropped = (adjacency * 0.5).coalesce()
        return descend(torch.sparse.mm(dropped, second(hidden)).square().mean(), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch, held=adjacency)


class _WithAWord(Tensor):
    """A subclass that carries a word along."""

    word: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@program()
def subclass_of_tensor() -> Program:
    model = mlp()

    def make_batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(512, 64).as_subclass(_WithAWord)
        x.word = "left"
        return x, torch.randn(512, 32)

    return supervised(
        model,
        torch.optim.Adam(model.parameters()),
        make_batch,
        lambda output, y: F.mse_loss(output.as_subclass(Tensor), y),
    )


class _Scaled(Tensor):
    """A tensor that is another one and a factor, as quantized ones are; every operator undoes that first."""

    inner: Tensor  # type: ignore[assignment]
    factor: float

    @staticmethod
    def __new__(cls, inner: Tensor, factor: float) -> _Scaled:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner, made.factor = inner, factor  # type: ignore[attr-defined]
        return made  # type: ignore[return-value]

    def __tensor_flatten__(self) -> tuple[list[str], float]:
        return ["inner"], self.factor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(value: Any) -> Any:
            return value.inner * value.factor if isinstance(value, _Scaled) else value

        return func(*[plain(each) for each in args], **{key: plain(value) for key, value in (kwargs or {}).items()})


@program()
def wrapper_subclass() -> Program:
    model = mlp()

    def make_batch() -> tuple[Tensor, Tensor]:
        return _Scaled(torch.randn(512, 64), 0.5), torch.randn(512, 32)

    return supervised(model, torch.optim.Adam(model.parameters()), make_batch, F.mse_loss)


@program()
def arrays_of_numpy() -> Program:
    """Batches are NumPy's memory, which torch's allocator never hears of."""
    import numpy as np

    model = mlp()

    def make_batch() -> tuple[Tensor, Tensor]:
        x = np.random.rand(512, 64).astype("float32")
        return torch.from_numpy(x).to(there()), torch.as_tensor(np.ones((512, 32), "float32"))

    return supervised(model, torch.optim.Adam(model.parameters()), make_batch, F.mse_loss)


# ---- scripted and compiled -------------------------------------------------------------------------------------------


@program()
def scripted_model() -> Program:
    model = torch.jit.script(mlp())
    return supervised(model, torch.optim.Adam(model.parameters()), _pairs, F.mse_loss)


@program()
def traced_model() -> Program:
    model = torch.jit.trace(mlp(), torch.randn(512, 64))
    return supervised(model, torch.optim.Adam(model.parameters()), _pairs, F.mse_loss)


@program(provable=Provable.EAGER_TWIN)
def compiled_fullgraph() -> Program:
    """The profiler is given the compiled module itself."""
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    return supervised(compiled, torch.optim.SGD(model.parameters(), 0.1), _pairs, F.mse_loss)  # type: ignore[arg-type]


@program(provable=Provable.EAGER_TWIN)
def compiled_in_place() -> Program:
    model = mlp()
    model.compile(backend="aot_eager", fullgraph=True)
    return supervised(model, torch.optim.SGD(model.parameters(), 0.1), _pairs, F.mse_loss)


def _compiled(build: Callable[[], compiled_programs.Program]) -> Program:
    """Train a program of `tests.compiled_programs`."""
    _compile_anew()
    built, batch = build(), Batch()
    loss_of = built.compiled()

    def step() -> Tensor:
        loss = loss_of(*batch.of(built.next_batch()))
        loss.backward()
        (built.step_optimizer or built.optimizer.step)()
        built.optimizer.zero_grad()
        return loss.detach()

    return Program(step, built.model, [built.optimizer], batch)


for _build in (
    *(compiled_programs.aot_eager, compiled_programs.graph_break_eager, compiled_programs.part_of_a_model),
    *(compiled_programs.optimizer_step, compiled_programs.dynamic_shapes, compiled_programs.layers_of_torch_eager),
    *(compiled_programs.step_function, compiled_programs.layers_of_torch),
):
    _name, _is_slow = f"compiled_{_build.__name__}", _build in compiled_programs.PROGRAMS
    PROGRAMS[_name] = Entry(_name, partial(_compiled, _build), provable=Provable.EAGER_TWIN, slow=_is_slow)


def _compile_anew() -> None:
    """Use no compiled graph of another process: a session uses none either, and such a graph frees at other moments."""
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False


@program(provable=Provable.EAGER_TWIN, slow=True)
def compiled_inductor_fullgraph() -> Program:
    _compile_anew()
    model = mlp()
    compiled = torch.compile(model, fullgraph=True)
    return supervised(compiled, torch.optim.SGD(model.parameters(), 0.1), _pairs, F.mse_loss)  # type: ignore[arg-type]
