"""What is known after a collective: each slot has this rank's own bytes, so it is known as well as they are.

NCCL moves the bytes itself, without an operator that would be computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from tracer.null_gpu.values.device_bytes import extent
from tracer.null_gpu.values.device_values import DeviceValues

COLLECTIVES: Final = frozenset(
    {
        "c10d::_allgather_base_",
        "c10d::_reduce_scatter_base_",
        "c10d::allgather_",
        "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_",
        "c10d::alltoall_",
        "c10d::alltoall_base_",
        "c10d::gather_",
        "c10d::reduce_scatter_",
        "c10d::reduce_scatter_tensor_coalesced_",
        "c10d::scatter_",
    }
)
"""Operators of torch.distributed whose first argument is written to from the second; others keep what is there."""


def known_as_given(values: DeviceValues, original: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a collective, after which what it has written is known as far as what it was given."""

    def kernel(outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        result = original(outputs, inputs, *rest, **options)
        tensors = list(_tensors(inputs))
        if tensors:
            known = min(values.known(tensor) for tensor in tensors)
            for tensor in _tensors(outputs):
                values.ranges.note(*extent(tensor), known)
        return result

    return kernel


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    else:
        for value in values:
            yield from _tensors(value)
