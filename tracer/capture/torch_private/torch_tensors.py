"""Tensors and storages from within: wrappers, parts, and who else refers to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def as_plain_tensors() -> Any:
    """A context in which nothing that a subclass of Tensor does when it is looked at is asked for."""
    return torch._C.DisableTorchFunctionSubclass()


def without_freed(storages: Sequence[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
    """Return the storages that something holds.

    While C++ has a weak reference to a freed storage, as torch.compile has, the garbage collector lists its object with
    torch 2.7 and 2.9. To ask that for its address frees the storage a second time.
    """
    expired = torch.UntypedStorage._expired
    return list(compress(storages, map(not_, map(expired, map(attrgetter("_cdata"), storages)))))


def is_wrapped_by_transform(tensor: torch.Tensor) -> bool:
    """True if a transform of torch.func (grad, vmap) has wrapped a tensor."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and bool(functorch.is_functorch_wrapped_tensor(tensor))


def any_is_wrapped_by_transform(tensors: Iterable[torch.Tensor]) -> bool:
    """True if a transform of torch.func has wrapped one of the tensors."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and any(map(functorch.is_functorch_wrapped_tensor, tensors))


def is_inside_transform() -> bool:
    """True if a transform of torch.func (grad, vmap, jvp) is running on this thread."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and functorch.peek_interpreter_stack() is not None


def below_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that the transforms of torch.func have wrapped; any other is returned as it is."""
    while is_wrapped_by_transform(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_made_of_tensors(tensor: torch.Tensor) -> bool:
    """True if a tensor has no storage of its own, but names the tensors inside it (DTensor, jagged, quantized)."""
    return bool(is_traceable_wrapper_subclass(tensor))


def parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of a sparse COO tensor, coalesced or not."""
    return tensor._values(), tensor._indices()


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor (DTensor) that lies here; any other is returned as it is."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
