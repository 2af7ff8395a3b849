"""`f"{loss:.3f}"` of a tensor without memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def formatted() -> Iterator[None]:
    """Inside, a tensor with one value is formatted as the number that the program would read.

    torch does so for its own tensors, and has no format for a fake one. A mode that sees calls of torch's functions
    would do as well, but under one they hold arguments that they let go of otherwise.
    """
    by_torch = Tensor.__format__

    def by_value(tensor: Tensor, format_spec: str) -> str:
        if tensor.dim() == 0:
            return format(tensor.detach().item(), format_spec)
        return str(by_torch(tensor, format_spec))  # type: ignore[no-untyped-call]

    Tensor.__format__ = by_value  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.__format__ = by_torch  # type: ignore[method-assign]
