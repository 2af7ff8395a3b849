"""The storages behind any value: of plain, sparse, nested and wrapped tensors, in containers of any depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch._C import _functorch
from torch._subclasses.fake_tensor import FakeTensor

_PARTS_OF_LAYOUT = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples, sets, mappings and dataclasses; storages are passed over."""
    if issubclass(type(value), Tensor):
        yield value  # type: ignore[misc]
    elif isinstance(value, Mapping):
        for each in list(value.values()):
            yield from tensors_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in list(value):
            yield from tensors_in(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors behind one; none for fake, meta and opaque ones."""
    if isinstance(tensor, FakeTensor):
        return
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            if isinstance(part := getattr(tensor, name), Tensor):  # a DTensor names its mesh of devices as well
                yield from parts_of(part)
    elif tensor.layout in _PARTS_OF_LAYOUT:
        for part in _PARTS_OF_LAYOUT[tensor.layout]:
            yield from parts_of(getattr(tensor, part)())
    elif tensor.layout is torch.strided and tensor.device.type != "meta":
        if tensor.is_nested:
            yield from (tensor._nested_tensor_size(), tensor._nested_tensor_strides())
            yield tensor._nested_tensor_storage_offsets()
            tensor = tensor.values()
        yield tensor


def storages_of(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages of one tensor that hold memory."""
    for part in parts_of(tensor):
        try:
            storage = part.untyped_storage()
            holds_memory = storage.nbytes() > 0 and storage.data_ptr() != 0
        except (NotImplementedError, RuntimeError):  # a tensor without storage, such as one of the compiler's
            continue
        if holds_memory:
            yield storage


def storages_in(value: object) -> Iterator[torch.UntypedStorage]:
    """The storages of all tensors in a value."""
    for tensor in tensors_in(value):
        yield from storages_of(tensor)
