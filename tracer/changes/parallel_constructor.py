"""Where a script makes a DistributedDataParallel, for changes that make another one of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.parallel import DistributedDataParallel

Make = Callable[[Callable[..., None], inspect.BoundArguments], None]
"""Given the class's own `__init__` and the arguments of a call, the new object first."""


@contextmanager
def parallel_made(make: Make) -> Iterator[None]:
    """Meanwhile a DistributedDataParallel is made so."""
    original = DistributedDataParallel.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> None:
        make(original, signature.bind(*args, **kwargs))

    DistributedDataParallel.__init__ = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = original  # type: ignore[method-assign]
