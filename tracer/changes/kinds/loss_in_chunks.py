"""A loss over classes without all of its intermediate values at once.

Where a model of Hugging Face computes its loss itself, the logits are made chunk by chunk too. Elsewhere it is the loss
function that works on chunks of the logits that it is given; in an unchanged script that is `cross_entropy`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tracer.changes.hooks import Hooks

NUM_CHUNKS = 16
_WORTHWHILE_BYTES = 1 << 20
"""Smaller logits are left alone: 16 calls of a kernel in the place of one would save nothing."""
_CROSS_ENTROPY = functional.cross_entropy
"""torch's own, also while the function in its module is replaced."""


class LossInChunks(Hooks, makes="chunked-loss"):
    """Has losses computed in chunks."""

    note = "no large loss over classes was computed."

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []

    @contextmanager
    def early(self) -> Iterator[None]:
        """Have `torch.nn.functional.cross_entropy` work in chunks meanwhile, for scripts that import the function.

        It is replaced in its module: a mode would see every operator of the program, and break graphs of torch.compile.
        """
        original = functional.cross_entropy

        @wraps(original)
        def cross_entropy(
            input: Tensor,
            target: Tensor,
            weight: Tensor | None = None,
            size_average: bool | None = None,
            ignore_index: int = -100,
            reduce: bool | None = None,
            reduction: str = "mean",
            label_smoothing: float = 0.0,
        ) -> Tensor:
            is_old = size_average is not None or reduce is not None
            if not self.is_on or is_old or reduction not in ("mean", "sum") or not _is_worthwhile(input, target):
                return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
            self.num_made += 1
            function = partial(original, reduction="sum", ignore_index=ignore_index, label_smoothing=label_smoothing)
            total: Tensor = _SumInChunks.apply(input, target, weight, function)
            return total if reduction == "sum" else total / _denominator(target, weight, ignore_index).to(total.dtype)

        functional.cross_entropy = cross_entropy
        try:
            yield
        finally:
            functional.cross_entropy = original

    def before_call(self, module: nn.Module) -> None:
        """Have a causal language model of Hugging Face compute logits and loss in chunks, in training."""
        head = plain_head(module) if module.training and torch.is_grad_enabled() else None
        if head is None or type(head.weight) is not nn.Parameter:  # what is sharded is whole in the layer's call alone
            return
        self._calls.append(_Call(module, head, module.loss_function))
        head.forward = lambda hidden: hidden  # type: ignore[assignment, method-assign]
        module.loss_function = self._calls[-1].loss_of_hidden  # type: ignore[assignment]

    def after_call(self, module: nn.Module, output: Any) -> Any:
        """Return the call's output without logits where a loss was computed: there never were all of them.

        Args:
            output: What its forward returned; None where it raised.
        """
        if not self._calls or self._calls[-1].model is not module:
            return output
        call = self._calls.pop()
        del call.head.forward
        module.loss_function = call.own_loss
        if output is None:
            return None
        self.num_made += call.has_loss
        is_tuple = isinstance(output, tuple)
        if call.has_loss:
            if is_tuple:
                return (output[0], *output[2:])
            output.logits = None
            return output
        # Without labels the program wants logits, as they would have been.
        if is_tuple:
            return (call.head(output[0]), *output[1:])
        output.logits = call.head(output.logits)
        return output


