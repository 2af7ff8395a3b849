"""An engine's start, on the screen and on its page: what fits, what limits it. Sizes are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.exporters.page import page_samples as samples
from tracer.answers.tables import Section
from tracer.engines.answer import (
    answer_sentences,
    card_table,
    engine_page,
    print_engine,
    put_engine_first,
    write_engine_page,
)
from tracer.engines.start import GRAPHS, LEAST_OF_DRIVER_BYTES, EngineStart, StartStage, WorkerMemory, engine_start
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.screen.terminal import screen

GIB = 1 << 30
# A card of 80 GiB of which 72 may be used: 72 - 15 - 2 - 1 are left for the cache, and 1 GiB of it is a request.
READY = WorkerMemory(
    engine="vLLM 1", model="m", rank=0, num_workers=1, tensor_parallel=1, device="card", total_bytes=80 * GIB,
    utilization=0.9, context_tokens=8192, batched_tokens=2048, max_requests=256, cache_dtype="bfloat16",
    stage=StartStage.READY, weights_bytes=15 * GIB, activation_bytes=2 * GIB, other_bytes=0, outside_bytes=1 * GIB,
    available_bytes=54 * GIB, cache_bytes=54 * GIB, request_bytes=1 * GIB, cache_tokens=54 * 8192,
)  # fmt: skip


def start(*workers: WorkerMemory, tokens: int | None = None, failure: str = "") -> EngineStart:
    return engine_start(workers, cache_tokens=tokens, concurrency=None, failure=failure)


def test_what_is_left_of_the_card_is_free() -> None:
    assert READY.free_bytes == (80 - 15 - 2 - 1 - 54) * GIB


def test_memory_that_no_stage_has_allocated_is_unexplained() -> None:
    counted = replace(READY, stage_bytes={"loading": 15 * GIB, "cache": 54 * GIB}, allocated_bytes=70 * GIB)
    assert counted.unexplained_bytes == GIB and READY.unexplained_bytes == 0


def test_the_cache_limits_until_there_are_as_many_requests_as_may_run() -> None:
    assert start(READY).limit.startswith("The KV cache limits: it holds 54.0 requests of 8,192 tokens")
    few = replace(READY, max_requests=50)
    assert start(few).limit.startswith("--max-num-seqs limits: 50 requests run at once, and the KV cache holds 54.0")


def test_a_card_with_room_may_be_used_more() -> None:
    """8 GiB are free, but 1 of 80 GiB is taken before the engine starts, which vLLM does not allow to be promised."""
    ((option, effect),) = start(READY).changes
    assert option == "--gpu-memory-utilization 0.98"
    assert effect.startswith("gives 6.40 GiB more to the KV cache")
    assert start(replace(READY, cache_bytes=62 * GIB - (200 << 20))).changes == ()


def test_a_cache_that_leaves_no_room_for_a_full_batch_is_told_a_lower_utilization() -> None:
    """A GiB is lacking, and 150 MiB are kept free: 1.15 of 80 GiB less than 0.9."""
    full = start(replace(READY, cache_bytes=63 * GIB))
    assert full.changes == (("--gpu-memory-utilization 0.88", "leaves a full batch the 1.00 GiB that it lacks"),)


def test_a_request_that_is_too_long_is_told_the_longest_that_fits() -> None:
    """20 of the 32 GiB that 131,072 tokens need are there: 81,920 tokens, less a block of 16."""
    long = replace(
        READY, stage=StartStage.PROFILE, context_tokens=131_072, request_bytes=32 * GIB, available_bytes=20 * GIB,
        cache_bytes=0, cache_tokens=None, weights_bytes=40 * GIB, other_bytes=9 * GIB,
    )  # fmt: skip
    found = start(long, failure="ValueError")
    assert not found.fits
    assert found.largest_context == 81_904
    assert found.limit == "One request of 131,072 tokens needs 32.00 GiB of KV cache, and 20.00 GiB are there."
    options = [option for option, _ in found.changes]
    assert options == ["--max-model-len 81904", "--kv-cache-dtype fp8", "--tensor-parallel-size 2"]


def test_the_engines_own_estimate_of_the_longest_request_is_taken() -> None:
    failed = replace(READY, stage=StartStage.PROFILE, request_bytes=64 * GIB, cache_bytes=0, cache_tokens=None)
    said = "To serve at least one request ... the estimated maximum model length is 51984. Try increasing ..."
    assert start(failed, failure=said).changes[0][0] == "--max-model-len 51984"


def test_weights_that_leave_no_cache() -> None:
    """2 GiB are free on the card, too little for the 6 that are lacking; half of the weights are 37.5 GiB."""
    full = replace(
        READY,
        stage=StartStage.PROFILE,
        weights_bytes=75 * GIB,
        available_bytes=-6 * GIB,
        cache_bytes=0,
        cache_tokens=None,
    )
    found = start(full, failure="ValueError")
    assert found.limit.startswith("No memory is left for the KV cache: 6.00 GiB are lacking in the 72.00 GiB")
    assert [option for option, _ in found.changes] == ["--tensor-parallel-size 2"]


def test_graphs_that_run_out_of_memory_are_told_the_settings_that_help() -> None:
    failed = replace(
        READY, stage=StartStage.CACHE, failed_in=GRAPHS, failure="CUDA out of memory.", is_out_of_memory=True
    )
    found = start(failed)
    assert found.limit == "Memory ran out in the capture of CUDA graphs: CUDA out of memory."
    assert found.changes[0] == ("--gpu-memory-utilization 0.85", "leaves 4.00 GiB more of the card beside the KV cache")
    assert [option for option, _ in found.changes[1:]] == ["--max-num-seqs 64", "--enforce-eager"]


def test_a_warm_up_that_runs_out_of_memory_is_told_what_its_failure_is_about() -> None:
    failed = replace(READY, stage=StartStage.CACHE, failure="CUDA out of memory.", is_out_of_memory=True)
    found = start(failed)
    assert found.limit == "Memory ran out in the warm-up and capture of CUDA graphs: CUDA out of memory."
    assert [option for option, _ in found.changes] == ["--gpu-memory-utilization 0.85", "--max-num-batched-tokens 1024"]
    found = start(replace(failed, failure="CUDA out of memory occurred when warming up sampler with 256 requests."))
    assert [option for option, _ in found.changes] == ["--max-num-seqs 64", "--gpu-memory-utilization 0.85"]


def test_a_kernel_that_cannot_be_compiled_is_told_how_to_do_without() -> None:
    failed = replace(READY, stage=StartStage.WEIGHTS, failure="Ninja build failed. Ninja output:")
    assert all(words in start(failed).limit for words in ("VLLM_USE_FLASHINFER_SAMPLER=0", "VLLM_ATTENTION_BACKEND"))


def test_of_several_workers_the_one_with_the_least_memory_for_the_cache_decides() -> None:
    other = replace(READY, rank=1, num_workers=2, available_bytes=50 * GIB, cache_tokens=50 * 8192)
    found = start(replace(READY, num_workers=2), other)
    assert found.worst is other
    assert found.cache_tokens == 50 * 8192


def test_an_error_that_the_engine_has_caught_does_not_keep_it_from_starting() -> None:
    assert start(READY, failure="NVML_ERROR_FUNCTION_NOT_FOUND").fits


def test_an_engine_is_ready_when_all_of_its_workers_are() -> None:
    assert not start(replace(READY, num_workers=2)).is_ready
    assert not start(replace(READY, num_workers=2), replace(READY, rank=1, stage=StartStage.CACHE)).is_ready


def test_the_drivers_memory_for_graphs_counts_in_the_verdict() -> None:
    """8 GiB are free of 80 when graphs are captured: 2 of them are activations'."""
    graphs = replace(READY, captures_graphs=True, driver_graphs_bytes=LEAST_OF_DRIVER_BYTES)
    assert start(graphs).fits and graphs.free_bytes == READY.free_bytes - LEAST_OF_DRIVER_BYTES
    assert len(answer_sentences(start(graphs))) == 2  # no driver keeps 8 GiB
    narrow = start(replace(graphs, cache_bytes=62 * GIB))
    assert narrow.fits and "no more than 2.00 GiB for CUDA graphs" in answer_sentences(narrow)[2]
    full = start(replace(graphs, cache_bytes=64 * GIB - (100 << 20)))
    assert not full.fits and full.limit.startswith("Memory would run out in the capture of CUDA graphs")
    assert full.changes[0][0] == "--gpu-memory-utilization 0.85"
    sizes = [size for size, *_ in card_table(full).rows]
    assert sum(size for size in sizes if isinstance(size, int)) == full.worst.total_bytes


