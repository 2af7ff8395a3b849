"""The operator at which torch's categories stop, and that its bytes are all those without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.analysis.profiles.test_attribution import profiled
from tests.training_steps import WORKLOADS, Recorded, build_workload
from tracer.analysis.profiles.torch_categories import Category


def test_the_place_where_torchs_categories_stop_is_named() -> None:
    workload = build_workload("fno_2d_torch_zeros")
    assert workload.model is not None
    findings = profiled(workload.model, workload.step, workload.optimizer)
    first = findings.lost_track[0]
    assert (first.place.op, first.place.module) == ("aten::zeros", "blocks.0.spectral")
    untagged = sum(
        int(size)
        for size, tag, key in zip(
            findings.peak.blocks.size_bytes, findings.peak.blocks.torch_category, findings.peak.blocks.key, strict=True
        )
        if tag == 7 and key >= 0
    )
    assert sum(place.bytes for place in findings.lost_track) == untagged
    assert first.bytes > 0.9 * untagged


@pytest.mark.parametrize("name", WORKLOADS)
def test_all_tensors_without_a_category_are_accounted_for(name: str, recorded: Callable[[str], Recorded]) -> None:
    for found in recorded(name).cycles:
        blocks = found.peak.blocks
        untagged = (blocks.torch_category == Category.UNTAGGED) & (blocks.key >= 0)
        assert sum(lost.bytes for lost in found.lost_track) == int(blocks.size_bytes[untagged].sum())
        assert sum(lost.count for lost in found.lost_track) == int(untagged.sum())
        sizes = [lost.bytes for lost in found.lost_track]
        assert sizes == sorted(sizes, reverse=True)