@dataclass(slots=True, eq=False)
class _Call:
    """A call of a model whose last layer waits: what `loss_function` is given are that layer's inputs."""

    model: nn.Module  # The model
    head: nn.Linear  # Its last layer
    own_loss: Any  # The model's own `loss_function`
    has_loss: bool = False  # Whether a loss was computed

    def loss_of_hidden(
        self,
        logits: Tensor,
        labels: Tensor | None,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """A replacement of transformers' `ForCausalLMLoss`, with its arguments and its shift of labels."""
        self.has_loss = True
        if shift_labels is None:
            assert labels is not None
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        hidden, wanted = logits.flatten(0, -2), shift_labels.flatten().to(logits.device)
        weight, bias = self.head.weight, self.head.bias

        def of_chunk(hidden: Tensor, wanted: Tensor) -> Tensor:
            scores = functional.linear(hidden, weight, bias).float()
            return _CROSS_ENTROPY(scores, wanted, reduction="sum", ignore_index=ignore_index)

        pairs = zip(hidden.chunk(NUM_CHUNKS), wanted.chunk(NUM_CHUNKS), strict=True)
        parts: list[Any] = [checkpoint(of_chunk, *pair, use_reentrant=False) for pair in pairs]
        if num_items_in_batch is None:
            num_items_in_batch = (wanted != ignore_index).sum()
        elif isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(hidden.device)
        loss: Tensor = torch.stack(parts).sum() / num_items_in_batch
        return loss


class _SumInChunks(torch.autograd.Function):
    """The sum of a loss over rows: what is between logits and loss is there for one chunk at a time."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, weight: Tensor | None, function: Callable[..., Tensor]
    ) -> Tensor:
        """A scalar; in float32 where autocast computes losses so.

        Args:
            logits: `[rows, classes]`.
            target: `[rows]` of classes.
            weight: `[classes]`, or None.
        """
        pairs = zip(logits.chunk(NUM_CHUNKS), target.chunk(NUM_CHUNKS), strict=True)
        parts = [function(part, wanted, weight) for part, wanted in pairs]
        ctx.save_for_backward(logits, target, weight)
        ctx.function, ctx.dtype = function, parts[0].dtype
        dtype = parts[0].dtype
        return torch.stack(parts).sum(dtype=torch.promote_types(dtype, torch.float32)).to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of the logits, filled chunk by chunk."""
        logits, target, weight = ctx.saved_tensors
        filled = torch.empty_like(logits)
        chunks = zip(*(tensor.chunk(NUM_CHUNKS) for tensor in (logits, target, filled)), strict=True)
        for part, wanted, place in chunks:
            with torch.enable_grad():
                leaf = part.detach().to(ctx.dtype).requires_grad_()
                loss = ctx.function(leaf, wanted, weight)
            place.copy_(torch.autograd.grad(loss, leaf, gradient)[0])
        return filled, None, None, None


def _is_worthwhile(logits: Any, target: Any) -> bool:
    """Rows of logits and their classes, large, in plain tensors that are computed as they come."""
    return (
        type(logits) is Tensor
        and type(target) is Tensor
        and logits.ndim == 2
        and target.ndim == 1
        and not target.is_floating_point()
        and logits.numel() * logits.element_size() >= _WORTHWHILE_BYTES
        and not torch.compiler.is_compiling()
    )


def _denominator(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Return the mean's divisor: the rows that count, each as often as its class weighs."""
    counts = target != ignore_index
    if weight is None:
        return counts.sum()
    return (weight[target.where(counts, 0)] * counts).sum()


def plain_head(model: Any) -> nn.Linear | None:
    """The last layer of a causal language model of Hugging Face whose loss is one of that layer's output as it is.

    None for every other model, among them those that scale or cap the logits first (Gemma 2, Granite).
    """
    if not hasattr(model, "loss_function") or not _loss_is_of_head(type(model)):  # type: ignore[arg-type]
        return None
    head = model.get_output_embeddings()
    is_plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward and "forward" not in vars(head)
    return head if is_plain else None


_ASSIGNED = re.compile(r"\blogits\b[^\n=]* (?:=|/=|\*=) [^\n]*")
_BY_HEAD = re.compile(r"logits = self\.\w+\(\w+(?:\[[^\]]*\])?\)")


@cache
def _loss_is_of_head(kind: type[Any]) -> bool:
    """Return True if `forward` makes logits in one line, by a layer, for `loss_function`; read in its source."""
    if not kind.__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return False
    try:
        source = inspect.getsource(kind.forward)
    except (AttributeError, OSError, TypeError):
        return False
    assigned = _ASSIGNED.findall(source)
    return len(assigned) == 1 and _BY_HEAD.match(assigned[0]) is not None and "self.loss_function(" in source
