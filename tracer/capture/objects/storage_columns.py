"""The storages behind tensors: of many at once in loops of C, and of any tensor those that have an address.

A profiler that records stacks makes an event of every call that Python makes, ours too: some forty for a tensor that is
looked at by itself. What `map` calls is none.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.torch_private import torch_tensors

_COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def address_or_none(storage: torch.UntypedStorage) -> int | None:
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
    return [storage for storage in storages if address_or_none(storage) is not None]


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


_PLAIN = {Tensor, nn.Parameter}
_STORAGE = {torch.UntypedStorage}
_STRIDED = {torch.strided}
_META = torch.device("meta")
_layout = attrgetter("layout")

device_of = attrgetter("device")
address_of = torch.UntypedStorage.data_ptr
size_of = torch.UntypedStorage.nbytes


def plain_storages(looked_at: Sequence[Any]) -> list[torch.UntypedStorage] | None:
    """The storages of plain tensors, or the storages that are given; None where one of them takes a closer look."""
    types = set(map(type, looked_at))
    if types != _STORAGE and not (
        types <= _PLAIN
        and not torch_tensors.any_is_wrapped_by_transform(looked_at)
        and set(map(_layout, looked_at)) <= _STRIDED
    ):
        return None
    try:
        storages = list(looked_at if types == _STORAGE else map(Tensor.untyped_storage, looked_at))
        # Those of fake tensors among them, of which torch warns when it is asked where they are.
        if _META in set(map(device_of, storages)):
            return None
        list(map(address_of, storages))
    except RuntimeError:  # one has no storage, as in the vmap of torch.autograd.functional, or no address to tell
        return None
    return storages


_Named = tuple[str, Tensor]


class MovedParameters:
    """Finds parameters whose memory is another than before: `parameter.data = ...`, as MoCo updates its key encoder.

    Their storages are not kept alive; a look costs about 1 us a parameter.
    """

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def among(self, parameters: Collection[_Named]) -> list[tuple[Role, str, Tensor]]:
        """Parameters with another storage than when last looked at, and those not looked at so far."""
        looked_at = list(parameters)
        storages = plain_storages([parameter for _, parameter in looked_at])
        if storages is None:  # some are not plain: one by one
            looked_at, storages = _with_a_storage(looked_at)
        ids = list(map(id, [parameter for _, parameter in looked_at]))
        moved = [  # without a call of Python's
            (number, named, storage)
            for number, named, storage, seen in zip(ids, looked_at, storages, map(self._seen.get, ids), strict=True)
            if seen is None or seen() is not storage
        ]
        self._seen.update([(number, weakref.ref(storage)) for number, _, storage in moved])
        return [(Role.PARAMETER, name, parameter) for _, (name, parameter), _ in moved]


def _with_a_storage(parameters: Collection[_Named]) -> tuple[list[_Named], list[torch.UntypedStorage]]:
    """The plain ones among them that have memory of their own, which a sparse tensor has not."""
    pairs: list[tuple[_Named, torch.UntypedStorage]] = []
    for named in parameters:
        if type(named[1]) in _PLAIN and not torch_tensors.is_wrapped_by_transform(named[1]):
            try:
                pairs.append((named, named[1].untyped_storage()))
            except (RuntimeError, NotImplementedError):
                continue
    return [named for named, _ in pairs], [storage for _, storage in pairs]
