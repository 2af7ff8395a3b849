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
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from tracer.capture.torch_private.torch_graph import running_node
from tracer.changes.kept_on_host import SavedOnHost, StateOnHost
from tracer.changes.kinds.bf16_state import StateInBf16
from tracer.changes.kinds.bucket_views import BucketViews
from tracer.changes.kinds.eight_bit_state import StateIn8Bits
from tracer.changes.kinds.frozen_on_host import move_frozen
from tracer.changes.kinds.loss_in_chunks import LossInChunks
from tracer.changes.kinds.optimizer_kernels import can_be_fused
from tracer.changes.kinds.shard import ShardedInstead
from tracer.changes.kinds.sparse_tables import SparseTables
from tracer.changes.script_changes import (
    BF16,
    BF16_STATE,
    BF16_WEIGHTS,
    BUCKET_VIEWS,
    CHECKPOINT,
    CHUNKED_LOSS,
    COMPILE,
    FREE_GRADIENTS,
    FROZEN_ON_HOST,
    FUSED,
    SAVED_ON_HOST,
    SHARD,
    SPARSE_GRADIENTS,
    STATE_IN_8_BITS,
    STATE_ON_HOST,
    ScriptChange,
)
from tracer.workloads.module_steps import repeated_blocks
from tracer.workloads.module_tensors import all_tensors

