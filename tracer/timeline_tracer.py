"""TimelineTracer, the on_trace_ready callback: keeps what the profiler recorded, and explains it after the last step.

Reading a recording takes time that training would spend waiting, so the callback only keeps the profiler's own result
object. At most `MAX_KEPT` of them, about 5 KB an event, are kept unread; beyond that the oldest is read into columns,
about 0.2 KB an event. The analysis runs when the profiler stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tracer.analysis.findings import CycleFindings, Findings, find_in_cycle, put_together
from tracer.capture import torch_private
from tracer.capture.known_storages import KnownStorages
from tracer.capture.recording import Recording, read_recording
from tracer.exporters.max_mem import write_max_mem

MAX_KEPT = 2


class TimelineTracer:
    """An `on_trace_ready` callback for `torch.profiler.profile` that writes the breakdown at the peak.

    Works alone in any profiled loop:

        with torch.profiler.profile(..., record_shapes=True, profile_memory=True, with_stack=True,
                                    on_trace_ready=TimelineTracer("max_mem.txt")) as prof:
            for batch in batches:
                ...
                prof.step()

    The file is written when the profiler stops, at the end of the `with` block, also when the block ends early or by an
    exception. `findings` has all that is known, and asking for it earlier analyses what there is.
    """

    def __init__(
        self,
        out_file: str | Path | None = None,
        device: str | torch.device | None = None,
        *,
        module_names: Mapping[int, str] | None = None,
        known: Callable[[], KnownStorages] | None = None,
    ) -> None:
        """Prepare; nothing is switched on or read.

        Args:
            out_file: Where to write max_mem.txt; None writes nothing.
            device: The device to explain; by default the accelerator with the most traffic, else the CPU.
            module_names: Dotted names of the model's modules by `id()`; without them paths are made of class names.
            known: Gives the objects that somebody held, once the run is over.
        """
        self.out_file = None if out_file is None else Path(out_file)
        self.device = None if device is None else str(device)
        self.num_cycles = 0
        self._module_names = module_names
        self._known = known
        self._kept: list[Any] = []
        self._recordings: list[Recording] = []
        self._findings: Findings | None = None
        self._watched: Any = None

    def __call__(self, prof: Any) -> None:
        """Keep what the profiler has just recorded."""
        self._kept.append(torch_private.kineto_results(prof))
        self._findings = None
        self.num_cycles += 1
        if len(self._kept) > MAX_KEPT:
            self._recordings.append(read_recording(self._kept.pop(0)))
        if self.out_file is not None:
            self._finish_when_stopped(prof)

    def _finish_when_stopped(self, prof: Any) -> None:
        """Write the file behind the profiler's `stop`, the one moment that every schedule and loop reaches."""
        if self._watched is prof or not hasattr(prof, "stop"):
            return
        self._watched = prof
        stop = prof.stop

        def stop_and_finish() -> None:
            prof.__dict__.pop("stop", None)
            self._watched = None
            stop()
            self.finish()

        prof.stop = stop_and_finish

    @property
    def findings(self) -> Findings:
        """Everything known of the cycles so far.

        Raises:
            RecordingError: No cycle was recorded, or nothing was allocated on the device.
        """
        if self._findings is None:
            self._recordings += [read_recording(results) for results in self._kept]
            self._kept.clear()
            self._findings = put_together(self._cycles())
        return self._findings

    def _cycles(self) -> list[CycleFindings]:
        known = self._known() if self._known is not None else None
        first = None
        cycles = []
        for recording in self._recordings:
            cycle = find_in_cycle(recording, known=known, module_names=self._module_names, device=self.device or first)
            # All cycles are about the device that the first one chose.
            first = first or cycle.peak.device
            cycles.append(cycle)
        return cycles

    def finish(self) -> Findings:
        """Analyse what was kept and write the file.

        Raises:
            RecordingError: No cycle was recorded, or nothing was allocated on the device.
            OutputError: The file cannot be written.
        """
        findings = self.findings
        if self.out_file is not None:
            write_max_mem(findings.breakdown, findings.peaks, self.out_file)
        return findings
