"""The model of the caching allocator against torch's own, at every decision of random programs."""

from __future__ import annotations

import pytest

from tests.on_null_gpu import jobs_allocator
from tests.on_null_gpu.jobs_allocator import Case
from tests.truth.isolate import Elsewhere

CASES = {
    "default": Case(),
    "streams and waiting frees": Case(num_streams=3, waits=True),
    "on a small device": Case(capacity_mib=700, waits=True),
    "private pool": Case(num_streams=2, pools=True),
    "expandable": Case("expandable_segments:True", num_streams=2),
    "expandable on a small device": Case("expandable_segments:True", capacity_mib=700, waits=True),
    "expandable pages of 32 MiB": Case(
        "expandable_segments:True,large_segment_size_mb:32,max_non_split_rounding_mb:32", capacity_mib=1024
    ),
    "max split": Case("max_split_size_mb:64", capacity_mib=900),
    "max split, narrow": Case("max_split_size_mb:20,max_non_split_rounding_mb:20"),
    "max split and expandable": Case("max_split_size_mb:64,expandable_segments:True", capacity_mib=900),
    "large segments of 12 MiB": Case("large_segment_size_mb:12", capacity_mib=1024),
    "divisions": Case("roundup_power2_divisions:4", num_streams=2),
    "divisions by size": Case("roundup_power2_divisions:[1:8,2:1,4:2,>:16]", waits=True),
    "memory fraction": Case(fraction=0.02),
    "garbage collection": Case("garbage_collection_threshold:0.6", fraction=0.02, num_streams=2),
    "garbage collection of little": Case("garbage_collection_threshold:0.2,max_split_size_mb:64", fraction=0.015),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_model_decides_as_torchs_allocator_does(elsewhere: Elsewhere, case: Case) -> None:
    """Addresses, segments, what is released and when, failures, and every block at the end."""
    found, peak_bytes, num_retries, num_failures = elsewhere(jobs_allocator.replayed, case)
    assert found.is_exact, found
    assert found.addresses.recorded > 1000 and found.releases.recorded > 5
    assert (found.peak_bytes, found.failures.recorded) == (peak_bytes, num_failures)
    assert (num_retries > 0) == (case.capacity_mib > 0 or case.fraction < 1)
