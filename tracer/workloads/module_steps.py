"""The training or inference step of any module: loss, mixed precision, checkpointing, compilation."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tracer.errors import UserModelError, WrongValueError
from tracer.nested import leaves
from tracer.workloads.factory import defined_at
from tracer.workloads.random_inputs import Batch
from tracer.workloads.step_options import Amp, Loss

__tracebackhide__ = True  # what raises here is to be looked for in the model

_LISTS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleWorkload:
    """A module, what updates it, and where its batches come from."""

    model: nn.Module  # Called with what `next_batch` gives
    optimizer: torch.optim.Optimizer | None  # Updates it; None for gradients alone, and in inference
    next_batch: Callable[[], Batch]  # Makes a batch
    device: torch.device  # Where model and batches are
    loss: Callable[[Any], Tensor]  # From the model's output to the number to make small
    amp: Amp = "off"  # The dtype of mixed precision
    inference: bool = False  # No loss, no backward, no optimizer: the forward pass under `torch.inference_mode`
    scaler: torch.amp.GradScaler | None = None  # Scaler of gradients, in float16 on CUDA

    def forward(self, batch: Batch) -> Tensor | None:
        """The loss of a batch, a scalar; None in inference."""
        args, kwargs = batch
        with self._precision():
            if self.inference:
                with torch.inference_mode():
                    self.model(*args, **kwargs)
                return None
            return self._loss(self.model(*args, **kwargs))

    def _loss(self, output: Any) -> Tensor:
        try:
            return self.loss(output)
        except UserModelError as error:
            forward = type(self.model).forward
            where = f"{type(self.model).__name__}.forward{defined_at(forward)}"
            raise UserModelError(f"{where} cannot be trained: {error}", hint=error.hint) from None

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.amp == "off":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.amp))

    def backward(self, loss: Tensor | None) -> None:
        """Fill the gradients."""
        if loss is not None:
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            scaled.backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Update the parameters, then free the gradients."""
        if self.inference:
            return
        if self.scaler is not None and self.optimizer is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def copy(self) -> ModuleWorkload:
        """Copy the step with its model, optimizer and scaler; batches keep coming from the same source."""
        model, optimizer, scaler = deepcopy((self.model, self.optimizer, self.scaler))
        return replace(self, model=model, optimizer=optimizer, scaler=scaler)


def gradient_scaler(amp: Amp, device: torch.device) -> torch.amp.GradScaler | None:
    """A scaler for float16 on a GPU, whose gradients would underflow; None otherwise, as for bfloat16."""
    return torch.amp.GradScaler(device.type) if amp == "float16" and device.type != "cpu" else None


# ---- from any output to a number -------------------------------------------------------------------------------------


def loss_of(kind: Loss) -> Callable[[Any], Tensor]:
    """A loss by name.

    `auto`: the output's own `loss` where it has one, as transformers' models have when they are given labels; the
    output itself where it is a scalar; else the mean square. `mean-square`: of every tensor in the output through
    which a gradient can flow, added up. `cross-entropy`: of the first such tensor, against classes counted off; classes
    are axis 1, or the last axis of a sequence [batch, tokens, classes].
    """
    losses: dict[str, Callable[[Any], Tensor]] = {
        "auto": own_loss,
        "mean-square": mean_square,
        "cross-entropy": cross_entropy,
    }
    if kind not in losses:
        raise WrongValueError(f"There is no loss {kind}.", hint=f"Use {', '.join(get_args(Loss))}.")
    return losses[kind]


