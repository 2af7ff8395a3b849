"""Saved tensors on the host: forward copies what it saves for backward to the host, and backward copies it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from tracer.capture.torch_private.torch_graph import running_node
from tracer.changes import host_copies
from tracer.changes.change import Change, ForwardUnder, Situation, Stage, inmost
from tracer.changes.hooks import Hooks
from tracer.changes.kinds.checkpoint import module_words
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.module_steps import StepWorkload

_NEEDS = "The host has the memory for it, pinned."
_WORTHWHILE = 0.002


class ActivationsOnHost(Hooks, makes="saved-on-host"):
    """Has calls of a model save on the host."""

    def in_call(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Return hooks for what is saved; none where backward computes again, which it uses at once."""
        return SavedOnHost(model) if torch.is_grad_enabled() and running_node() is None else None


class SavedOnHost(torch.autograd.graph.saved_tensors_hooks):
    """Keeps the tensors that forward saves in the host's pinned memory until backward uses them.

    Unlike `torch.autograd.graph.save_on_cpu` it leaves parameters, which are on the device in any case, and what is
    small.
    """

    def __init__(self, model: nn.Module) -> None:
        resident = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> tuple[torch.device | None, Tensor]:
            if not host_copies.is_worth_moving(tensor) or tensor.untyped_storage().data_ptr() in resident:
                return None, tensor.detach()  # without its graph: a node would keep itself
            return tensor.device, host_copies.copied_to_host(tensor)

        def unpack(packed: tuple[torch.device | None, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else host_copies.copied_to_device(tensor, device)

        super().__init__(pack, unpack)


def candidates(situation: Situation) -> Iterator[Change]:
    """Saved tensors on the host, of all layers or of the first half: on a GPU, where backward follows forward."""
    workload = situation.workload
    is_whole_step = isinstance(inmost(workload), StepWorkload)
    if situation.device != "cuda" or is_whole_step or getattr(workload, "inference", False):
        return
    yield Change(
        name="saved tensors on the host (save_on_cpu)",
        family="offload",
        excludes=("checkpoint",),
        group=Group.COMPUTE,
        keeps=Keeps.BITS,
        lines=(
            "with torch.autograd.graph.save_on_cpu(pin_memory=True):",
            "    loss = loss_fn(model(inputs), targets)",
        ),
        apply=partial(ForwardUnder, context=partial(torch.autograd.graph.save_on_cpu, pin_memory=True)),
        stage=Stage.STEP,
        needs=_NEEDS,
        cost="All that is saved is copied to the host and back in every step.",
    )
    parts = sorted(situation.parts, key=lambda part: part.order)
    some = [part.name for part in parts[: len(parts) // 2] if part.saved_bytes > _WORTHWHILE * situation.peak_bytes]
    if some:
        yield _of_modules(some)


def _of_modules(names: Sequence[str]) -> Change:
    return Change(
        name=f"saved tensors of {module_words(names)} on the host (save_on_cpu)",
        family="offload",
        excludes=("checkpoint",),
        group=Group.COMPUTE,
        keeps=Keeps.BITS,
        lines=(
            "def on_host(forward):",
            "    def call(*args, **kwargs):",
            "        with torch.autograd.graph.save_on_cpu(pin_memory=True):",
            "            return forward(*args, **kwargs)",
            "    return call",
            f"for name in ({', '.join(map(repr, names))},):",
            "    block = model.get_submodule(name)",
            "    block.forward = on_host(block.forward)",
        ),
        stage=Stage.STEP,
        needs=_NEEDS,
        cost="What these modules save is copied to the host and back in every step.",
    )
