"""A KV cache has its kind, and the rows sum to the allocator's count."""

from __future__ import annotations

from tests.on_null_gpu import jobs_served
from tests.truth.isolate import Elsewhere


def test_a_cache_that_the_program_froze_is_a_kv_cache(elsewhere: Elsewhere) -> None:
    by_category, rows_bytes, counted_bytes = elsewhere(jobs_served.serve)
    assert by_category["KV_CACHE"] == jobs_served.CACHE_BYTES
    assert "UNKNOWN" not in by_category
    assert rows_bytes == counted_bytes
