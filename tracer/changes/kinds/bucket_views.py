"""Gradients of DistributedDataParallel as views of its buckets, for an unchanged script."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager

from tracer.changes.parallel_constructor import parallel_made

_OPTION = "gradient_as_bucket_view"


class BucketViews:
    """Has each DistributedDataParallel that is made keep its gradients in its buckets.

    Attributes:
        num_made: How many would have had both, by now.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.num_made = 0

    def switched_on(self) -> AbstractContextManager[None]:
        """Meanwhile the class is made so."""
        return parallel_made(self._make)

    def _make(self, original: Callable[..., None], bound: inspect.BoundArguments) -> None:
        self.num_made += not bound.arguments.get(_OPTION, False)
        bound.arguments[_OPTION] = True
        original(*bound.args, **bound.kwargs)
