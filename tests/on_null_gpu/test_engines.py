"""Reports of an engine's workers: each part of the memory, measured by torch on a device."""

from __future__ import annotations

from tests.on_null_gpu import jobs_engines
from tests.on_null_gpu.jobs_engines import MIB
from tests.truth.isolate import Elsewhere
from tracer.engines.start import GRAPHS, StartStage
from tracer.null_gpu.cards import CONTEXT_BYTES

GIB = 1 << 30


def test_each_part_of_the_memory_is_measured(elsewhere: Elsewhere) -> None:
    found, phases = elsewhere(jobs_engines.report_with_phases, 64 * MIB)
    assert found["stage"] == StartStage.READY and not found["failure"]
    assert found["weights_bytes"] == 4 * MIB
    assert found["activation_bytes"] == 16 * MIB
    assert found["cache_bytes"] == found["available_bytes"] == 64 * MIB
    assert found["request_bytes"] == 8 * MIB
    assert found["cache_tokens"] == 64 * 16
    assert found["graphs_bytes"] == 32 * MIB  # of which 20 that were cached came back
    assert found["outside_bytes"] == CONTEXT_BYTES
    # The allocator reserves 20 MiB for requests of 1 to 10 MiB: weights and workspace share them.
    assert found["other_bytes"] == (20 - 4) * MIB
    assert found["cache_dtype"] == "float16"
    assert list(found["stage_bytes"].values()) == [0, 4 * MIB, 2 * MIB, 64 * MIB, (32 + 16) * MIB]
    assert found["allocated_bytes"] == (4 + 2 + 64 + 32 + 16) * MIB
    assert found["num_batches"] == 2 and found["served_bytes"] == 48 * MIB
    (slept,) = (phase for phase in phases if phase.name == "vLLM: sleep(1)")
    assert slept.begin_bytes - slept.end_bytes == (64 + 48) * MIB  # the cache, and a batch's block
    assert [phase.name for phase in phases][:2] == ["vLLM: load_model()", "vLLM: initialize_from_config()"]


def test_what_a_capture_takes_beside_the_pools_counts_too(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_engines.report, 64 * MIB, cached_bytes=0)["graphs_bytes"] == (32 + 16) * MIB


def test_memory_that_ends_is_reported_with_the_stage_that_it_ended_in(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_engines.report, 100 * GIB)
    assert found["stage"] == StartStage.PROFILE
    assert found["is_out_of_memory"] and found["failure"].startswith("CUDA out of memory")


def test_memory_that_ends_while_graphs_are_captured_is_told_from_the_rest_of_the_warm_up(elsewhere: Elsewhere) -> None:
    """24 MiB are left, of which a graph's pool needs 32."""
    found = elsewhere(jobs_engines.report, -24 * MIB)
    assert found["stage"] == StartStage.CACHE
    assert found["is_out_of_memory"] and found["failed_in"] == GRAPHS
