"""Queues of vLLM between ranks, in shared memory: a rank that makes such a queue waits until all have opened it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tracer.loaded_modules import when_loaded

_MODULE: Final = "vllm.distributed.device_communicators.shm_broadcast"


@contextmanager
def message_queues_left_out() -> Iterator[None]:
    """If vLLM is loaded within the block, it makes no queues and sends objects by torch.distributed."""
    end = when_loaded(_MODULE, _without_queues)
    try:
        yield
    finally:
        end()


def _without_queues(module: Any) -> None:
    module.MessageQueue.create_from_process_group = staticmethod(lambda *arguments, **options: None)
