"""Gradients of DistributedDataParallel as views of its buckets, for an unchanged script."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager

from tracer.changes.hooks import Hooks
from tracer.changes.kinds.shard import parallel_made

_OPTION = "gradient_as_bucket_view"


class BucketViews(Hooks, makes="bucket-views"):
    """Has each DistributedDataParallel keep its gradients in its buckets; counts those that would have had both."""

    note = "no DistributedDataParallel was made that copies gradients."

    def entered(self) -> AbstractContextManager[None]:
        """Return what changes the class's constructor."""
        return parallel_made(self._make)

    def _make(self, original: Callable[..., None], bound: inspect.BoundArguments) -> None:
        self.num_made += not bound.arguments.get(_OPTION, False)
        bound.arguments[_OPTION] = True
        original(*bound.args, **bound.kwargs)
