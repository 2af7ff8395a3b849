"""Builds a model for real and leaves its random weights unwritten: pages that nobody writes take no memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tracer.capture.torch_private.torch_modules import leave_unfilled

_FILLS = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.log_normal_, Tensor.cauchy_),
        *(torch.nn.init.uniform_, torch.nn.init.normal_, torch.nn.init.trunc_normal_),
        *(torch.nn.init.xavier_uniform_, torch.nn.init.xavier_normal_),
        *(torch.nn.init.kaiming_uniform_, torch.nn.init.kaiming_normal_),
        *(torch.nn.init.orthogonal_, torch.nn.init.sparse_),
    }
)
_NOISE = {torch.randn: torch.empty, torch.rand: torch.empty}
_NOISE_LIKE = {torch.randn_like: torch.empty_like, torch.rand_like: torch.empty_like}


class _Unfilled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS:
            return args[0] if args else kwargs.get("tensor", kwargs.get("self"))
        plain = _NOISE.get(func) or _NOISE_LIKE.get(func)
        if plain is not None:
            return plain(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
        return func(*args, **kwargs)


@contextmanager
def unfilled_weights() -> Iterator[None]:
    """Random numbers that would fill floating-point tensors are not drawn inside; what is there is left as it is.

    `trunc_normal_` draws again until all values lie between its bounds, which what is there may never do; so it is left
    out whole.
    """
    end = leave_unfilled(lambda tensor: tensor.is_floating_point())
    try:
        with _Unfilled():
            yield
    finally:
        end()