_ON_MODELS = {
    COMPILE,
    CHECKPOINT,
    CHUNKED_LOSS,
    SPARSE_GRADIENTS,
    FROZEN_ON_HOST,
    SAVED_ON_HOST,
    BF16,
    BF16_WEIGHTS,
}
_NO_STATE = "no optimizer has state in float32 that another change has not moved."
_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class AppliedChanges:
    """Makes changes for as long as it is entered; what they have changed in models and optimizers stays."""

    def __init__(
        self, changes: Sequence[ScriptChange], *, choose: Callable[[], Sequence[ScriptChange]] | None = None
    ) -> None:
        """Set up; the changes are in effect while this is entered.

        Args:
            choose: Asked for them instead, before the first call of a module, or in `decide`.
        """
        self._changes = frozenset(changes)
        self._choose = choose
        self._hooks, self._until_chosen, self._functions = ExitStack(), ExitStack(), ExitStack()
        self._depth = 0
        self._in_call = ExitStack()
        self._losses = LossInChunks()
        self._state = StateOnHost()
        self._in_8_bits = StateIn8Bits()
        self._in_bf16 = StateInBf16(leaves=self._in_8_bits.is_one)
        self._buckets = BucketViews()
        self._sharded = ShardedInstead()
        self._tables = SparseTables()
        self._num_steps = 0
        self._has_called = False
        # Weak: what a program has replaced is not kept, and its `id` is another's soon.
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.num_blocks = 0
        """How many modules compute again; a model that has its own switch for it is one."""
        self.num_compiled = 0
        self.num_frozen = 0
        """How many weights that are not trained wait on the host."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be made, a sentence each; and lines for a script instead of what a library makes here."""
        # A program whose memory ended before its first step has not come to its loss yet, say.
        has_stepped = self._num_steps > 0
        in_vain = (
            (COMPILE, not self.num_compiled, "the model has no repeated blocks."),
            (CHECKPOINT, not self.num_blocks, "the model has no repeated blocks."),
            (
                BUCKET_VIEWS,
                has_stepped and not self._buckets.num_made,
                "no DistributedDataParallel was made that copies gradients.",
            ),
            (SHARD, has_stepped and not self._sharded.num_made, "no DistributedDataParallel was made."),
            (SPARSE_GRADIENTS, self._has_called and not self._tables.num_made, self._tables.note),
            (CHUNKED_LOSS, has_stepped and not self._losses.num_calls, "no large loss over classes was computed."),
            (
                FROZEN_ON_HOST,
                self._has_called and not self.num_frozen,
                "no large weight of a repeated block is frozen.",
            ),
            (STATE_ON_HOST, has_stepped and not self._state.num_tensors, "no optimizer has state on a GPU."),
            (
                STATE_IN_8_BITS,
                has_stepped and (not self._in_8_bits.num_made or self._in_8_bits.is_estimate),
                self._in_8_bits.note or _NO_STATE,
            ),
            (BF16_STATE, has_stepped and not self._in_bf16.num_tensors, _NO_STATE),
        )
        notes = tuple(f"{change.name}: {why}" for change, holds, why in in_vain if holds and change in self._changes)
        return (*notes, self._in_8_bits.in_script) if self._in_8_bits.in_script else notes

    def __enter__(self) -> Self:
        """Register the hooks that make the changes, or those that find out when they have to be chosen."""
        if self._choose is None:
            self._register()
        else:
            self._until_chosen.callback(register_module_forward_pre_hook(self._before_first_call).remove)
        if CHUNKED_LOSS in self._changes or self._choose is not None:  # a script may import the function by itself
            self._functions.enter_context(self._losses.of_functions())
            self._losses.is_on = CHUNKED_LOSS in self._changes
        return self

    def decide(self) -> None:
        """Ask for the changes now, and make them from here on; nothing where they are known."""
        choose, self._choose = self._choose, None
        if choose is None:
            return
        self._until_chosen.close()
        self._changes = frozenset(choose())
        self._losses.is_on = CHUNKED_LOSS in self._changes
        if not self._losses.is_on:
            self._functions.close()
        self._register()

    def _before_first_call(self, module: nn.Module, args: Any) -> None:
        self.decide()
        if self._changes & _ON_MODELS:  # the hooks of this call were read before ours was among them
            self._before_call(module, args)

    def _register(self) -> None:
        if self._changes & _ON_MODELS:
            self._hooks.callback(register_module_forward_pre_hook(self._before_call).remove)
            self._hooks.callback(register_module_forward_hook(self._after_call, always_call=True).remove)
        self._hooks.callback(register_optimizer_step_post_hook(self._after_step).remove)
        if FUSED in self._changes:
            self._hooks.callback(register_optimizer_step_pre_hook(_fuse).remove)
        of_state = ((STATE_ON_HOST, self._state), (STATE_IN_8_BITS, self._in_8_bits), (BF16_STATE, self._in_bf16))
        made = [state for change, state in of_state if change in self._changes]
        # The first that makes a step leaves the optimizer without parameters for the others, and gives them back last.
        for state in made:
            self._hooks.callback(register_optimizer_step_pre_hook(state.before_step).remove)
        for state in reversed(made):
            self._hooks.callback(register_optimizer_step_post_hook(state.after_step).remove)
        if BUCKET_VIEWS in self._changes:
            self._hooks.enter_context(self._buckets.switched_on())
        if SHARD in self._changes:  # behind bucket-views: there are no buckets then
            self._hooks.enter_context(self._sharded.switched_on())
            self._hooks.callback(register_optimizer_step_pre_hook(self._sharded.before_step).remove)
        if FREE_GRADIENTS in self._changes:
            self._hooks.callback(register_optimizer_step_post_hook(_free_gradients).remove)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Change nothing more."""
        self._in_call.close()
        self._until_chosen.close()
        self._functions.close()
        self._hooks.close()

    def _before_call(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        if CHUNKED_LOSS in self._changes:
            self._losses.before_call(module)
        if self._depth > 1:
            return
        self._has_called = True
        if module not in self._seen:
            if CHECKPOINT in self._changes:
                self._checkpoint(module)
            if SPARSE_GRADIENTS in self._changes:
                self._tables.switch_on(module)
            if BF16_WEIGHTS in self._changes:
                _convert(module)
            if FROZEN_ON_HOST in self._changes:
                self.num_frozen += move_frozen(module)
            if COMPILE in self._changes:
                self._compile(module)
            # All inside, too: backward calls them by themselves where they compute again.
            self._seen.update(module.modules())
        if self._changes & {BF16, BF16_WEIGHTS}:
            device = next((parameter.device.type for parameter in module.parameters()), "cuda")
            self._in_call.enter_context(torch.autocast(device, torch.bfloat16))
        # What backward computes again it uses at once, and the hooks of checkpointing have to see it.
        if SAVED_ON_HOST in self._changes and torch.is_grad_enabled() and running_node() is None:
            self._in_call.enter_context(SavedOnHost(module))

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._num_steps += 1

    def _checkpoint(self, module: nn.Module) -> None:
        if num_models := _switch_on(module):
            self.num_blocks += num_models
            return
        for block in repeated_blocks(module):
            if block not in self._seen:
                block.forward = _computed_again(block, block.forward)
                self.num_blocks += 1

    def _compile(self, module: nn.Module) -> None:
        """Compile blocks and not the model, whose own call has begun; checkpointing is inside, where torch knows it."""
        for block in repeated_blocks(module):
            if block not in self._seen:
                block.forward = torch.compile(block.forward)
                self.num_compiled += 1

    def _after_call(self, module: nn.Module, args: Any, output: Any) -> Any:
        if CHUNKED_LOSS in self._changes:
            output = self._losses.after_call(module, output)
        self._depth -= 1
        if self._depth == 0:
            self._in_call.close()
        return output


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
    """Convert real tensors to bfloat16: `module.to` would drop the imaginary part of complex weights.

    The parameter objects stay the same, so that the optimizer still knows them.
    """
    for tensor in all_tensors(module):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.bfloat16)


def _computed_again(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        if block.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return called


def _free_gradients(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _fuse(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before its first step: state that is there already was made for the other kernels."""
    if optimizer.state:
        return
    is_fused = type(optimizer) in _FUSED_ON_CUDA and can_be_fused(optimizer) and not _has_sparse(optimizer)
    for group in optimizer.param_groups:
        if group.get("foreach", False) is not False or is_fused:
            group["foreach"] = False
        if is_fused and not group.get("differentiable"):
            group["fused"] = True


def _has_sparse(optimizer: torch.optim.Optimizer) -> bool:
    grads = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
    return any(grad is not None and grad.is_sparse for grad in grads)
