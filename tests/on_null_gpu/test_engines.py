"""Reports of an engine's workers, and a cache that a program serves from."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from types import SimpleNamespace as Settings
from typing import Any

import torch
from torch import Tensor, nn

from tests.truth.isolate import runs_elsewhere
from tracer.engines.run import read_reports
from tracer.engines.start import GRAPHS, StartStage, WorkerMemory
from tracer.engines.vllm_workers import follow_workers
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.sessions.phase_reports import ledger_of_process
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

# ---- Reports of an engine's workers: each part of the memory, measured by torch on a device.

MIB = 1 << 20
CONFIG = Settings(
    model_config=Settings(model="small", max_model_len=1024, enforce_eager=False, dtype=torch.float16),
    cache_config=Settings(gpu_memory_utilization=0.5, cache_dtype="auto"),
    parallel_config=Settings(world_size=1, data_parallel_size=1, tensor_parallel_size=1),
    scheduler_config=Settings(max_num_batched_tokens=256, max_num_seqs=8),
)


class Runner:
    """Has the model: 4 MiB of weights, 16 MiB of activations, and a workspace of 2 MiB that stays."""

    def __init__(self, cached_bytes: int) -> None:
        self.cached_bytes = cached_bytes  # Of a batch before the capture, which releases them
        self.model = nn.Module()
        self.workspace: Tensor | None = None

    def load(self) -> None:
        self.model.weight = nn.Parameter(torch.empty(2 * MIB, dtype=torch.float16, device="cuda:0"))

    def profile_run(self) -> None:
        self.workspace = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda:0")
        torch.empty(16 * MIB, dtype=torch.uint8, device="cuda:0")

    def capture_model(self) -> int:
        """Capture into a pool of 32 MiB and 16 MiB beside it, and return how much less of the card is free."""
        torch.empty(self.cached_bytes, dtype=torch.uint8, device="cuda:0")
        before_bytes, _ = torch.cuda.mem_get_info(0)
        torch.cuda.empty_cache()
        self.pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self.pool):
            self.graphs = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda:0")
        self.buffer = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda:0")
        return before_bytes - torch.cuda.mem_get_info(0)[0]


class Worker:
    """Has the methods of vLLM's worker in the order in which its executors call them."""

    def __init__(self, cache_bytes: int, cached_bytes: int) -> None:
        self.vllm_config, self.rank, self.cache_bytes, self.cached_bytes = CONFIG, 0, cache_bytes, cached_bytes
        self.model_runner: Any = None
        self.cache: list[Tensor] = []

    def init_device(self) -> None:
        torch.cuda.init()
        self.model_runner = Runner(self.cached_bytes)

    def load_model(self) -> None:
        self.model_runner.load()

    def determine_available_memory(self) -> int:
        torch.cuda.reset_peak_memory_stats(0)
        self.model_runner.profile_run()
        torch.cuda.empty_cache()
        return self.cache_bytes if self.cache_bytes > 0 else torch.cuda.mem_get_info(0)[0] + self.cache_bytes

    def get_kv_cache_spec(self) -> dict[str, Settings]:
        layer = Settings(max_memory_usage_bytes=lambda config: 4 * MIB)
        return {"layers.0": layer, "layers.1": layer}

    def initialize_from_config(self, config: Settings) -> None:
        self.pool = torch.cuda.MemPool()  # as with sleep mode
        with torch.cuda.use_mem_pool(self.pool):
            self.cache = [torch.empty(config.size, dtype=torch.uint8, device="cuda:0")]

    def compile_or_warm_up_model(self) -> None:
        self.model_runner.capture_model()

    def execute_model(self, num_bytes: int) -> None:
        torch.empty(num_bytes, dtype=torch.uint8, device="cuda:0")

    def sleep(self, level: int) -> None:
        self.cache.clear()
        del self.pool
        torch.cuda.empty_cache()


def report(cache_bytes: int, cached_bytes: int = 20 * MIB) -> WorkerMemory:
    """Start a worker with so much KV cache, and return its report; its failure is in it.

    Args:
        cache_bytes: Below zero for all of the card but so much.
        cached_bytes: Cached when CUDA graphs are captured.
    """
    with tempfile.TemporaryDirectory() as folder:

        class Followed(Worker):
            pass

        follow_workers(Followed, Path(folder), "small 1")
        worker = Followed(cache_bytes, cached_bytes)
        group = Settings(kv_cache_spec=Settings(block_size=16))
        try:
            worker.init_device()
            worker.load_model()
            available_bytes = worker.determine_available_memory()
            worker.get_kv_cache_spec()
            worker.initialize_from_config(Settings(size=available_bytes, num_blocks=64, kv_cache_groups=[group]))
            worker.compile_or_warm_up_model()
            worker.execute_model(48 * MIB)
            worker.execute_model(8 * MIB)
            worker.sleep(level=1)
        except torch.OutOfMemoryError:
            pass
        start = read_reports(Path(folder))
    assert start is not None
    return start.worst


