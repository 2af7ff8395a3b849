"""Parameters, gradients and optimizer state of a process, each with the allocation that it was seen in.

A test's tensors are gone when the test has ended, so they are looked at while it runs: when a module is called, when a
backward pass has ended, and around an optimizer's step.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.device.memory_counters import read_counters
from tracer.capture.objects.call_hooks import CallHooks, hook_every_module
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_observer import optimizer_tensors
from tracer.capture.torch_private import torch_graph


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor's memory at one moment."""

    role: Role
    device: torch.device
    address: int  # Of its storage
    num_allocations: int  # Requests that the device's allocator had served by then


class SeenInTraining:
    """Looks at the tensors of all modules that are called and of all optimizers that step, until it is stopped."""

    def __init__(self, device_type: str) -> None:
        """Begin to look at tensors on devices of a type."""
        self._device_type = device_type
        self._seen: dict[SeenTensor, None] = {}
        # By `id()`: a parameter that was seen, and the address that it had then.
        self._parameters: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._unhook = hook_every_module(self._module_is_called)
        self._steps = CallHooks(before_step=self._step_begins, after_step=self._step_has_ended)
        self._steps.start()
        self._unpatch = _after_each_backward(self._look_at_gradients)

    @property
    def tensors(self) -> tuple[SeenTensor, ...]:
        """Tensors that were seen, in order."""
        return tuple(self._seen)

    def stop(self) -> None:
        """Look no longer."""
        self._unpatch()
        self._steps.stop()
        self._unhook()

    def _module_is_called(self, module: nn.Module, args: object) -> None:
        if not torch.compiler.is_compiling():
            self._look_at_parameters(Role.PARAMETER, module.parameters(recurse=False))
            self._look_at_parameters(Role.BUFFER, module.buffers(recurse=False))

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        groups = getattr(optimizer, "param_groups", ())
        self._look_at_parameters(Role.PARAMETER, chain.from_iterable(group["params"] for group in groups))
        self._look_at_gradients()

    def _step_has_ended(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._look((role, tensor) for role, _, tensor in optimizer_tensors(optimizer))

    def _look_at_parameters(self, role: Role, tensors: Iterable[Tensor]) -> None:
        new = []
        for tensor in tensors:
            address = _address(tensor)
            known = self._parameters.get(id(tensor))
            if known is None or known[0]() is not tensor or known[1] != address:
                self._parameters[id(tensor)] = weakref.ref(tensor), address
                new.append((role, tensor))
        self._look(new)

    def _look_at_gradients(self) -> None:
        known = [tensor for reference, _ in self._parameters.values() if (tensor := reference()) is not None]
        gradients = map(torch_graph.gradient_of, known)
        self._look((Role.GRADIENT, gradient) for gradient in gradients if gradient is not None)

    def _look(self, tensors: Iterable[tuple[Role, Tensor]]) -> None:
        served: dict[torch.device, int | None] = {}
        for role, tensor in tensors:
            device, address = tensor.device, _address(tensor)
            if device.type != self._device_type or not address:
                continue
            if device not in served:
                counters = read_counters(device)
                served[device] = None if counters is None else counters.num_allocations
            if (num_allocations := served[device]) is not None:
                self._seen[SeenTensor(role, device, address, num_allocations)] = None


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 for a tensor without one, such as a wrapper of other tensors."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _after_each_backward(look: Callable[[], None]) -> Callable[[], None]:
    """Have a function called after each `torch.autograd.backward`, which `Tensor.backward` calls too."""
    torchs = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        torchs(*args, **kwargs)
        look()

    torch.autograd.backward = backward
    return partial(setattr, torch.autograd, "backward", torchs)


def allocations_of(
    seen: Iterable[SeenTensor], addresses: list[int], num_allocations: int
) -> Iterator[tuple[int, Role]]:
    """Return which allocations of a history made the seen tensors, and the role of each.

    Args:
        seen: Tensors of one device.
        addresses: Address of each allocation of the history, in order.
        num_allocations: Requests that the allocator had served when the history ended.
    """
    before = num_allocations - len(addresses)  # served before the history's first allocation
    made: dict[int, list[int]] = {}
    for position, address in enumerate(addresses):
        made.setdefault(address, []).append(position)
    for tensor in seen:
        rows = made.get(tensor.address, [])
        num_earlier = bisect_left(rows, tensor.num_allocations - before)
        if num_earlier:
            yield rows[num_earlier - 1], tensor.role
