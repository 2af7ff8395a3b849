"""Values on the null GPU: on and off, and what was read meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tracer.null_gpu.values.device_reads import Answer, DeviceRead, Guard, ReadLog
from tracer.null_gpu.values.device_values import DeviceValues
from tracer.null_gpu.values.kernels import Kernels


_SEED = 67_280_421_310_721
"""Of the device's generators in a program that sets none: torch would take another in each run."""


@dataclass(frozen=True, slots=True)
class ValuesReport:
    """What a program on the null GPU has read of the device.

    Attributes:
        reads: By line and operator.
        left_out: Operators whose results could not be computed, with the reason, and how often.
    """

    reads: tuple[DeviceRead, ...]
    left_out: tuple[tuple[str, int], ...]


class HostValues:
    """Values on, from the time it is made until `close`."""

    def __init__(self, answers: Mapping[tuple[str, int], Answer] | None = None, guard: Guard | None = None) -> None:
        """Begin.

        Args:
            answers: Values to be read in lines, by file and number.
            guard: What ends a loop without end.
        """
        if not torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(_SEED)  # a seed that the program sets comes after it
        self._log = ReadLog(answers or {}, guard or Guard())
        self._kernels = Kernels(DeviceValues(), self._log, _answer_reads())
        self._load_library = torch.ops.load_library
        torch.ops.load_library = self._load_and_replace  # type: ignore[method-assign]

    def report(self) -> ValuesReport:
        """What was read so far."""
        return ValuesReport(self._log.reads(), tuple(sorted(self._kernels.compute.left_out.items())))

    def close(self) -> None:
        """End: torch's own kernels are called alone."""
        torch.ops.load_library = self._load_library  # type: ignore[method-assign]
        self._kernels.remove()

    def _load_and_replace(self, path: Any) -> None:
        self._load_library(path)
        self._kernels.replace_new()


def _answer_reads() -> Callable[[int | None], None]:
    """What tells the null GPU's library that copies to the host of up to 64 bytes shall find a number, on this thread."""
    tell = ctypes.CDLL(None).null_gpu_answer_reads
    tell.argtypes = (ctypes.c_int, ctypes.c_int64)

    def answer(value: int | None) -> None:
        tell(int(value is not None), value or 0)

    return answer
