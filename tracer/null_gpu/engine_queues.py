"""Queues in shared memory between ranks that each hold a part of vLLM's model: one waits until all have opened it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tracer.loaded_modules import when_loaded

_MODULE: Final = "vllm.distributed.device_communicators.shm_broadcast"


@contextmanager
def message_queues_left_out() -> Iterator[None]:
    """Where vLLM is loaded within the block, it gives objects by torch.distributed, as it does without queues."""
    end = when_loaded(_MODULE, _without_queues)
    try:
        yield
    finally:
        end()


def _without_queues(module: Any) -> None:
    module.MessageQueue.create_from_process_group = staticmethod(lambda *arguments, **options: None)
