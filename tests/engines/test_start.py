"""An engine: its processes, what its workers report, and its start."""

from __future__ import annotations

import importlib
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from tests.exporters.page import page_samples as samples
from tests.processes import run_python
from tests.skips import by_default
from tracer.answers.tables import Section
from tracer.engines.answer import (
    answer_sentences,
    card_table,
    engine_page,
    print_engine,
    put_engine_first,
    write_engine_page,
)
from tracer.engines.run import engine_reports, run_engine
from tracer.engines.start import GRAPHS, LEAST_OF_DRIVER_BYTES, EngineStart, StartStage, WorkerMemory, engine_start
from tracer.engines.vllm_workers import count_new_tokens, leave_out_sampling_kernels, leave_out_warm_up
from tracer.errors import TracerError
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.screen.terminal import screen
from tracer.null_gpu.job.lone_rank import without_vllm_queues
from tracer.null_gpu.process import LEFT_OUT_VARIABLE, SAMPLER_VARIABLE

# ---- An engine's start, on the screen and on its page: what fits, what limits it. Sizes are worked out by hand.

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
    (of_card,) = (sentence for sentence in page["said"] if sentence not in lines)
    assert of_card == (
        "Of the card's 80.00 GiB: KV cache 54.00 GiB, weights 15.00 GiB, activations 2.00 GiB, outside of torch's "
        "allocator 1.00 GiB, free 8.00 GiB."
    )
    assert [sentence.split()[0] for sentence in page["said"]] == [
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
    assert page["said"][-1] == "Start it, in the folder of the run, with: vllm serve llama8b"


def test_the_page_of_a_script_begins_with_the_engine_that_it_has_made(served: EngineStart, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_pages((replace(samples.small_page(), sections=(Section("Memory of the script", (), ()),)),), path)
    (before,) = data_of_html(path.read_text())["pages"]
    put_engine_first(served, path, computed=True)
    (page,) = data_of_html(path.read_text())["pages"]
    first = engine_page(served, command="", computed=True)
    assert page["said"] == [*first.answer.happened, *before["said"]]
    assert page["sections"][0]["title"] == "Memory of the engine" and page["sections"][1:] == before["sections"]
    assert {**page, **{name: before[name] for name in ("said", "sections", "title")}} == before


def test_a_card_that_is_too_small_lacks_memory() -> None:
    full = engine_start([replace(READY, cache_bytes=63 * GIB)], cache_tokens=1, concurrency=1.0)
    assert (
        engine_page(full, command="", computed=False)
        .answer.happened[2]
        .endswith("allocator 1.00 GiB; 1.00 GiB are lacking.")
    )


def test_of_several_workers_each_card_has_a_row(served: EngineStart) -> None:
    workers = [replace(READY, num_workers=2, rank=rank) for rank in range(2)]
    page = engine_page(engine_start(workers, cache_tokens=1, concurrency=1.0), command="", computed=False)
    assert [row[0] for row in page.answer.sections[0].tables[1].rows] == [0, 1]
    assert any("NCCL is not counted" in sentence for sentence in page.answer.happened)


# ---- vLLM on the null GPU: tokens that no kernel counts, no queues, FlashInfer's sampler without its kernels.


class _Runner:
    def sample(self, hidden_states: Any, batch: Any, grammar: None) -> tuple[str, torch.Tensor, torch.Tensor]:
        return "output", torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)


class _Output:
    def __init__(self, num_sampled: torch.Tensor) -> None:
        self.num_sampled_tokens, self.num_sampled_tokens_np = num_sampled, num_sampled.numpy()

    def get_output(self) -> list[int]:
        return self.num_sampled_tokens_np.tolist()


def test_requests_get_a_token_unless_more_of_their_prompt_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(GPUModelRunner=_Runner, AsyncOutput=_Output)
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.model_runner", module)
    monkeypatch.setattr(_Runner, "sample", _Runner.sample)
    monkeypatch.setattr(_Output, "get_output", _Output.get_output)
    count_new_tokens()
    batch = SimpleNamespace(
        num_computed_prefill_tokens_np=numpy.array([0, 0, 512]),
        num_scheduled_tokens=numpy.array([512, 2048, 1]),
        prefill_len_np=numpy.array([512, 4000, 512]),
    )
    output, num_sampled, _ = _Runner().sample(None, batch, None)
    assert output == "output" and _Output(num_sampled).get_output() == [1, 0, 1]
    assert _Output(torch.ones(2, dtype=torch.int32)).get_output() == [1, 1]  # not of a step: a warm-up


@pytest.mark.parametrize("given", ["full", None])
def test_deep_gemm_is_not_warmed_up_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.setenv("VLLM_DEEP_GEMM_WARMUP", given or "")
    if given is None:
        monkeypatch.delenv("VLLM_DEEP_GEMM_WARMUP")
    leave_out_warm_up()
    assert os.environ["VLLM_DEEP_GEMM_WARMUP"] == (given or "skip")


class _Queue:
    @staticmethod
    def create_from_process_group(group: str, num_bytes: int) -> str:
        return f"waits for the readers in {group}"


def test_no_reader_of_a_queue_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(MessageQueue=_Queue)
    monkeypatch.setitem(sys.modules, "vllm.distributed.device_communicators.shm_broadcast", module)
    monkeypatch.setattr(_Queue, "create_from_process_group", staticmethod(_Queue.create_from_process_group))
    without_vllm_queues()
    assert _Queue.create_from_process_group("tensor parallel", 1) is None


_CORE = """
class JitSpec:
    def __init__(self, name):
        self.name = name
    def build_and_load(self, verbose=False):
        return f"built {self.name}"
"""


def test_the_sampler_alone_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flashinfer" / "jit").mkdir(parents=True)
    (tmp_path / "flashinfer" / "jit" / "core.py").write_text(_CORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    leave_out_sampling_kernels()
    specs = importlib.import_module("flashinfer.jit.core").JitSpec
    assert specs("norm").build_and_load(verbose=True) == "built norm"
    assert specs("sampling").build_and_load().softmax(1, enable_pdl=True) is None
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_the_user_says_of_the_sampler_stays(monkeypatch: pytest.MonkeyPatch, is_ours: bool) -> None:
    monkeypatch.setenv(SAMPLER_VARIABLE, "0")
    if is_ours:
        monkeypatch.setenv(LEFT_OUT_VARIABLE, "1")
    leave_out_sampling_kernels()
    assert (SAMPLER_VARIABLE in os.environ) is not is_ours and LEFT_OUT_VARIABLE not in os.environ


# ---- An engine's command and the processes that it starts: none outlives the process that started them.

# A command that starts an engine, whose own process ignores SIGTERM and holds a FIFO open.
_COMMAND = """
import os, sys
from pathlib import Path
from tracer.engines.run import run_engine
fifo = sys.argv[1]
child = "import signal, time; signal.signal(15, signal.SIG_IGN); "
child += f"fifo = open({fifo!r}, 'wb', 0); fifo.write(b'x'); time.sleep(20); fifo.write(b'x')"
engine = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
run_engine([sys.executable, "-c", engine], Path(fifo).with_name("engine.txt"))
"""


@pytest.mark.parametrize("number", by_default([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], {signal.SIGKILL}))
def test_no_process_of_an_engine_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """The FIFO ends when the last process that could write to it has ended."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = subprocess.Popen([sys.executable, "-c", _COMMAND, str(fifo)], stderr=subprocess.DEVNULL)
    with fifo.open("rb", 0) as written:
        assert written.read(1) == b"x"
        command.send_signal(number)
        assert written.read(1) == b""
    assert command.wait() != 0


def test_an_engine_that_fails_at_once_is_quoted_from_a_file_in_a_new_folder(tmp_path: Path) -> None:
    output = tmp_path / "new" / "engine.txt"
    with pytest.raises(TracerError, match="ValueError: no such model"):
        run_engine([sys.executable, "-c", "raise ValueError('no such model')"], output)
    assert "Traceback" in output.read_text("utf-8")


def test_an_error_in_brackets_is_quoted_without_half_of_them(tmp_path: Path) -> None:
    with pytest.raises(TracerError) as caught:
        run_engine([sys.executable, "-m", "no_such_engine.cli"], tmp_path / "engine.txt")
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'no_such_engine'")


def test_an_option_that_the_engine_refuses_is_quoted_with_what_is_wrong(tmp_path: Path) -> None:
    """Pydantic says it in the line below its error, here behind the name of the process as vLLM prints it."""
    printed = (
        "(APIServer pid=1) pydantic.ValidationError: 1 validation error for ModelConfig\n"
        "(APIServer pid=1)   Value error, no such dtype [type=value_error, input_value=ArgsKwargs(()), input_type=X]\n"
        "(APIServer pid=1)     For further information visit example.org\n"
    )
    with pytest.raises(TracerError, match=r"ValidationError: 1 validation error for ModelConfig: no such dtype\nHint"):
        run_engine([sys.executable, "-c", f"raise SystemExit({printed!r})"], tmp_path / "engine.txt")


def test_the_first_measured_engine_makes_the_folder_of_reports_for_this_user_alone(tmp_path: Path) -> None:
    worker = tmp_path / "vllm" / "v1" / "worker" / "worker_base.py"
    worker.parent.mkdir(parents=True)
    worker.write_text("class WorkerBase:\n    pass\n")
    (tmp_path / "vllm-1.dist-info").mkdir()
    (tmp_path / "vllm-1.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 1\n")
    program = (
        f"import logging, sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from tracer.engines.vllm import register; register(); register(); "
        "logging.getLogger('vllm').warning('KV cache size: 1,024 tokens'); "
        "from vllm.v1.worker.worker_base import WorkerBase; assert WorkerBase.__init__.__wrapped__"
    )
    with engine_reports() as reports:
        assert not reports.exists()
        run_python("-c", program, folder=tmp_path).check_returncode()
        assert stat.S_IMODE(reports.stat().st_mode) == 0o700
        (said,) = reports.iterdir()
        assert said.name.startswith("engine-") and json.loads(said.read_text("utf-8")) == {"cache_tokens": 1024}
    assert not reports.exists()


def test_an_engine_that_is_not_measured_loads_nothing_of_ours() -> None:
    program = (
        "import sys; from tracer.engines.vllm import register; register(); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('tracer', 'torch', 'rich', 'numpy')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = ["tracer", "tracer.command_line", "tracer.engines", "tracer.engines.vllm"]
    assert ended.stdout.strip() == str(names)
