"""A DistributedDataParallel of somebody's script is made by whom is asked to, and later by torch again."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tracer.changes.kinds.data_parallel import parallel_made


def test_what_makes_it_is_given_all_arguments_by_name() -> None:
    original, seen = DistributedDataParallel.__init__, []

    def make(own: Callable[..., None], bound: inspect.BoundArguments) -> None:
        seen.append((own, bound.arguments))

    model = nn.Linear(1, 1)
    with pytest.raises(KeyError), parallel_made(make):
        made = DistributedDataParallel(model, bucket_cap_mb=1)
        raise KeyError
    assert DistributedDataParallel.__init__ is original
    ((own, arguments),) = seen
    assert own is original and arguments == {"self": made, "module": model, "bucket_cap_mb": 1}
