"""Values on the null GPU while a command runs: switched on, and what of them the program read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tracer.capture.values_read import LeftOut, ValueRead, ValuesRead
from tracer.null_gpu import process

if TYPE_CHECKING:
    from tracer.null_gpu.values.answers import Answer
    from tracer.null_gpu.values.device_reads import DeviceRead
    from tracer.null_gpu.values.switch import HostValues, ValuesReport

_OURS = Path(__file__).parents[1]

_switched_on: list[HostValues] = []
"""Kernels are replaced for the whole process, so that there is one of these or none."""


@contextmanager
def values_on(answers: Mapping[tuple[str, int], Answer]) -> Iterator[None]:
    """Numbers that decide sizes are computed meanwhile; nothing where the device is not the null GPU."""
    if not process.is_active():
        yield
        return
    from tracer.null_gpu.values.switch import HostValues

    _seed()
    values = HostValues(answers)
    _switched_on.append(values)
    try:
        yield
    finally:
        _switched_on.remove(values)
        values.close()


def _seed() -> None:
    """Two runs of a program that seeds nothing ask for the same memory: weights decide masks, and those sizes."""
    random.seed(0)
    np.random.seed(0)  # whatever a program draws from without a generator of its own
    torch.default_generator.manual_seed(0)


def values_read() -> ValuesRead | None:
    """What the program has read so far; None where values are off."""
    return read_by_program(_switched_on[-1].report()) if _switched_on else None


def read_by_program(report: ValuesReport) -> ValuesRead:
    """The report without what this program itself reads, such as a step's loss."""
    return ValuesRead(
        reads=tuple(_value_read(read) for read in report.reads if read.decides_size or not _is_ours(read.line.file)),
        left_out=tuple(LeftOut(reason, count) for reason, count in report.left_out),
        num_compiled_buffers=report.num_compiled_buffers,
        unused_answers=tuple(f"{file}:{number}" for file, number in report.unused_answers),
    )


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(_OURS)


def _value_read(read: DeviceRead) -> ValueRead:
    return ValueRead(
        file=read.line.file,
        line=read.line.number,
        function=read.line.function,
        operator=read.operator,
        count=read.count,
        value=read.value,
        known=read.known.name.lower(),
        answered=read.answered,
        decides_size=read.decides_size,
        num_empty=read.num_empty,
    )
