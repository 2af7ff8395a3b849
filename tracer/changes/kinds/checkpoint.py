"""Activation checkpointing: some modules keep their input only and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tracer.changes.hooks import Hooks, Reached


class Checkpoint(Hooks, makes="checkpoint"):
    """Has repeated blocks compute again; a model that has its own switch for it counts as one."""

    known_after = Reached.START
    note = "the model has no repeated blocks."

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Switch it on, or wrap what each block's forward is."""
        if num_models := _switch_on(model):
            self.num_made += num_models
            return
        for block in blocks:
            block.forward = _computed_again(block, block.forward)
        self.num_made += len(blocks)


def _switch_on(module: nn.Module) -> int:
    """Have models of Hugging Face, which know their own blocks, compute them again; how many models there are."""
    if not getattr(module, "supports_gradient_checkpointing", False):
        return sum(_switch_on(child) for child in module.children())
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    config: Any = getattr(module, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return 1


def _computed_again(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        if block.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return called
