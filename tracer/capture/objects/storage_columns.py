"""The storages of many tensors at once, in loops of C.

A profiler that records stacks makes an event of every call that Python makes, ours too: some forty for a tensor that is
looked at by itself. What `map` calls is none.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.torch_private import torch_tensors

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
    if types != _STORAGE and not (types <= _PLAIN and _are_strided(looked_at)):
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


def _are_strided(tensors: Sequence[Tensor]) -> bool:
    """Whether none is sparse, or wrapped by a transform of torch.func."""
    return not torch_tensors.any_is_wrapped_by_transform(tensors) and set(map(_layout, tensors)) <= _STRIDED


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
