"""Queues between ranks of vLLM, of which one alone runs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tracer.null_gpu.engine_queues import message_queues_left_out


class _Queue:
    @staticmethod
    def create_from_process_group(group: str, num_bytes: int) -> str:
        return f"waits for the readers in {group}"


def test_no_reader_of_a_queue_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(MessageQueue=_Queue)
    monkeypatch.setitem(sys.modules, "vllm.distributed.device_communicators.shm_broadcast", module)
    monkeypatch.setattr(_Queue, "create_from_process_group", staticmethod(_Queue.create_from_process_group))
    with message_queues_left_out():
        assert _Queue.create_from_process_group("tensor parallel", 1) is None
