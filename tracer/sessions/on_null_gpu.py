"""Facts of this process about the null GPU: if a device computes, and the values that decide sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tracer.answers.null_run import caveat_of
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.run_facts import RunOrigin
from tracer.exporters.screen.console import Console
from tracer.null_gpu import process
from tracer.sessions.program_writes import WRITES

if TYPE_CHECKING:
    from tracer.capture.run_facts import ValuesRead
    from tracer.null_gpu.values.answers import Answer
    from tracer.null_gpu.values.switch import HostValues


_TRACER_FOLDER = Path(__file__).parents[1]


def allocator_history(device: torch.device, **options: Any) -> AllocatorHistory:
    """Return the recording of a device's allocator history, without times where the device computes nothing."""
    return AllocatorHistory(device, is_timed=not caveat_of(device), **options)


def origin_of(device: torch.device) -> RunOrigin:
    """Return where and how a run about a device was made; it says whether that computes anything."""
    return RunOrigin.here(str(device), caveat=caveat_of(device))


class _Values:
    """Numbers that decide sizes, computed behind the null GPU's kernels."""

    def __init__(self) -> None:
        self._on: HostValues | None = None

    @contextmanager
    def on(self, answers: Mapping[tuple[str, int], Answer]) -> Iterator[None]:
        """Compute numbers that decide sizes meanwhile."""
        from tracer.null_gpu.values.switch import HostValues

        # Two runs of a program that seeds nothing ask for the same memory: weights decide masks, and those sizes.
        random.seed(0)
        np.random.seed(0)  # whatever a program draws from without a generator of its own
        torch.default_generator.manual_seed(0)
        before, self._on = self._on, HostValues(answers)
        values = self._on
        try:
            yield
        finally:
            self._on = before
            values.close()

    def read(self) -> ValuesRead | None:
        """Return the values that the program has read so far; None where values are off."""
        return by_program(self._on.report()) if self._on is not None else None


def by_program(values: ValuesRead) -> ValuesRead:
    """The values without those that this program itself reads, such as a step's loss."""
    reads = [read for read in values.reads if read.decides_size or not Path(read.file).is_relative_to(_TRACER_FOLDER)]
    return replace(values, reads=tuple(reads))


_VALUES: Final = _Values()  # One, since kernels are replaced for the whole process
values_read = _VALUES.read


@contextmanager
def values_on(answers: Mapping[tuple[str, int], Answer]) -> Iterator[None]:
    """Within the block, numbers that decide sizes are computed; no-op where the device is not the null GPU."""
    with _VALUES.on(answers) if process.is_active() else nullcontext():
        yield


@contextmanager
def program_runs(answers: Mapping[tuple[str, int], Answer], save_dir: Path | None, console: Console) -> Iterator[None]:
    """Within the block, such numbers are computed, and files go aside (`ProgramWrites.aside`)."""
    with values_on(answers), WRITES.aside(save_dir, console) if process.is_active() else nullcontext():
        yield
