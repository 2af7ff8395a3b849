"""Values on the null GPU: on and off, and what was read meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracer.capture.run_facts import LeftOut, ValuesRead
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.errors import NullGpuError
from tracer.null_gpu.values.answers import Answer
from tracer.null_gpu.values.device_reads import MAX_READS, ReadLog
from tracer.null_gpu.values.device_values import DeviceValues
from tracer.null_gpu.values.kernels import ValueKernels
from tracer.null_gpu.values.untouched import UntouchedTensors

_SEED = 67_280_421_310_721
"""Seed of the device's generators in a program that sets none: torch would take another in each run."""


class HostValues:
    """Values on, from the time it is made until `close`."""

    def __init__(self, answers: Mapping[tuple[str, int], Answer] | None = None, max_reads: int = MAX_READS) -> None:
        """Switch values on: operators compute small tensors on the host from here on.

        Args:
            max_reads: By one line with one operator, at which the program is ended.

        Raises:
            NullGpuError: This process does not run on the null GPU.
        """
        answer_reads = _answer_reads()
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(_SEED)  # a seed that the program sets comes after it
        self._log = ReadLog(answers or {}, max_reads)
        self._values = DeviceValues()
        self._kernels = ValueKernels(self._values, self._log, answer_reads)
        self._num_compiled_buffers = 0
        self._end_watch = torch_compile.watch_compiled_buffers(self._forget_compiled)
        self._end_draws = torch_modules.around_truncated_draws(self._kernels.truncated_draw)
        self._untouched = UntouchedTensors()
        self._load_library = torch.ops.load_library
        torch.ops.load_library = self._load_and_replace  # type: ignore[method-assign]

    def report(self) -> ValuesRead:
        """Return the values that were read so far."""
        left_out = tuple(LeftOut(*counted) for counted in sorted(self._kernels.compute.left_out.items()))
        return ValuesRead(self._log.reads(), left_out, self._num_compiled_buffers, self._log.unused_answers())

    def close(self) -> None:
        """End: torch's own kernels are called alone."""
        torch.ops.load_library = self._load_library  # type: ignore[method-assign]
        self._end_watch()
        self._untouched.remove()
        self._end_draws()
        self._kernels.remove()

    def _forget_compiled(self, buffer: torch.Tensor) -> None:
        self._values.forget([buffer])
        self._num_compiled_buffers += 1

    def _load_and_replace(self, path: Any) -> None:
        self._load_library(path)  # type: ignore[no-untyped-call]
        self._kernels.replace_new()


def _answer_reads() -> Callable[[int | None], None]:
    """Return the function that makes small copies to the host find a number, on this thread."""
    tell = getattr(ctypes.CDLL(None), "null_gpu_answer_reads", None)
    if tell is None:
        raise NullGpuError("This process does not run on the null GPU.", hint="Start it with --on CARD.")
    tell.argtypes = (ctypes.c_int, ctypes.c_int64)

    def answer(value: int | None) -> None:
        tell(int(value is not None), value or 0)

    return answer
