"""A script's DistributedDataParallel sharded in its place: the same training, with a part of it on each rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import run_python

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
