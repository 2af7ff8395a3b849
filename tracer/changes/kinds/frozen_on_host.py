"""Weights of an unchanged script that are not trained wait on the host until their layer is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tracer.changes.hooks import Hooks, Reached
from tracer.changes.host_copies import copied_to_device, copied_to_host, is_worth_moving
from tracer.workloads.module_steps import repeated_blocks


class FrozenOnHost(Hooks, makes="frozen-on-host"):
    """Has frozen weights wait on the host; behind what converts weights."""

    is_late = True
    known_after = Reached.CALL
    note = "no large weight of a repeated block is frozen."

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Have frozen weights of linear layers in repeated blocks on the device only while something uses them.

        Forward and backward each bring a layer's weight when they come to it. The model's first parameter stays, for
        programs ask that one where the model is.
        """
        first = next(model.parameters(), None)
        weights: dict[Tensor, _FrozenWeight] = {}
        for layer in (layer for block in repeated_blocks(model) for layer in block.modules()):
            # With nothing to train it saves its weight for backward, and nothing else.
            if type(layer) is not nn.Linear or any(parameter.requires_grad for parameter in layer.parameters()):
                continue
            if layer.weight not in weights:
                if layer.weight is first or not is_worth_moving(layer.weight):
                    continue
                weights[layer.weight] = _FrozenWeight(layer.weight)
            layer.register_forward_pre_hook(weights[layer.weight].before_call)
            layer.register_forward_hook(weights[layer.weight].after_call, always_call=True)
        self.num_made += len(weights)


class _Place(NamedTuple):
    """Of what is saved of a weight, in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _FrozenWeight:
    """A weight whose numbers are on the host between calls; layers that share it share this."""

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._device, self._host = weight, weight.device, copied_to_host(weight.data)
        self._saving: saved_tensors_hooks | None = None
        self._is_back = False
        weight.data = self._host

    def before_call(self, layer: nn.Module, args: Any) -> None:
        """Bring it, and have autograd save nothing in its place but where it is; one that is trained by now stays."""
        if self._is_back:
            return
        self._weight.data = copied_to_device(self._host, self._device)
        self._is_back = self._weight.requires_grad
        if not self._is_back:
            self._saving = saved_tensors_hooks(self._saved, self._used)
            self._saving.__enter__()

    def after_call(self, layer: nn.Module, args: Any, output: Any) -> None:
        """Let go of it."""
        if self._saving is not None:
            self._saving.__exit__()
            self._saving = None
            self._weight.data = self._host

    def _saved(self, tensor: Tensor) -> Tensor | _Place:
        if tensor.untyped_storage().data_ptr() != self._weight.untyped_storage().data_ptr():
            return tensor.detach()  # without its graph: a node would keep itself
        return _Place(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _used(self, saved: Tensor | _Place) -> Tensor:
        return saved if isinstance(saved, Tensor) else copied_to_device(self._host, self._device).as_strided(*saved)