@runs_elsewhere
def test_each_part_of_the_memory_is_measured() -> None:
    with ledger_of_process("worker") as ledger:
        found = report(64 * MIB)
    phases = ledger.phases.phases
    assert found.stage == StartStage.READY and not found.failure
    assert found.weights_bytes == 4 * MIB
    assert found.activation_bytes == 16 * MIB
    assert found.cache_bytes == found.available_bytes == 64 * MIB
    assert found.request_bytes == 8 * MIB
    assert found.cache_tokens == 64 * 16
    assert found.graphs_bytes == 32 * MIB  # of which 20 that were cached came back
    assert found.outside_bytes == CONTEXT_BYTES
    # The allocator reserves 20 MiB for requests of 1 to 10 MiB: weights and workspace share them.
    assert found.other_bytes == (20 - 4) * MIB
    assert found.cache_dtype == "float16"
    assert list(found.stage_bytes.values()) == [0, 4 * MIB, 2 * MIB, 64 * MIB, (32 + 16) * MIB]
    assert found.allocated_bytes == (4 + 2 + 64 + 32 + 16) * MIB
    assert found.num_batches == 2 and found.served_bytes == 48 * MIB
    (slept,) = (phase for phase in phases if phase.name == "vLLM: sleep(1)")
    assert slept.begin_bytes - slept.end_bytes == (64 + 48) * MIB  # the cache, and a batch's block
    assert [phase.name for phase in phases][:2] == ["vLLM: load_model()", "vLLM: initialize_from_config()"]


@runs_elsewhere
def test_what_a_capture_takes_beside_the_pools_counts_too() -> None:
    assert report(64 * MIB, cached_bytes=0).graphs_bytes == (32 + 16) * MIB


@runs_elsewhere
def test_memory_that_ends_is_reported_with_the_stage_that_it_ended_in() -> None:
    found = report(100 << 30)
    assert found.stage == StartStage.PROFILE
    assert found.is_out_of_memory and found.failure.startswith("CUDA out of memory")


@runs_elsewhere
def test_memory_that_ends_while_graphs_are_captured_is_told_from_the_rest_of_the_warm_up() -> None:
    """24 MiB are left, of which a graph's pool needs 32."""
    found = report(-24 * MIB)
    assert found.stage == StartStage.CACHE
    assert found.is_out_of_memory and found.failed_in == GRAPHS


# ---- A KV cache has its kind, and the rows sum to the allocator's count.

CACHE_BYTES = 48 << 20


class Attention(nn.Module):
    """Writes its keys to a cache, and reads them all."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(64, 64)
        self.kv_cache = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.kv_cache[: len(x)] = self.keys(x)
        return x @ self.kv_cache[: len(x)].T


@runs_elsewhere
def test_a_cache_that_the_program_froze_is_a_kv_cache() -> None:
    """Calls of a model are profiled whose cache is made after the first one."""
    model = nn.Sequential(Attention(), Attention()).to("cuda:0")
    with torch.no_grad(), ProfileSession(model, None, schedule=Schedule(1, 0, 2, 1)) as session:
        model[0].kv_cache = model[1].kv_cache = torch.zeros(64, 64, device="cuda:0")
        model(torch.ones(64, 64, device="cuda:0"))
        # One allocation, of which each layer has a half, as its own dimensions.
        cache = torch.zeros(2, CACHE_BYTES // 512, 64, device="cuda:0")
        for layer, part in zip(model, cache, strict=True):
            layer.kv_cache = part
        del cache, layer, part
        gc.collect()
        gc.freeze()
        try:
            session.step()
            for _ in range(2):
                model(torch.ones(64, 64, device="cuda:0"))
                session.step()
        finally:
            gc.unfreeze()
    peak = session.findings.worst.peak
    by_category = peak.by_category()
    assert by_category["KV_CACHE"] == CACHE_BYTES and "UNKNOWN" not in by_category
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes


class _HostMemory:
    """Pinned host memory, which a tensor of the GPU can be a view of, as vLLM's buffers of requests are."""

    def __init__(self, num_bytes: int) -> None:
        self.host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (self.host.data_ptr(), False),
            "version": 2,
        }


@runs_elsewhere
def test_host_memory_that_the_gpu_reads_is_in_no_row() -> None:
    """A step is profiled that allocates nothing."""
    model = nn.Linear(64, 64, device="cuda:0")
    with ProfileSession(model, None, schedule=Schedule(1, 0, 1, 1)) as session:
        seen = [torch.as_tensor(_HostMemory(CACHE_BYTES), device="cuda:0") for _ in range(2)]
        assert all(tensor.is_cuda for tensor in seen)
        session.step()
        session.step()
    peak = session.findings.worst.peak
    # 64 x 64 weights, and 64 biases as 512 bytes
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == 16_896
    told = "96.00 MiB in tensors on cuda:0 are in no memory of torch's allocator"
    assert any(note.startswith(told) for note in session.notes)
