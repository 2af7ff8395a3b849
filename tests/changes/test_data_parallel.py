"""A script's DistributedDataParallel: made by whom is asked to, and sharded in its place."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes import run_python
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


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_two_ranks_train_the_same_and_have_half_of_it_each(tmp_path: Path) -> None:
    done = run_python("-m", "tests.changes.sharded_ranks", tmp_path, folder=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights_agree"] and found["is_parallel"]
    assert (found["num_parts"], found["share"]) == (6, 0.5)
    assert found["notes"] == ["bucket-views: no DistributedDataParallel was made that copies gradients."]
    assert (
        found["error"]
        == "shard: the optimizer was made before DistributedDataParallel, with parameters that are whole."
    )
