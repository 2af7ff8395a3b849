"""Names that a program gives its memory, where there is no allocator to keep them; on CUDA see tests/null_gpu."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tracer import named_memory


def test_a_block_is_a_region_of_the_profilers() -> None:
    @named_memory("rollout")
    def rollout(depth: int) -> None:
        torch.zeros(3)
        if depth:
            rollout(depth - 1)

    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        rollout(2)
        named_memory("KV cache", torch.zeros(3))
    assert [event.count for event in recorded.key_averages() if event.key == "rollout"] == [3]


def test_an_exception_goes_on_its_way() -> None:
    with pytest.raises(KeyError), named_memory("rollout"):
        raise KeyError
