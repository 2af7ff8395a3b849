"""Gradients of DistributedDataParallel as views of its buckets, for an unchanged script."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.parallel import DistributedDataParallel

_OPTION = "gradient_as_bucket_view"


class BucketViews:
    """Has each DistributedDataParallel that is made keep its gradients in its buckets.

    Attributes:
        num_made: How many would have had both, by now.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.num_made = 0

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """Meanwhile the class is made so."""
        original = DistributedDataParallel.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def made(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            self.num_made += not bound.arguments.get(_OPTION, False)
            bound.arguments[_OPTION] = True
            original(*bound.args, **bound.kwargs)

        DistributedDataParallel.__init__ = made  # type: ignore[method-assign]
        try:
            yield
        finally:
            DistributedDataParallel.__init__ = original  # type: ignore[method-assign]
