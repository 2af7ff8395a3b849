"""Makes changes of an unchanged script while it runs, by hooks on its modules and optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from tracer.runs.script_changes import BF16, BF16_WEIGHTS, CHECKPOINT, FUSED, ScriptChange

_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class AppliedChanges:
    """Makes changes for as long as it is entered; what they have changed in models and optimizers stays."""

    def __init__(self, changes: Sequence[ScriptChange]) -> None:
        """Prepare."""
        self._changes = frozenset(changes)
        self._hooks = ExitStack()
        self._depth = 0
        self._autocast = ExitStack()
        self._seen: set[int] = set()
        self.num_blocks = 0
        """How many modules compute again."""

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
        if id(module) not in self._seen:
            self._seen.add(id(module))
            self.num_blocks += _checkpoint(module) if CHECKPOINT in self._changes else 0
            if BF16_WEIGHTS in self._changes:
                module.to(torch.bfloat16)  # the same parameters, of which the optimizer knows
        if self._changes & {BF16, BF16_WEIGHTS}:
            device = next((parameter.device.type for parameter in module.parameters()), "cuda")
            self._autocast.enter_context(torch.autocast(device, torch.bfloat16))

    def _after_call(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._autocast.close()


def _checkpoint(model: nn.Module) -> int:
    """Have the repeated blocks of a model compute again; how many they are."""
    for module in model.modules():
        if getattr(module, "supports_gradient_checkpointing", False):  # a model of Hugging Face knows its own
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
            config: Any = getattr(module, "config", None)
            if hasattr(config, "use_cache"):
                config.use_cache = False
            return 1
    found = list(repeated_blocks(model))
    for block in found:
        block.forward = _computed_again(block, block.forward)
    return len(found)


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules of which a list or a sequence has several of one class, each with modules of its own."""
    is_container = isinstance(module, nn.ModuleList | nn.Sequential)
    large = [child for child in module.children() if is_container and any(True for _ in child.children())]
    if len(large) > len({type(child) for child in large}):
        yield from large
        return
    for child in module.children():
        yield from repeated_blocks(child)


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
    is_fused = type(optimizer) in _FUSED_ON_CUDA
    for group in optimizer.param_groups:
        if group.get("foreach", False) is not False or is_fused:
            group["foreach"] = False
        if is_fused and not group.get("differentiable"):
            group["fused"] = True
