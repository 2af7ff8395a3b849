"""The peak of a device over the life of a process, explained from the allocator's history."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tracer.answers.difference import SavedPeak
from tracer.answers.rows import Row
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.blocks.from_recording.block_facts import KIND_OF_ROLE
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.objects.call_hooks import CallHooks, hook_every_module
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_observer import optimizer_tensors
from tracer.capture.torch_private import torch_graph
from tracer.sessions.on_null_gpu import allocator_history, origin_of
from tracer.snapshot.load import snapshot_in_memory


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
        torchs = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> None:  # `Tensor.backward` calls it too
            torchs(*args, **kwargs)
            self._look_at_gradients()

        torch.autograd.backward = backward
        self._unpatch = partial(setattr, torch.autograd, "backward", torchs)

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
    """Return the address of a tensor's storage; 0 for a tensor without one, such as a lazy layer's weight."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError, ValueError):
        return 0


def allocations_of(
    seen: Iterable[SeenTensor], addresses: list[int], num_allocations: int
) -> Iterator[tuple[int, Role]]:
    """Return which allocations of a history made the seen tensors, and the role of each.

    Args:
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


ROUNDING = "rounding"


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The most that was in use."""

    peak: SavedPeak  # With rows that sum to it, as the allocator counted it
    reserved_bytes: int  # Reserved from the driver at most
    caveat: str  # What has to be said of it before anything else; empty on a GPU


class ProcessMemory:
    """Records what all GPUs that a process sees allocate, from now on."""

    def __init__(self) -> None:
        """Begin to record."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        self._histories = [allocator_history(device, stacks_of_frees=False) for device in devices]
        for history in self._histories:
            torch.cuda.reset_peak_memory_stats(history.device)
            history.start()
        self._training = SeenInTraining("cuda")

    def stop(self) -> None:
        """Record no longer."""
        self._training.stop()
        for history in self._histories:
            history.stop()

    def worst(self) -> ProcessPeak:
        """The device that had most in use, explained."""
        peaks = [(_counted("allocated", history.device), history) for history in self._histories]
        size_bytes, history = max(peaks, key=lambda peak: peak[0])
        history.dump()
        peak = SavedPeak(str(history.device), size_bytes, None, _rows(history, size_bytes, self._training.tensors))
        return ProcessPeak(peak, _counted("reserved", history.device), origin_of(history.device).caveat)


def _counted(counter: str, device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get(f"{counter}_bytes.all.peak", 0))


def _rows(history: AllocatorHistory, size_bytes: int, seen: tuple[SeenTensor, ...]) -> tuple[Row, ...]:
    """Rows by kind and line, and what the allocator has rounded up, which sum to the peak."""
    groups: tuple[Row, ...] = ()
    if history.snapshot is not None and size_bytes:
        columns = snapshot_in_memory(_with_roles(history.snapshot, history.device, seen))
        if any(state.device == history.device.index for state in columns.devices):
            found = explain_replayed(replay_snapshot(columns, device=history.device.index))
            groups = found.worst.peak.rows
    rows = [replace(group, category=group.kind.words, phase="", stack=None, callers=()) for group in groups]
    rest = size_bytes - sum(row.bytes for row in rows)
    return (*rows, Row(rest, 1, ROUNDING, None, "", "", None, None, None, None)) if rest else tuple(rows)


def _with_roles(snapshot: dict[str, Any], device: torch.device, seen: tuple[SeenTensor, ...]) -> dict[str, Any]:
    """Return the snapshot, with the kinds of the device's seen tensors on the entries that allocated them."""
    counters, traces = read_counters(device), [*snapshot["device_traces"]]
    if counters is None:
        return dict(snapshot)
    entries = list(traces[device.index])
    rows = [row for row, entry in enumerate(entries) if entry["action"] == "alloc"]
    addresses = [entries[row]["addr"] for row in rows]
    own = [tensor for tensor in seen if tensor.device == device]
    for position, role in allocations_of(own, addresses, counters.num_allocations):
        row = rows[position]
        entries[row] = {**entries[row], "category": KIND_OF_ROLE[role].words}
    traces[device.index] = entries
    return {**snapshot, "device_traces": traces}
