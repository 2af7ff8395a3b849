"""Tensors with a shape and a device, and no memory behind them."""

from __future__ import annotations

from typing import Any

import torch


def fake_tensors() -> Any:
    """A mode in which operators make tensors with a shape and a device, and with no memory behind them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory behind it, as those of `fake_tensors`."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def fake_copy(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor that stands for a real one as long as that lives."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def turn_fake(mode: Any, tensor: torch.Tensor, base: torch.Tensor) -> bool:
    """Let go of a tensor's memory and leave the object a fake one, with all that refers to it.

    Args:
        base: Bytes on the meta device, as many as the tensor's storage has; tensors of one storage share them.

    Returns:
        Whether it could be done: not where a weak reference or a graph holds on to the tensor.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    with torch.no_grad():
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        meta.set_(base.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        fake = FakeTensor(mode, meta, torch.device("cpu"))
    fake.requires_grad_(tensor.requires_grad)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    hooks, hooks_after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    try:
        torch.utils.swap_tensors(tensor, fake)  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError):
        return False
    # What calls them hangs on what was swapped away; to set them is to make it anew.
    if hooks:
        tensor._backward_hooks = hooks
    if hooks_after:
        tensor._post_accumulate_grad_hooks = hooks_after
    if is_parameter:
        tensor._is_param = True
    return True
