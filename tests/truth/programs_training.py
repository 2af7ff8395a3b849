"""Programs for the harness: ways to train, to evaluate, and to keep memory that no step touches."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from tests.truth.program import Batch, Program, descend, mlp, program, supervised


def _pairs() -> tuple[Tensor, Tensor]:
    return torch.randn(512, 64), torch.randn(512, 32)


# ---- memory beside the model -----------------------------------------------------------------------------------------


class _Adapted(nn.Module):
    """A frozen layer and a small trained one beside it."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)


@program()
def low_rank_adapters() -> Program:
    model = nn.Sequential(_Adapted(nn.Linear(64, 512)), nn.ReLU(), _Adapted(nn.Linear(512, 32)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return supervised(model, torch.optim.AdamW(trained), _pairs, F.mse_loss)


@program()
def average_of_weights() -> Program:
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = Batch()

    def step() -> Tensor:
        x, y = batch.of(_pairs())
        loss = descend(F.mse_loss(model(x), y), optimizer)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return loss

    return Program(step, model, [optimizer], batch, {"average": average})


@program()
def teacher_and_student() -> Program:
    teacher, student = mlp(hidden=512).eval().requires_grad_(False), mlp(hidden=64)
    optimizer = torch.optim.Adam(student.parameters())
    batch = Batch()

    def step() -> Tensor:
        x = batch.of(torch.randn(256, 64))
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        return descend(F.kl_div(student(x).log_softmax(-1), wanted, reduction="batchmean"), optimizer, clear_first=True)

    return Program(step, student, [optimizer], batch, {"teacher": teacher})


@program()
def idle_cache() -> Program:
    """20 MB that no step touches, in a module that is never called and in a plain list."""
    model, idle = mlp(), nn.Linear(1000, 2500)
    cache = [torch.randn(250_000) for _ in range(10)]
    built = supervised(model, torch.optim.SGD(model.parameters(), 0.1), _pairs, F.mse_loss)
    built.others, built.held = {"idle": idle}, cache
    return built


@program()
def dataset_in_memory() -> Program:
    """Batches are slices of tensors that were there all the time."""
    model = mlp()
    xs, ys = torch.randn(4096, 64), torch.randn(4096, 32)
    starts = itertools.cycle(range(0, 4096, 256))

    def make_batch() -> tuple[Tensor, Tensor]:
        start = next(starts)
        return xs[start : start + 256], ys[start : start + 256]

    return supervised(model, torch.optim.Adam(model.parameters()), make_batch, F.mse_loss)


@program()
def full_batch() -> Program:
    """The same tensors in every step."""
    model = mlp()
    pairs = _pairs()
    return supervised(model, torch.optim.Rprop(model.parameters()), lambda: pairs, F.mse_loss)


@program()
def leaking_losses() -> Program:
    """The losses are collected with all that hangs on them."""
    model, losses = mlp(), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = Batch()

    def step() -> float:
        x, y = batch.of(_pairs())
        output = model(x)
        losses.append(F.mse_loss(output, y) + 1e-3 * output.square().sum())
        optimizer.zero_grad()
        losses[-1].backward(retain_graph=True)
        optimizer.step()
        return losses[-1].item()

    return Program(step, model, [optimizer], batch, held=losses)


@program()
def assigned_state_dict() -> Program:
    """Parameters become other tensors in the middle of training."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch, steps = Batch(), itertools.count()

    def step() -> Tensor:
        if next(steps) == 3:
            model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        x, y = batch.of(_pairs())
        return descend(F.mse_loss(model(x), y), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


# ---- what is kept for backward ---------------------------------------------------------------------------------------


@program()
def activations_offloaded() -> Program:
    model = mlp()

    def call(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    return supervised(model, torch.optim.Adam(model.parameters()), _pairs, F.mse_loss, call=call)


@program()
def activations_compressed() -> Program:
    """What is saved is half as large."""
    model = mlp()

    def pack(x: Tensor) -> Tensor:
        return x.half() if x.is_floating_point() and not isinstance(x, nn.Parameter) else x

    def unpack(x: Tensor) -> Tensor:
        return x.float() if x.dtype == torch.half else x

    def call(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return model(x)

    return supervised(model, torch.optim.Adam(model.parameters()), _pairs, F.mse_loss, call=call)


@program()
def recomputed_segments() -> Program:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)), nn.Linear(64, 32))

    def call(x: Tensor) -> Tensor:
        output: Tensor = checkpoint_sequential(model, 3, x, use_reentrant=False)
        return output

    return supervised(model, torch.optim.NAdam(model.parameters()), _pairs, F.mse_loss, call=call)


class _Quantized(torch.autograd.Function):
    """Rounds, and lets the gradient through; backward has large scratch of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return (x / scale).round() * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        wide = gradients[0].repeat(4, 1).view(4, *gradients[0].shape)
        return wide.mean(0), (gradients[0] * (x / scale).round()).sum()


@program()
def straight_through_function() -> Program:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(64, 128), nn.Linear(128, 32)
            self.scale = nn.Parameter(torch.tensor(0.1))

        def forward(self, x: Tensor) -> Tensor:
            return self.after(_Quantized.apply(self.before(x), self.scale))  # type: ignore[no-any-return]

    model = Model()
    return supervised(model, torch.optim.Adam(model.parameters()), _pairs, F.mse_loss)


# ---- hooks and optimizers --------------------------------------------------------------------------------------------


@program()
def hooks_on_tensors_and_modules() -> Program:
    """Gradients are compressed with scratch, outputs are kept, and noise is added before a layer."""
    model, kept = mlp(), dict[str, Tensor]()
    model[0].weight.register_hook(lambda grad: (grad[None] * grad.new_ones(8, 1, 1)).mean(0))  # type: ignore[operator]
    model[1].register_forward_hook(lambda module, args, output: kept.update(output=output.detach().clone()))
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 0.01 * torch.randn_like(args[0]),))
    model[2].register_full_backward_hook(lambda module, grads, outputs: kept.update(gradient=outputs[0].clone()))  # type: ignore[index]
    built = supervised(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), _pairs, F.mse_loss)
    built.held = kept
    return built


