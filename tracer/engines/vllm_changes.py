"""Changes of vLLM and FlashInfer on the null GPU: no kernel counts tokens, none is compiled."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

from tracer.loaded_modules import when_loaded
from tracer.null_gpu.process import LEFT_OUT_VARIABLE, SAMPLER_VARIABLE

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
