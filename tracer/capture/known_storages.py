"""What is certain because somebody holds the object: where parameters, gradients, optimizer state and inputs lie.

An observation says that at this time this address held this tensor. It takes addresses and sizes only: no tensor is
kept alive, copied or touched, and no random state, gradient or counter changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Ints = npt.NDArray[np.int64]


class Role(IntEnum):
    """What an object is to a training run."""

    PARAMETER = 0
    BUFFER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    INPUT = 4


@dataclass(frozen=True, slots=True, eq=False)
class KnownStorages:
    """Observations in time order, columns [H]. A storage that several tensors share appears once per observation."""

    time_ns: Ints
    address: Ints
    size_bytes: Ints
    role: Ints
    name: Ints
    """Index in `names`."""
    device: Ints
    """Index in `devices`."""
    names: tuple[str, ...]
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        columns = (self.time_ns, self.address, self.size_bytes, self.role, self.name, self.device)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("columns of KnownStorages differ in length")

    def words_at(self, device: str | None = None) -> dict[int, str]:
        """What was held at each address by the latest look at it: `parameter`, `optimizer state` and so on.

        Args:
            device: As `str(torch.device)` writes it; None is all, whose addresses differ under CUDA.
        """
        wanted = [device in (None, name) for name in self.devices]
        columns = zip(self.address.tolist(), self.role.tolist(), self.device.tolist(), strict=True)
        return {address: Role(role).name.lower().replace("_", " ") for address, role, at in columns if wanted[at]}


class StorageObserver:
    """Collects observations during a run."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._names: dict[str, int] = {}
        self._devices: dict[str, int] = {}

    def observe(self, tensors: Iterable[tuple[Role, str, Tensor]]) -> None:
        """Note where tensors lie now."""
        now, seen = time.time_ns(), set()
        for role, name, tensor in tensors:
            for part in _parts(tensor):
                storage = part.untyped_storage()
                address, size_bytes = storage.data_ptr(), storage.nbytes()
                place = (address, str(part.device))
                if size_bytes == 0 or address == 0 or place in seen:
                    continue
                seen.add(place)
                name_index = self._names.setdefault(name, len(self._names))
                device_index = self._devices.setdefault(place[1], len(self._devices))
                self._rows.append((now, address, size_bytes, int(role), name_index, device_index))

    def observations(self) -> KnownStorages:
        """Everything observed so far."""
        table = np.array(self._rows, np.int64).reshape(-1, 6)
        time_ns, address, size_bytes, role, name, device = (np.ascontiguousarray(column) for column in table.T)
        names, devices = tuple(self._names), tuple(self._devices)
        return KnownStorages(time_ns, address, size_bytes, role, name, device, names, devices)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors behind one: a sharded one's local part, a sparse one's values; nothing for fake ones."""
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, Tensor):
        yield local
    elif tensor.layout is torch.strided:
        if tensor.device.type != "meta":
            yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._values(), tensor._indices())


def model_tensors(model: nn.Module) -> Iterator[tuple[Role, str, Tensor]]:
    """A model's parameters, their gradients where there are some, and its buffers, by dotted name."""
    for name, parameter in model.named_parameters():
        yield Role.PARAMETER, name, parameter
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield Role.GRADIENT, name, parameter.grad
    for name, buffer in model.named_buffers():
        yield Role.BUFFER, name, buffer


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: dict[int, str] | None = None
) -> Iterator[tuple[Role, str, Tensor]]:
    """An optimizer's state tensors, named `parameter.state`, such as `fc1.weight.exp_avg`.

    Args:
        optimizer: Any; state that is not a tensor is passed over.
        names: Names of parameters by `id()`.
    """
    for parameter, state in optimizer.state.items():
        owner = (names or {}).get(id(parameter), "parameter")
        for key, value in state.items():
            if isinstance(value, Tensor):
                yield Role.OPTIMIZER_STATE, f"{owner}.{key}", value


def input_tensors(batch: object, name: str = "batch") -> Iterator[tuple[Role, str, Tensor]]:
    """The tensors in a batch of nested tuples, lists and dicts, named by their place."""
    if isinstance(batch, Tensor):
        yield Role.INPUT, name, batch
    elif isinstance(batch, dict):
        for key, value in batch.items():
            yield from input_tensors(value, f"{name}.{key}")
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from input_tensors(value, f"{name}[{index}]")
