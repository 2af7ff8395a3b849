"""Reports of vLLM's workers on their memory, measured while they start, in whatever processes they run."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from tracer.answers.failure import is_out_of_memory
from tracer.capture.device.device_blocks import SLEEP_MODULE, follow_sleep, private_pool_bytes
from tracer.capture.device.devices import cuda_device
from tracer.capture.device.memory_counters import Counters, read_counters
from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.engines.start import GRAPHS, LEAST_OF_DRIVER_BYTES, StartStage, WorkerMemory
from tracer.exporters.files import write_json
from tracer.loaded_modules import when_loaded
from tracer.null_gpu.process import LEFT_OUT_VARIABLE, SAMPLER_VARIABLE, is_active
from tracer.sessions.phase_reports import ledger_of_process

_CACHE_SIZE: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY: Final = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x")
_WITHOUT_ARGUMENTS: Final = ("load_model", "initialize_from_config", "execute_model")
_WITH_ARGUMENTS: Final = ("sleep", "wake_up")
"""Methods of a worker that are phases; what these two are called with says which memory they are about."""
_OF_FAILURE: Final = 400
"""Letters of an engine's error that a report keeps."""


def report_to(folder: Path) -> None:
    """Have this process's workers and engine write reports into a folder; a second call is a no-op."""
    logger = logging.getLogger("vllm")
    if any(isinstance(handler, _EngineWords) for handler in logger.handlers):
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    logger.addHandler(_EngineWords(folder))
    if is_active():
        leave_out_sampling_kernels()
        leave_out_warm_up()
        count_new_tokens()
    if not PhaseLedger.is_followed:  # else this is the process of the script that `run` follows
        ledger_of_process(f"vLLM, {multiprocessing.current_process().name}", folder).__enter__()
    when_loaded(SLEEP_MODULE, follow_sleep)
    when_loaded(
        "vllm.v1.worker.worker_base",
        lambda module: follow_workers(module.WorkerBase, folder, f"vLLM {version('vllm')}"),
    )


class _EngineWords(logging.Handler):
    """Keeps what an engine logs of its KV cache and of its failure, in a file of the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._folder = folder
        self._said: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write the file if the record is one of these lines."""
        message = record.getMessage()
        before = dict(self._said)
        if found := _CACHE_SIZE.search(message):
            self._said["cache_tokens"] = int(found[1].replace(",", ""))
        if found := _CONCURRENCY.search(message):
            self._said["concurrency"] = float(found[1].replace(",", ""))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and "failed to start" in message:  # others are caught, as where NVML lacks a function
            self._said.setdefault("failure", _words_of(error))
        if self._said != before:
            write_json(self._folder / f"engine-{os.getpid()}.json", self._said)


def _words_of(error: BaseException) -> str:
    """Return an error's first sentence or two: vLLM's messages are long."""
    first = str(error).strip().split("\n", 1)[0]
    return first if len(first) <= _OF_FAILURE else f"{first[:_OF_FAILURE]}..."


def follow_workers(worker_class: Any, folder: Path, engine: str) -> None:
    """Have each worker that is constructed from now on report what its stages take.

    Args:
        worker_class: vLLM's `WorkerBase`, or a class with its methods.
    """
    original = worker_class.__init__

    @functools.wraps(original)
    def constructed(worker: Any, *arguments: Any, **options: Any) -> None:
        original(worker, *arguments, **options)
        _WorkerReport(worker, folder, engine)

    worker_class.__init__ = constructed


def _cache_dtype(config: Any) -> str:
    """Return the type of the KV cache's elements; `auto` is the model's."""
    given = str(config.cache_config.cache_dtype)
    return str(config.model_config.dtype).removeprefix("torch.") if given == "auto" else given


