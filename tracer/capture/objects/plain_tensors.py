"""The plain tensors behind any tensor: those whose storage has an address."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tracer.capture.torch_private import torch_tensors

_COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def address_of(storage: torch.UntypedStorage) -> int | None:
    """Address of a storage's memory; None if it has none, as a meta, fake or wrapped tensor's."""
    if storage.device.type == "meta":  # torch warns of asking a fake tensor's
        return None
    try:
        return storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None


def storages_with_memory(tensor: Tensor | torch.UntypedStorage) -> list[torch.UntypedStorage]:
    """The storages behind a tensor, or the one that is given, but for those without memory.

    Raises:
        Exception: Tensors of other people's making raise what they like.
    """
    storages = (
        [tensor]
        if isinstance(tensor, torch.UntypedStorage)
        else [part.untyped_storage() for part in plain_tensors(tensor)]
    )
    return [storage for storage in storages if address_of(storage) is not None]


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors behind one: itself, a sharded one's local part, a sparse one's values and indices.

    Nothing for a tensor on the meta device. What a transform of torch.func wraps is looked at below the transform.
    """
    tensor = torch_tensors.below_transforms(tensor)
    if torch_tensors.is_made_of_tensors(tensor):
        # The protocol by which torch.compile takes a subclass apart: names of attributes. A DTensor names its local
        # tensor and its mesh of devices, which is no tensor.
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            if isinstance(part := getattr(tensor, name), Tensor):
                yield from plain_tensors(part)
    elif tensor.layout is torch.strided:
        if tensor.device.type != "meta":
            yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from torch_tensors.parts_of_sparse(tensor)
    elif tensor.layout in _COMPRESSED_ROWS:
        yield from (tensor.values(), tensor.crow_indices(), tensor.col_indices())
    elif tensor.layout in _COMPRESSED_COLUMNS:
        yield from (tensor.values(), tensor.ccol_indices(), tensor.row_indices())
    else:
        raise NotImplementedError(f"a tensor of layout {tensor.layout} has no address")
