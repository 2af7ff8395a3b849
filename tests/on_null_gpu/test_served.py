"""A KV cache has its kind, and the rows sum to the allocator's count."""

from __future__ import annotations

from tests.on_null_gpu import jobs_served
from tests.truth.isolate import Elsewhere


def test_a_cache_that_the_program_froze_is_a_kv_cache(elsewhere: Elsewhere) -> None:
    by_category, rows_bytes, counted_bytes = elsewhere(jobs_served.serve)
    assert by_category["KV_CACHE"] == jobs_served.CACHE_BYTES
    assert "UNKNOWN" not in by_category
    assert rows_bytes == counted_bytes


def test_host_memory_that_the_gpu_reads_is_in_no_row(elsewhere: Elsewhere) -> None:
    rows_bytes, counted_bytes, notes = elsewhere(jobs_served.idle_beside_host_memory)
    assert rows_bytes == counted_bytes == 16_896  # 64 x 64 weights, and 64 biases as 512 bytes
    assert any(
        note.startswith("96.00 MiB in tensors on cuda:0 are in no memory of torch's allocator") for note in notes
    )
