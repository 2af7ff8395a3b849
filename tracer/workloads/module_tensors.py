"""All tensors of a model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn


def all_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a model and of the modules in it, though an attribute `buffers` may hide the method.

    Megatron-core's DistributedDataParallel has a list of that name. A model's own `parameters` is heeded.
    """
    return chain(model.parameters(), nn.Module.buffers(model))
