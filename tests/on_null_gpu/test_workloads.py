"""Every step of `tests/training_steps.py` on the null GPU: the laws that need a device's own allocator."""

from __future__ import annotations

import pytest

from tests.on_null_gpu import jobs_workloads
from tests.training_steps import ONE_OF_EACH, WORKLOADS
from tests.truth.isolate import Elsewhere

NAMES = [pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.slow) for name in sorted(WORKLOADS)]


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_the_allocators_and_its_history_has_every_block(elsewhere: Elsewhere, name: str) -> None:
    found = elsewhere(jobs_workloads.profiled, name, "cuda:0")
    assert found.rows_bytes == found.peak_bytes == found.counted_bytes
    allocator = found.allocator
    assert allocator is not None, found.notes
    assert allocator.num_joined == allocator.num_blocks
    assert allocator.requested_bytes <= found.peak_bytes <= allocator.reserved_bytes <= found.reserved_bytes
    assert allocator.free_bytes == allocator.reserved_bytes - found.peak_bytes - allocator.pending_bytes
    assert found.notes == ()


@pytest.mark.parametrize("name", ["checkpointing", "checkpointing_reentrant"])
def test_what_is_made_again_in_backward_has_a_line_on_a_device_too(elsewhere: Elsewhere, name: str) -> None:
    """There the engine has a thread of its own, on which nothing lies above what a checkpoint calls."""
    on_cpu, on_device = (elsewhere(jobs_workloads.profiled, name, device).blocks for device in ("cpu", "cuda:0"))
    made = [block for block in on_device if block[1] == "BACKWARD" and block[0] in ("ACTIVATION", "GRADIENT")]
    assert made
    for block in made:
        assert block[3], block
        assert block in on_cpu


@pytest.mark.parametrize("name", ["fno_2d_torch_zeros", "convnet", "lstm", "checkpointing", "lbfgs"])
def test_the_timeline_is_torchs_own(elsewhere: Elsewhere, name: str) -> None:
    assert elsewhere(jobs_workloads.timelines_differ, name, "cuda:0") == ""
