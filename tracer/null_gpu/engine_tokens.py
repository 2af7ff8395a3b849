"""The tokens that a step of vLLM made: a kernel counts them since 0.25, and on the null GPU kernels do nothing."""

from __future__ import annotations

import functools
from typing import Any, Final

from tracer.loaded_modules import when_loaded

_COUNTS: Final = "null_gpu_counts"


def count_new_tokens() -> None:
    """Give each request one token a step once its whole prompt is computed; without tokens no request would end."""
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