class _WorkerReport:
    """Measures a worker before and after each stage, and writes what is known so far to a file."""

    def __init__(self, worker: Any, folder: Path, engine: str) -> None:
        """Put itself around the worker's methods, which vLLM's executors call by name."""
        self._worker, self._folder, self._engine = worker, folder, engine
        self._report: WorkerMemory | None = None
        self._pool_bytes = 0  # Of private pools, before CUDA graphs are captured
        self._allocated_before_bytes = 0  # When the worker started
        self._around(worker, "init_device", self._started)
        self._around(worker, "load_model", self._weights_loaded)
        self._around(worker, "determine_available_memory", self._profiled)
        self._around(worker, "get_kv_cache_spec", self._spec_given)
        self._around(worker, "initialize_from_config", self._cache_made)
        self._around(worker, "compile_or_warm_up_model", self._ready)
        self._around(worker, "execute_model", self._batch_run)
        for name in (*_WITHOUT_ARGUMENTS, *_WITH_ARGUMENTS):
            self._as_phase(worker, name)

    def _around(self, owner: Any, name: str, ended: _Ended, part: str = "") -> None:
        """Call a function after each call of a method; one that raises is reported as the failure.

        Args:
            part: What the method does of its stage, if it is not all of it.
        """
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def measured(*arguments: Any, **options: Any) -> Any:
            known, before = self._report, _counters()
            try:
                result = original(*arguments, **options)
            except Exception as error:
                self._failed(error, part)
                raise
            ended(before, _counters(), result, (*arguments, *options.values()))
            if self._report is not known:
                self._write()
            return result

        setattr(owner, name, measured)

    def _as_phase(self, worker: Any, name: str) -> None:
        """Have each call of a method be a phase, such as `vLLM: sleep(2)`."""
        original = getattr(worker, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def in_phase(*arguments: Any, **options: Any) -> Any:
            words = ", ".join(map(str, (*arguments, *options.values()))) if name in _WITH_ARGUMENTS else ""
            with torch.profiler.record_function(f"vLLM: {name}({words})"):
                return original(*arguments, **options)

        setattr(worker, name, in_phase)

    def _update(self, **values: Any) -> None:
        if self._report is not None:
            self._report = replace(self._report, **values)

    def _stage_ended(self, stage: StartStage, before: Counters, after: Counters, **values: Any) -> None:
        if self._report is not None:
            taken = {stage.value: after.allocated_bytes - before.allocated_bytes}
            self._update(
                stage=stage.value,
                stage_bytes={**self._report.stage_bytes, **taken},
                allocated_bytes=after.allocated_bytes - self._allocated_before_bytes,
                **values,
            )

    def _write(self) -> None:
        if self._report is not None:
            write_json(self._folder / f"worker-{os.getpid()}.json", asdict(self._report))

    def _failed(self, error: Exception, part: str) -> None:
        """Keep the first failure; vLLM puts its own words around torch's when the sampler runs out of memory."""
        if self._report is not None and not self._report.failure:
            causes = (cause for cause in (error, error.__cause__) if cause is not None)
            self._update(failure=_words_of(error), failed_in=part, is_out_of_memory=any(map(is_out_of_memory, causes)))
            self._write()

    def _started(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        """Begin the report: the device is chosen, and the runner is there."""
        worker, config = self._worker, self._worker.vllm_config
        parallel, scheduler = config.parallel_config, config.scheduler_config
        self._report = WorkerMemory(
            engine=self._engine,
            model=str(config.model_config.model),
            rank=int(worker.rank),
            num_workers=int(parallel.world_size) * int(parallel.data_parallel_size),
            tensor_parallel=int(parallel.tensor_parallel_size),
            device=torch.cuda.get_device_name(),
            total_bytes=torch.cuda.mem_get_info()[1],
            utilization=float(config.cache_config.gpu_memory_utilization),
            context_tokens=int(config.model_config.max_model_len),
            batched_tokens=int(scheduler.max_num_batched_tokens),
            max_requests=int(scheduler.max_num_seqs),
            cache_dtype=_cache_dtype(config),
            captures_graphs=not config.model_config.enforce_eager,
        )
        self._allocated_before_bytes = before.allocated_bytes
        self._stage_ended(StartStage.STARTED, before, after)
        runner = getattr(worker, "model_runner", None)
        self._around(runner, "profile_run", self._batch_profiled)
        self._around(runner, "capture_model", self._graphs_captured, GRAPHS)

    def _weights_loaded(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        """The runner counts the model alone; its own buffers, such as those of the sampler, are made meanwhile."""
        counted = getattr(getattr(self._worker, "model_runner", None), "model_memory_usage", None)
        weights_bytes = int(counted) if counted else after.allocated_bytes - before.allocated_bytes
        self._stage_ended(StartStage.WEIGHTS, before, after, weights_bytes=weights_bytes)

    def _batch_profiled(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        """Torch's peak begins right before the profiled batch: vLLM resets it there."""
        self._update(activation_bytes=after.peak_bytes - after.allocated_bytes)

    def _profiled(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        assert self._report is not None
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        self._stage_ended(
            StartStage.PROFILE,
            before,
            after,
            available_bytes=int(result),
            other_bytes=after.reserved_bytes - self._report.weights_bytes,
            outside_bytes=total_bytes - free_bytes - after.reserved_bytes,
        )

    def _spec_given(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        """Add up what one request of the longest length needs in each layer."""
        config = self._worker.vllm_config
        needed = [spec.max_memory_usage_bytes(config) for spec in (result or {}).values()]
        self._update(request_bytes=sum(needed) if needed else None)

    def _cache_made(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        cache_tokens = None
        if arguments and len(groups := getattr(arguments[0], "kv_cache_groups", [])) == 1:
            cache_tokens = int(arguments[0].num_blocks) * int(groups[0].kv_cache_spec.block_size)
        taken = after.allocated_bytes - before.allocated_bytes
        self._pool_bytes = private_pool_bytes(torch.cuda.current_device())
        self._stage_ended(StartStage.CACHE, before, after, cache_bytes=taken, cache_tokens=cache_tokens)

    def _graphs_captured(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        """Take the larger of the runner's figure, by how much less of the card is free, and the graphs' pools.

        The figure of vLLM 0.11 is too small by the cached memory that the capture releases.
        """
        pool_bytes = private_pool_bytes(torch.cuda.current_device()) - self._pool_bytes
        driver_bytes = LEAST_OF_DRIVER_BYTES if is_active() else 0  # a real one's is in the runner's figure
        self._update(graphs_bytes=max(int(result or 0), pool_bytes), driver_graphs_bytes=driver_bytes)

    def _ready(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        self._stage_ended(StartStage.READY, before, after)

    def _batch_run(self, before: Counters, after: Counters, result: Any, arguments: tuple[Any, ...]) -> None:
        """Torch's peak is that of the warm-up and of all batches since: the KV cache was not there before."""
        if self._report is not None and self._report.stage == StartStage.READY:
            self._update(
                num_batches=self._report.num_batches + 1, served_bytes=after.peak_bytes - after.allocated_bytes
            )


def _counters() -> Counters:
    """Return the counters of the current device; zeros where none has been started."""
    device = cuda_device()
    return (read_counters(device) if device is not None else None) or Counters(0, 0, 0, 0, 0, 0)


_Ended = Callable[[Counters, Counters, Any, tuple[Any, ...]], None]
"""Called with the counters before and after a call, its result and its arguments, those by name last."""


# ---- changes of vLLM and FlashInfer on the null GPU: no kernel counts tokens, none is compiled ----------------------

_COUNTS: Final = "null_gpu_counts"


def count_new_tokens() -> None:
    """Give each request one token a step once its whole prompt is computed; without tokens no request would end.

    A kernel counts them since vLLM 0.25.
    """
    when_loaded("vllm.v1.worker.gpu.model_runner", _with_counts)


def _with_counts(module: Any) -> None:
    original_sample, original_output = module.GPUModelRunner.sample, module.AsyncOutput.get_output

    @functools.wraps(original_sample)
    def sample(runner: Any, hidden_states: Any, batch: Any, *rest: Any, **options: Any) -> Any:
        output, num_sampled, num_rejected = original_sample(runner, hidden_states, batch, *rest, **options)
        computed = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
        setattr(num_sampled, _COUNTS, (computed >= batch.prefill_len_np).astype(int))
        return output, num_sampled, num_rejected

    @functools.wraps(original_output)
    def get_output(output: Any) -> Any:
        counts = getattr(output.num_sampled_tokens, _COUNTS, None)
        if counts is not None:
            output.num_sampled_tokens_np = counts
        return original_output(output)

    module.GPUModelRunner.sample, module.AsyncOutput.get_output = sample, get_output


def leave_out_warm_up() -> None:
    """Have vLLM start without the warm-up of DeepGEMM's kernels, unless the environment asks for it.

    It frees what it allocates, and compiles its first kernel with nvcc.
    """
    os.environ.setdefault("VLLM_DEEP_GEMM_WARMUP", "skip")


_SAMPLING: Final = "sampling"


def leave_out_sampling_kernels() -> None:
    """Replace the kernels of FlashInfer's sampler by no-ops, and let vLLM choose its sampler by its own default.

    The kernels return nothing: they write to tensors that FlashInfer's Python code allocates.
    """
    if os.environ.pop(LEFT_OUT_VARIABLE, None) is not None:
        os.environ.pop(SAMPLER_VARIABLE, None)
    when_loaded("flashinfer.jit.core", _without_sampling_kernels)


def _without_sampling_kernels(core: Any) -> None:
    original = core.JitSpec.build_and_load

    def build_and_load(spec: Any, *arguments: Any, **options: Any) -> Any:
        return _NoKernels() if spec.name == _SAMPLING else original(spec, *arguments, **options)

    core.JitSpec.build_and_load = build_and_load


class _NoKernels:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None
