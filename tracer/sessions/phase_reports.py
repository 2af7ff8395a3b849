"""Phases of all processes of a run: each writes what it has seen into a folder, and the first reads them.

trl names and times parts of a step, such as `vLLM.generate`, and opens no region there: they become regions here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch.profiler import record_function

from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.capture.device.phase_memory import GpuHolder, GpuPeak, ProcessPhases
from tracer.errors import RecordingError
from tracer.exporters.document import Source, read_document
from tracer.exporters.files import write_json
from tracer.loaded_modules import when_loaded
from tracer.null_gpu import process
from tracer.null_gpu.cards import MAX_DEVICES


def ledger_of_process(name: str, folder: Path | None = None) -> PhaseLedger:
    """Return a ledger of this process, written to a folder after each phase; on the null GPU it tells others apart."""

    def write(ledger: PhaseLedger) -> None:
        if folder is not None:
            write_phases(ledger, folder)

    if not process.is_active():
        return PhaseLedger(name, ended=write)
    return PhaseLedger(name, held_bytes=process.held_bytes, entered=process.set_phase, ended=write)


def write_phases(ledger: PhaseLedger, folder: Path) -> None:
    """Write what a ledger of this process has seen so far, for the first process of the run."""
    write_json(folder / f"phases-{os.getpid()}.json", asdict(ledger.phases))


def read_phases(folder: Path) -> list[ProcessPhases]:
    """Return what other processes have written."""
    paths = sorted(folder.glob("phases-*.json"))
    sources = [Source(str(path), RecordingError, "") for path in paths]
    return [read_document(Path(each.name), each, hint="").record(ProcessPhases) for each in sources]


def gpu_peaks(processes: Sequence[ProcessPhases]) -> tuple[GpuPeak, ...]:
    """Return, on the null GPU, the most of each GPU, where several processes held it; none on a real one."""
    names = {each.process: each.name for each in processes}
    found = []
    for device in range(MAX_DEVICES):
        holders = [
            GpuHolder(number, names.get(number, ""), size_bytes, phase)
            for number, size_bytes, phase in process.peak_holders(device)
        ]
        if len(holders) > 1:
            found.append(GpuPeak(device, tuple(sorted(holders, key=lambda holder: -holder.bytes))))
    return tuple(found)


_MODULE: Final = "trl.extras.profiling"
_CONTEXT: Final = "ProfilingContext"
"""Its class of context managers with a `name`; earlier versions of trl, in which it is missing, have no phases."""


def follow_trl() -> Callable[[], None]:
    """Have each part of a step that trl times be a `record_function` region; return a function that ends the wait."""
    return when_loaded(_MODULE, _open_regions)


def _open_regions(module: Any) -> None:
    if (context := getattr(module, _CONTEXT, None)) is None:
        return
    enter, leave = context.__enter__, context.__exit__
    regions: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(enter)
    def entered(block: Any) -> Any:
        regions[block] = record_function(f"trl: {block.name}")
        regions[block].__enter__()
        return enter(block)

    @functools.wraps(leave)
    def left(block: Any, *error: Any) -> Any:
        try:
            return leave(block, *error)
        finally:
            regions.pop(block).__exit__(*error)

    context.__enter__, context.__exit__ = entered, left