def own_loss(output: Any) -> Tensor:
    """The output's own loss, or the mean square."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss.mean()  # several, where the model is spread over devices
    if isinstance(output, Tensor) and output.ndim == 0 and output.requires_grad:
        return output
    return mean_square(output)


def mean_square(output: Any) -> Tensor:
    """Mean squares of every tensor through which a gradient can flow, added up."""
    return torch.stack([tensor.abs().square().mean() for tensor in _with_gradient(output)]).sum()


def cross_entropy(output: Any) -> Tensor:
    """Cross entropy of the first output that needs a gradient, with class 0, 1, 2, ... as targets in turn."""
    logits = _with_gradient(output)[0]
    if logits.ndim < 2:
        raise UserModelError(
            f"cross entropy needs classes in axis 1, and its output is {_shape_of(logits)}.",
            hint="Use --loss mean-square.",
        )
    if logits.ndim == 3:
        logits = logits.flatten(0, 1)
    shape = (logits.shape[0], *logits.shape[2:])
    count = torch.Size(shape).numel()
    return F.cross_entropy(logits, (torch.arange(count, device=logits.device) % logits.shape[1]).view(shape))


def _with_gradient(output: Any) -> list[Tensor]:
    tensors = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    if not tensors:
        shapes = ", ".join(map(_shape_of, _tensors(output))) or type(output).__name__
        raise UserModelError(
            f"no gradient can flow through its output ({shapes}).",
            hint="Return a tensor that depends on the parameters, or use --inference.",
        )
    return tensors


def _tensors(output: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in leaves(output, Tensor))


def _shape_of(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


# ---- activation checkpointing ----------------------------------------------------------------------------------------


def checkpoint_blocks(model: nn.Module) -> int:
    """Let the repeated blocks keep their inputs only, and compute the rest again in backward.

    A block is a module with children that has a sibling of its class, or a child with children of a ModuleList or
    Sequential. Of lists in lists the innermost count; blocks inside other blocks stay as they are.
    The block's `forward` is replaced on the instance, its class is not touched. A model that brings its own switch, as
    transformers' do, is asked to use that. As always with checkpointing, batch norms see each batch twice.

    Returns:
        How many blocks; 0 for a model that uses its own switch.
    """
    for switch in (
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
    ):  # transformers from 6, and until 5
        if getattr(model, "supports_gradient_checkpointing", False) and hasattr(model, switch):
            getattr(model, switch)()
            return 0
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise UserModelError(
            f"{type(model).__name__} has no repeated blocks to checkpoint.",
            hint="Blocks are children of a ModuleList or Sequential; call torch.utils.checkpoint in the model itself.",
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return len(blocks)


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The blocks that `checkpoint_blocks` finds, in order.

    `Sequential(Encoder(layers=ModuleList([Layer(), Layer()])), Linear())` has two: a part of a list that is alone of
    its class is searched first, and is a block itself only where it has none inside.
    """
    parts = [child for child in module.children() if any(True for _ in child.children())]
    num_of_class = Counter(type(part) for part in parts)
    is_list = isinstance(module, _LISTS)
    for part in parts:
        repeats = num_of_class[type(part)] > 1 and not isinstance(part, _LISTS)
        inner = [] if is_list and repeats else list(repeated_blocks(part))
        yield from inner or ([part] if is_list or repeats else [])


@dataclass(frozen=True, slots=True, eq=False)
class SupervisedWorkload:
    """A model and all that its training step needs.

    One step is `batch = next_batch()`, `loss = forward(batch)`, `backward(loss)`, `optimizer_step()`.
    """

    model: nn.Module  # Called with all tensors of a batch but the last
    optimizer: torch.optim.Optimizer | None  # Updates the model, or None for gradients alone
    # Makes a batch on the host, as a data loader does, and moves it to the device: the inputs, then the target. Called
    # in every step.
    next_batch: Callable[[], tuple[Tensor, ...]]
    loss: Callable[[Tensor, Tensor], Tensor]  # From output and target to the number to make small
    device: torch.device  # Where model and batches are

    def forward(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss of one batch, a scalar."""
        *inputs, target = batch
        output: Tensor = self.model(*inputs)
        return self.loss(output, target)

    def backward(self, loss: Tensor) -> None:
        """Fill the gradients of the model's parameters."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Update the parameters, then free the gradients.

        They go last, and not first in the next step, so that none is alive when a recording begins.
        """
        if self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def copy(self) -> SupervisedWorkload:
        """Copy the step with its model and optimizer; batches keep coming from the same source."""
        model, optimizer = deepcopy((self.model, self.optimizer))
        return replace(self, model=model, optimizer=optimizer)
