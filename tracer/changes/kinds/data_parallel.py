"""Changes of how a script makes its DistributedDataParallel: FSDP2 in its place, or gradients in its buckets."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tracer.changes.hooks import Hooks
from tracer.errors import TracerError
from tracer.workloads.module_steps import repeated_blocks
from tracer.workloads.workload import all_tensors


class ShardedInstead(Hooks, makes="shard"):
    """Has each DistributedDataParallel that is made shard its model by `fully_shard`: repeated blocks, and the rest."""

    note = "no DistributedDataParallel was made."

    def __init__(self) -> None:
        super().__init__()
        self._whole: dict[int, weakref.ref[torch.Tensor]] = {}

    def entered(self) -> AbstractContextManager[None]:
        """Return what changes the class's constructor; subclasses of the script's own are left alone."""
        return parallel_made(self._make)

    def _make(self, original: Callable[..., None], bound: inspect.BoundArguments) -> None:
        options = bound.arguments
        parallel = options["self"]
        if type(parallel) is not DistributedDataParallel:
            original(*bound.args, **bound.kwargs)
            return
        self._shard(options["module"], options)
        nn.Module.__init__(parallel)
        parallel.module = options["module"]
        parallel.__class__ = _Sharded

    def _shard(self, model: nn.Module, options: dict[str, Any]) -> None:
        group = options.get("process_group") or distributed.group.WORLD
        assert group is not None
        if options.get("init_sync", True):  # all ranks begin with the numbers of the first, as they would have
            for tensor in all_tensors(model):
                distributed.broadcast(tensor.detach(), group=group, group_src=0)
        device = next(model.parameters()).device.type
        mesh = DeviceMesh.from_group(group, device)
        self._whole |= {id(parameter): weakref.ref(parameter) for parameter in model.parameters()}
        for block in repeated_blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.num_made += 1

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Make sure that an optimizer updates the parts."""
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if any((whole := self._whole.get(id(parameter))) and whole() is parameter for parameter in parameters):
            raise TracerError(
                "shard: the optimizer was made before DistributedDataParallel, with parameters that are whole.",
                hint="Make the optimizer behind it.",
            )


class _Sharded(DistributedDataParallel):
    """Stands for a script's DistributedDataParallel, and calls the model as it is."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are summed up in each backward pass: the sum is the same, and no rank has all of them."""
        yield


Make = Callable[[Callable[..., None], inspect.BoundArguments], None]
"""Given the class's own `__init__` and the arguments of a call, the new object first."""


@contextmanager
def parallel_made(make: Make) -> Iterator[None]:
    """While active, have a DistributedDataParallel that a script makes made so."""
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
