"""The loss of a model that computes it itself, as Hugging Face's language models do, without all logits at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.workload import Workload

FAMILY = "model loss"
_OF_LOSSES = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_backward")
_WORTHWHILE = 0.05
_NUM_CHUNKS = 16
_NEEDS = "Nothing reads the logits: what the model returns as such are the inputs of its last layer."
_HEAD = (
    "head = model.get_output_embeddings()",
    "head.forward = lambda hidden: hidden",
)
_SHIFT = (
    "def loss_function(logits, labels, vocab_size, **kwargs):",
    "    hidden, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()",
)


def candidates(situation: Situation) -> Iterator[Change]:
    """The loss in recomputed chunks, and torch's own operator for it where the installed torch has one."""
    of_loss = sum(situation.bytes_by_operator.get(name, 0) for name in _OF_LOSSES)
    if of_loss < _WORTHWHILE * situation.peak_bytes or plain_head(situation.model) is None:
        return
    yield _change(
        f"the model's loss in {_NUM_CHUNKS} chunks, logits of each computed again in backward",
        (
            "from torch.utils.checkpoint import checkpoint",
            *_HEAD,
            "def chunk_loss(hidden, labels):",
            "    logits = torch.nn.functional.linear(hidden, head.weight, head.bias).float()",
            '    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")',
            *_SHIFT,
            f"    pairs = zip(hidden.chunk({_NUM_CHUNKS}), labels.chunk({_NUM_CHUNKS}))",
            "    total = sum(checkpoint(chunk_loss, *pair, use_reentrant=False) for pair in pairs)",
            "    return total / (labels != -100).sum()",
            "model.loss_function = loss_function",
        ),
        _in_chunks,
    )
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13 and later
        yield _change(
            "the model's loss by torch.nn.functional.linear_cross_entropy",
            (
                *_HEAD,
                *_SHIFT,
                "    return torch.nn.functional.linear_cross_entropy(",
                "        hidden, head.weight, labels, linear_bias=head.bias,",
                "        options=torch.nn.LinearCrossEntropyOptions(),",
                "    )",
                "model.loss_function = loss_function",
            ),
            _by_operator,
        )


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
    """Whether `forward` makes logits in one line, by a layer, and gives them to `loss_function`; read in its source."""
    if not kind.__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return False
    try:
        source = inspect.getsource(kind.forward)
    except (AttributeError, OSError, TypeError):
        return False
    assigned = _ASSIGNED.findall(source)
    return len(assigned) == 1 and _BY_HEAD.match(assigned[0]) is not None and "self.loss_function(" in source


def _change(name: str, lines: tuple[str, ...], function: Any) -> Change:
    def apply(workload: Workload) -> Workload:
        model: Any = workload.model
        head = model.get_output_embeddings()
        head.forward = _nothing

        def loss_function(logits: Tensor, labels: Tensor, vocab_size: int, **kwargs: Any) -> Tensor:
            loss: Tensor = function(head, logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            return loss

        model.loss_function = loss_function
        return workload

    return Change(
        name=name, family=FAMILY, group=Group.MEMORY, keeps=Keeps.ROUNDING, lines=lines, apply=apply, needs=_NEEDS
    )


def _nothing(hidden: Tensor) -> Tensor:
    return hidden


def _in_chunks(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    def chunk_loss(hidden: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, head.weight, head.bias).float(), labels, reduction="sum")

    pairs = zip(hidden.chunk(_NUM_CHUNKS), labels.chunk(_NUM_CHUNKS), strict=True)
    total: Any = sum(checkpoint(chunk_loss, *pair, use_reentrant=False) for pair in pairs)
    loss: Tensor = total / (labels != -100).sum()
    return loss


def _by_operator(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    from torch.nn import LinearCrossEntropyOptions

    loss: Tensor = F.linear_cross_entropy(
        hidden, head.weight, labels, linear_bias=head.bias, options=LinearCrossEntropyOptions()
    )
    return loss
