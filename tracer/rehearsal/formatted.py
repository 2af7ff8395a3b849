"""`f"{loss:.3f}"` of a tensor without memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class Formatted(TorchFunctionMode):
    """Inside, a tensor with one value is formatted as the number that the program would read.

    torch does so for its own tensors, and has no format for a fake one.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__format__ and args[0].dim() == 0:
            return format(args[0].detach().item(), args[1])
        return func(*args, **(kwargs or {}))