@pytest.fixture
def served() -> EngineStart:
    ready = replace(READY, num_batches=3, served_bytes=GIB)
    return engine_start([ready], cache_tokens=442_160, concurrency=53.97)


def test_the_page_says_what_the_screen_says(
    served: EngineStart, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with screen() as console:
        print_engine(served, console, command="vllm serve m", computed=False)
    lines = capsys.readouterr().out.splitlines()
    path = tmp_path / "page.html"
    write_engine_page(served, path, command="vllm serve m", computed=False)
    (page,) = data_of_html(path.read_text())["pages"]
    (of_card,) = (sentence for sentence in page["headline"] if sentence not in lines)
    assert of_card == (
        "Of the card's 80.00 GiB: KV cache 54.00 GiB, weights 15.00 GiB, activations 2.00 GiB, outside of torch's "
        "allocator 1.00 GiB, free 8.00 GiB."
    )
    assert [sentence.split()[0] for sentence in page["headline"]] == [
        "vLLM", "The", "3", "Of", "--gpu-memory-utilization", "Start"
    ]  # fmt: skip
    table = page["sections"][0]["tables"][0]
    assert sum(row[0] for row in table["rows"]) == table["footer"][0] == 80 * GIB


def test_a_command_with_a_path_of_the_working_folder_is_for_that_folder(
    served: EngineStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.html"
    write_engine_page(served, path, command=f"vllm serve {tmp_path}/llama8b", computed=False)
    (page,) = data_of_html(path.read_text())["pages"]
    assert page["headline"][-1] == "Start it, in the folder of the run, with: vllm serve llama8b"


def test_the_page_of_a_script_begins_with_the_engine_that_it_has_made(served: EngineStart, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_pages((replace(samples.small_page(), sections=(Section("Memory of the script", (), ()),)),), path)
    (before,) = data_of_html(path.read_text())["pages"]
    put_engine_first(served, path, computed=True)
    (page,) = data_of_html(path.read_text())["pages"]
    first = engine_page(served, command="", computed=True)
    assert page["headline"] == [*first.answer, *before["headline"]]
    assert page["sections"][0]["title"] == "Memory of the engine" and page["sections"][1:] == before["sections"]
    assert {**page, **{name: before[name] for name in ("headline", "sections", "title")}} == before


def test_a_card_that_is_too_small_lacks_memory() -> None:
    full = engine_start([replace(READY, cache_bytes=63 * GIB)], cache_tokens=1, concurrency=1.0)
    assert engine_page(full, command="", computed=False).answer[2].endswith("allocator 1.00 GiB; 1.00 GiB are lacking.")


def test_of_several_workers_each_card_has_a_row(served: EngineStart) -> None:
    workers = [replace(READY, num_workers=2, rank=rank) for rank in range(2)]
    page = engine_page(engine_start(workers, cache_tokens=1, concurrency=1.0), command="", computed=False)
    assert [row[0] for row in page.sections[0].tables[1].rows] == [0, 1]
    assert any("NCCL is not counted" in sentence for sentence in page.answer)
