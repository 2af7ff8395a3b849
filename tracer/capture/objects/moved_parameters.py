"""Parameters whose memory is another than before: `parameter.data = ...`, as MoCo updates its key encoder."""

from __future__ import annotations

import weakref
from collections.abc import Collection

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_columns import plain_storages
from tracer.capture.torch_private import torch_tensors

_PLAIN = (Tensor, nn.Parameter)
_Named = tuple[str, Tensor]


class MovedParameters:
    """Remembers which storage each parameter had, without keeping it alive; a look costs about 1 us a parameter."""

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def among(self, parameters: Collection[_Named]) -> list[tuple[Role, str, Tensor]]:
        """Parameters with another storage than when last looked at, and those not looked at so far."""
        looked_at = list(parameters)
        storages = plain_storages([parameter for _, parameter in looked_at])
        if storages is None:  # some are not plain: one by one
            looked_at, storages = _with_a_storage(looked_at)
        ids = list(map(id, [parameter for _, parameter in looked_at]))
        moved = [  # without a call: see storage_columns.py
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