@program()
def optimizer_inside_backward() -> Program:
    model = mlp()
    optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}
    batch = Batch()

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def step() -> Tensor:
        x, y = batch.of(_pairs())
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    return Program(step, model, list(optimizers.values()), batch)


@program()
def closures_for_lbfgs() -> Program:
    model = mlp(hidden=64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3, line_search_fn="strong_wolfe")
    batch = Batch()

    def step() -> object:
        x, y = batch.of(_pairs())

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return float(optimizer.step(closure))  # type: ignore[arg-type]

    return Program(step, model, [optimizer], batch)


@program()
def accumulated_gradients() -> Program:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    batch = Batch()

    def step() -> Tensor:
        total = torch.zeros(())
        for _ in range(4):
            x, y = batch.of((torch.randn(128, 64), torch.randn(128, 32)))
            loss = F.mse_loss(model(x), y) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return total

    return Program(step, model, [optimizer], batch, held=scheduler)


@program()
def mixed_precision() -> Program:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(16 * 16 * 16, 10))

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    return supervised(
        model,
        torch.optim.SGD(model.parameters(), 0.01),
        lambda: (torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))),
        lambda output, y: F.cross_entropy(output.float(), y),
        call=call,
    )


# ---- evaluation ------------------------------------------------------------------------------------------------------


@program()
def evaluation_in_the_step() -> Program:
    """The larger batch of the evaluation makes the peak."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    batch = Batch()

    def step() -> tuple[Tensor, Tensor]:
        loss = descend(F.mse_loss(model(batch.of(torch.randn(64, 64))), torch.randn(64, 32)), optimizer)
        model.eval()
        with torch.no_grad():
            guesses = model(batch.and_of(torch.randn(8192, 64))).argmax(-1)
        model.train()
        return loss, guesses.float().mean()

    return Program(step, model, [optimizer], batch)


@program()
def inference_only() -> Program:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    batch = Batch()

    def step() -> Tensor:
        with torch.inference_mode():
            return model(batch.of(torch.randn(4, 3, 24, 24))).amax((2, 3))

    return Program(step, model, [], batch)


# ---- no model -------------------------------------------------------------------------------------------------------


@program()
def tensors_without_a_module() -> Program:
    """What an optimizer updates is in no model."""
    weight, bias = torch.randn(256, 128, requires_grad=True), torch.zeros(128, requires_grad=True)
    optimizer, batch = torch.optim.Adam([weight, bias]), Batch()

    def step() -> Tensor:
        x, y = batch.of((torch.randn(64, 256), torch.randn(64, 128)))
        return descend(F.mse_loss(torch.tanh(x @ weight + bias), y), optimizer, clear_first=True)

    return Program(step, None, [optimizer], batch, parameters=[weight, bias])
