"""Tensors that Python can reach, by what they look like: what grows where no allocator has a history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import live_tensors
from tracer.capture.objects.plain_tensors import address_of
from tracer.capture.torch_private import torch_tensors

_UNNAMED = (Role.HELD, Role.SAVED)
_MAX_ADDRESSES = 6


@dataclass(frozen=True, slots=True)
class Alike:
    """Storages of tensors that look the same."""

    bytes: int  # Together
    count: int  # Number of tensors
    addresses: tuple[int, ...]  # Addresses of some of them, spread over all


def unnamed_tensors(device: torch.device) -> Mapping[str, Alike]:
    """What is in no module and no optimizer, by `[512, 512] float32`, each storage once."""
    named: set[int] = set()
    by_look: dict[str, dict[int, int]] = {}
    with torch_tensors.as_plain_tensors():
        for role, _, tensor in live_tensors().tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device != device or tensor.layout is not torch.strided:
                continue
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):  # what has other tensors inside may have none of its own
                continue
            address, size = address_of(storage), storage.nbytes()
            if address is None:
                continue
            if role not in _UNNAMED:
                named.add(address)
            elif address and size and address not in named:
                look = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
                by_look.setdefault(look, {}).setdefault(address, size)
    return {look: _alike(places) for look, places in by_look.items()}


def _alike(places: Mapping[int, int]) -> Alike:
    addresses = list(places)
    stride = max(1, len(addresses) // _MAX_ADDRESSES)
    return Alike(sum(places.values()), len(places), tuple(addresses[::stride][:_MAX_ADDRESSES]))
