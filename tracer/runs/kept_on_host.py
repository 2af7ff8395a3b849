"""Memory of an unchanged script that waits on the host until it is used: saved activations, and optimizer state."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.torch_private.torch_modules import STEP_HOOKS
from tracer.null_gpu import process

_WORTHWHILE_BYTES = 1 << 20
"""A copy of less costs as much time as it saves memory: it stays."""
_PART_BYTES = 1 << 28
"""Parameters that step together: their state is on the device at the same time."""
_STEP_BY_PARAMETER = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)
"""Each parameter's update depends on that parameter alone, so that it makes no difference which step together."""


class SavedOnHost(torch.autograd.graph.saved_tensors_hooks):
    """What forward saves for backward lies in the host's pinned memory until backward uses it.

    Unlike `torch.autograd.graph.save_on_cpu` it leaves parameters, which are on the device in any case, and what is
    small.
    """

    def __init__(self, model: nn.Module) -> None:
        """Set up the hooks that move saved tensors.

        Args:
            model: The model; its parameters stay on the device.
        """
        resident = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> tuple[torch.device | None, Tensor]:
            if not is_worth_moving(tensor) or tensor.untyped_storage().data_ptr() in resident:
                return None, tensor.detach()  # without its graph: a node would keep itself
            return tensor.device, copied_to_host(tensor)

        def unpack(packed: tuple[torch.device | None, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else copied_to_device(tensor, device)

        super().__init__(pack, unpack)


class StateOnHost:
    """The state of optimizers is on the device during their steps alone, and of torch's own a part at a time.

    Attributes:
        num_tensors: How many were moved by now.
    """

    def __init__(self) -> None:
        """Begin with nothing moved."""
        self.num_tensors = 0
        self._places: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[tuple[int, str], Tensor]]
        self._places = weakref.WeakKeyDictionary()
        self._own_groups: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]]
        self._own_groups = weakref.WeakKeyDictionary()

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Move the state to the device of its parameters; or make the whole step, a part of the parameters at a time.

        Args:
            optimizer: About to step. If the step has been made, it has no parameters until `after_step`.
            args: Of its step, the optimizer first.
            kwargs: The same by name.
        """
        own = self._own_groups.pop(optimizer, optimizer.param_groups)  # if a hook between the two raised
        optimizer.param_groups = own
        if not _can_step_in_parts(optimizer, (*args[1:], *kwargs.values())):
            self._to_device(optimizer, _parameters(own))
            return
        step = inspect.unwrap(type(optimizer).step, stop=lambda step: not hasattr(step, "hooked"))
        try:
            for part in _parts(own):
                optimizer.param_groups = [part]
                self._to_device(optimizer, part["params"])
                step(optimizer)
                self._to_host(optimizer, part["params"])
        finally:
            optimizer.param_groups = own
        self._own_groups[optimizer] = own
        optimizer.param_groups = [{**group, "params": []} for group in own]

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Move the state to the host, to the same memory each time."""
        own = self._own_groups.pop(optimizer, None)
        if own is not None:
            optimizer.param_groups = own
        else:
            self._to_host(optimizer, _parameters(optimizer.param_groups))

    def _to_device(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        places = self._places.get(optimizer, {})
        for parameter, values in _states(optimizer, parameters):
            for name, value in values.items():
                on_host = places.get((id(parameter), name))
                if on_host is not None and value is on_host:
                    values[name] = copied_to_device(on_host, parameter.device)

    def _to_host(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        places = self._places.setdefault(optimizer, {})
        for parameter, values in _states(optimizer, parameters):
            for name, value in values.items():
                if not isinstance(value, Tensor) or not is_worth_moving(value):
                    continue
                on_host = places.get((id(parameter), name))
                if on_host is None or (on_host.shape, on_host.dtype) != (value.shape, value.dtype):
                    on_host = copied_to_host(value)
                    places[id(parameter), name] = on_host
                    self.num_tensors += 1
                else:
                    _copy(on_host, value)
                values[name] = on_host


def _can_step_in_parts(optimizer: torch.optim.Optimizer, arguments: Sequence[Any]) -> bool:
    """Whether nobody sees that it does: a closure or a hook of its own, which comes behind ours, would."""
    has_hooks = bool(getattr(optimizer, STEP_HOOKS[0], None))
    return type(optimizer) in _STEP_BY_PARAMETER and not has_hooks and all(value is None for value in arguments)


def _parameters(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    return [parameter for group in groups for parameter in group["params"]]


def _parts(groups: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Groups of at most so many bytes of parameters, or of one parameter."""
    for group in groups:
        part: list[Tensor] = []
        num_bytes = 0
        for parameter in group["params"]:
            if part and num_bytes + parameter.nbytes > _PART_BYTES:
                yield {**group, "params": part}
                part, num_bytes = [], 0
            part.append(parameter)
            num_bytes += parameter.nbytes
        if part:
            yield {**group, "params": part}


def _states(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[tuple[Tensor, dict[str, Any]]]:
    known = [(parameter, optimizer.state.get(parameter)) for parameter in parameters]
    return [(parameter, values) for parameter, values in known if isinstance(values, dict)]


def is_worth_moving(tensor: Tensor) -> bool:
    """Whether to copy it is worthwhile: a plain one, of some size, on a GPU."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_cuda
        and tensor.layout == torch.strided
        and tensor.numel() * tensor.element_size() >= _WORTHWHILE_BYTES
    )


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory of the host."""
    return _copy(torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True), tensor)


def copied_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on a device."""
    return _copy(torch.empty_like(tensor, device=device), tensor)


def _copy(into: Tensor, source: Tensor) -> Tensor:
    """A null GPU's numbers are made up: to write gigabytes of them, and back, would be most of a run there."""
    if process.is_active() and source.is_floating_point():
        return into
    return into.copy_(source, non_blocking=True)
