"""Makes changes of an unchanged script while it runs, by hooks on its modules and optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from tracer.advice.changes.optimizer_kernels import can_be_fused
from tracer.runs.script_changes import BF16, BF16_WEIGHTS, CHECKPOINT, FUSED, ScriptChange
from tracer.workloads.module_steps import repeated_blocks

_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class AppliedChanges:
    """Makes changes for as long as it is entered; what they have changed in models and optimizers stays."""

    def __init__(self, changes: Sequence[ScriptChange]) -> None:
        """Prepare."""
        self._changes = frozenset(changes)
        self._hooks = ExitStack()
        self._depth = 0
        self._autocast = ExitStack()
        # Weak: what a program has replaced is not kept, and its `id` is another's soon.
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.num_blocks = 0
        """How many modules compute again; a model that has its own switch for it is one."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be made, a sentence each."""
        nothing = CHECKPOINT in self._changes and not self.num_blocks
        return (f"{CHECKPOINT.name}: the model has no repeated blocks.",) if nothing else ()

    def __enter__(self) -> Self:
        """Begin."""
        on_modules = torch.nn.modules.module
        if self._changes & {CHECKPOINT, BF16, BF16_WEIGHTS}:
            handles = [
                on_modules.register_module_forward_pre_hook(self._before_call),
                on_modules.register_module_forward_hook(self._after_call, always_call=True),
            ]
            for handle in handles:
                self._hooks.callback(handle.remove)
        if FUSED in self._changes:
            self._hooks.callback(register_optimizer_step_pre_hook(_fuse).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Change nothing more."""
        self._autocast.close()
        self._hooks.close()

    def _before_call(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if module not in self._seen:
            if CHECKPOINT in self._changes:
                self._checkpoint(module)
            if BF16_WEIGHTS in self._changes:
                _convert(module)
            # All inside, too: backward calls them by themselves where they compute again.
            self._seen.update(module.modules())
        if self._changes & {BF16, BF16_WEIGHTS}:
            device = next((parameter.device.type for parameter in module.parameters()), "cuda")
            self._autocast.enter_context(torch.autocast(device, torch.bfloat16))

    def _checkpoint(self, module: nn.Module) -> None:
        if num_models := _switch_on(module):
            self.num_blocks += num_models
            return
        for block in repeated_blocks(module):
            if block not in self._seen:
                block.forward = _computed_again(block, block.forward)
                self.num_blocks += 1

    def _after_call(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._autocast.close()


def _switch_on(module: nn.Module) -> int:
    """Have models of Hugging Face, which know their own blocks, compute them again; how many models there are."""
    if not getattr(module, "supports_gradient_checkpointing", False):
        return sum(_switch_on(child) for child in module.children())
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    config: Any = getattr(module, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return 1


def _convert(module: nn.Module) -> None:
    """To bfloat16, what is real: `module.to` would drop the imaginary part of complex weights.

    The parameters stay the same, of which the optimizer knows.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.bfloat16)


def _computed_again(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        if block.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return called


def _fuse(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before its first step: state that is there already was made for the other kernels."""
    if optimizer.state:
        return
    is_fused = type(optimizer) in _FUSED_ON_CUDA and can_be_fused(optimizer)
    for group in optimizer.param_groups:
        if group.get("foreach", False) is not False or is_fused:
            group["foreach"] = False
        if is_fused and not group.get("differentiable"):
            group["fused"] = True
