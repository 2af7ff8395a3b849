"""Names that a program gives its memory, for the allocator's history and the profiler's timeline."""

from __future__ import annotations

from contextlib import ContextDecorator, ExitStack
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from tracer.capture.torch_private.torch_history import annotate, memory_metadata, set_memory_metadata


class named_memory(ContextDecorator):  # noqa: N801 - used as a function
    """Names what a block of code allocates, or tensors that are there, for every snapshot of the allocator's history.

        with named_memory("rollout"):
            answers = policy.generate(prompts)
        named_memory("KV cache", keys, values)

    It also decorates a function. The block is a region of `torch.profiler.record_function`, too. Names inside of one
    another replace each other. What other threads allocate, such as autograd's, has no name; with torch 2.9 nothing has
    one but the region, with 2.13 what the block allocates, and from 2.14 on the tensors, too.
    """

    def __init__(self, name: str, *tensors: Tensor) -> None:
        """Name tensors that are on a CUDA device, by the storage that each is a part of; others are left alone."""
        self._name = name
        self._open: list[ExitStack] = []
        for tensor in tensors:
            annotate(tensor, name)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(torch.profiler.record_function(self._name))
            opened.callback(set_memory_metadata, memory_metadata())
            set_memory_metadata(self._name)
            self._open.append(opened.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)
