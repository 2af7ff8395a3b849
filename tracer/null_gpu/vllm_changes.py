"""Changes of vLLM on the null GPU, where no kernel counts a step's tokens and no other rank opens a queue."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tracer.loaded_modules import when_loaded

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


def leave_out_queues() -> Callable[[], None]:
    """Have vLLM send objects between ranks by torch.distributed, not by queues in shared memory.

    A rank that makes such a queue waits until all others have opened it.

    Returns:
        A function that ends the waiting for vLLM.
    """
    return when_loaded("vllm.distributed.device_communicators.shm_broadcast", _without_queues)


def _without_queues(module: Any) -> None:
    module.MessageQueue.create_from_process_group = staticmethod(lambda *arguments, **options: None)
