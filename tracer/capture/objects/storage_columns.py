"""The storages of many tensors at once, in loops of C.

A profiler that records stacks makes an event of every call that Python makes, ours too: some forty for a tensor that is
looked at by itself. What `map` calls is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

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
    if types == _STORAGE:
        storages = list(looked_at)
    elif types <= _PLAIN and _are_strided(looked_at):
        storages = list(map(Tensor.untyped_storage, looked_at))
    else:
        return None
    # Those of fake tensors among them, of which torch warns when it is asked where they are.
    if _META in set(map(device_of, storages)):
        return None
    try:
        list(map(address_of, storages))
    except RuntimeError:  # one has no address to tell
        return None
    return storages


def _are_strided(tensors: Sequence[Tensor]) -> bool:
    """Whether none is sparse, or wrapped by a transform of torch.func."""
    return not torch_tensors.any_is_wrapped_by_transform(tensors) and set(map(_layout, tensors)) <= _STRIDED
