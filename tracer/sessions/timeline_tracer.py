"""TimelineTracer, the on_trace_ready callback: reads what the profiler recorded, and explains it after the last step.

What the profiler holds of a cycle takes ten times the memory of the columns that it is read into as soon as the cycle
has ended: kept until the end, as many cycles would be in memory as were recorded. The analysis runs when the profiler
stops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tracer.answers.findings import CycleFindings, RunFindings
from tracer.answers.recording_findings import combine_cycles, find_in_cycle
from tracer.blocks.from_recording.allocator_count import default_device, most_held_bytes
from tracer.blocks.from_recording.origins import with_lines_of_nodes
from tracer.capture.compile_watch import CompileWatch
from tracer.capture.device import devices
from tracer.capture.device.memory_counters import CounterReading, with_reading
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import CompiledCode
from tracer.capture.sources.source_files import forget_files
from tracer.capture.torch_private import torch_profiler
from tracer.collector import paused_gc
from tracer.errors import RecordingError, TracerError
from tracer.exporters.max_mem import write_max_mem


@dataclass(slots=True, eq=False)
class _Cycle:
    """A recorded cycle: the profiler's own result until it has been read."""

    results: Any
    was_cut: bool
    reading: CounterReading | None
    recording: Recording | None = None


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

    Attributes:
        preferred: Where nobody named a device, the one to explain if anything was recorded of it.
    """

    def __init__(
        self,
        out_file: str | Path | None = None,
        device: str | torch.device | None = None,
        *,
        module_names: Mapping[int, str] | None = None,
        known: Callable[[], KnownStorages] | None = None,
        compiled: Callable[[Iterable[Recording]], CompiledCode] | None = None,
        probable_device: torch.device | None = None,
    ) -> None:
        """Prepare; nothing is switched on or read.

        Args:
            out_file: Where to write max_mem.txt; None writes nothing.
            device: The device to explain; without an index the current one of its type. By default the accelerator
                that held most, else the CPU.
            module_names: Dotted names of the model's modules by `id()`; without them paths are made of class names.
            known: Gives the live tensors observed, once the run is over.
            compiled: Gives what torch.compile made of the code in these recordings; by default what is known of it
                without having watched it.
            probable_device: The one that it will be by default, even if no step allocates anything on it.
        """
        forget_files()
        self.out_file = None if out_file is None else Path(out_file)
        self.device = None if device is None else str(device)
        self._probable_device = probable_device
        self.preferred: str | None = None
        self._module_names = module_names
        self._compiled = compiled or CompileWatch().code
        self._known = known
        self._kept: list[_Cycle] = []
        self._findings: RunFindings | None = None
        self._watched: Any = None

    def __call__(self, prof: Any) -> None:
        """Read what the profiler has just recorded; nothing records meanwhile."""
        self.adder(prof)()
        if self.out_file is not None:
            self._finish_when_stopped(prof)

    def adder(self, prof: Any) -> Callable[[], None]:
        """Return a function that adds what the profiler has just recorded as a cycle; it is not read until then."""
        if self.device is not None:
            self.device = str(devices.with_index(torch.device(self.device)))
        device = torch.device(self.device) if self.device is not None else self._probable_device
        reading = CounterReading.now(device) if device is not None else None
        return partial(self._add, _Cycle(torch_profiler.kineto_results(prof), _is_stopping(prof), reading))

    def _add(self, cycle: _Cycle) -> None:
        self._findings = None
        self._kept.append(cycle)
        self._read(cycle)

    def forget_first(self) -> None:
        """Forget the first of the cycles."""
        self._findings = None
        del self._kept[0]

    @property
    def num_cycles(self) -> int:
        """Recorded so far."""
        return len(self._kept)

    @property
    def last_recording(self) -> Recording | None:
        """The cycle that was read last."""
        return self._kept[-1].recording

    @property
    def _recordings(self) -> list[Recording]:
        """Recordings of the cycles that were read."""
        return [cycle.recording for cycle in self._kept if cycle.recording is not None]

    def _read(self, cycle: _Cycle) -> None:
        """Read what the profiler holds of a cycle, then let it go: what interrupts the reading costs nothing."""
        if cycle.results is None:
            return
        if cycle.recording is None:
            cycle.recording = read_recording(cycle.results)
        cycle.results = None

    def _finish_when_stopped(self, prof: Any) -> None:
        """Write the file behind the profiler's `stop`, the one moment that every schedule and loop reaches."""
        if self._watched is prof or not hasattr(prof, "stop"):
            return
        if _is_stopping(prof):  # the first cycle was cut by the end of the block: there is no later moment
            self._finish_beside_an_error()
            return
        self._watched = prof
        stop = prof.stop

        def stop_and_finish() -> None:
            prof.__dict__.pop("stop", None)
            try:
                stop()
            finally:
                self._watched = None
            self._finish_beside_an_error()

        prof.stop = stop_and_finish

    def _finish_beside_an_error(self) -> None:
        """Write the file; what keeps it from being written never hides an exception that ends the block."""
        in_flight = sys.exception()
        try:
            self.finish()
        except TracerError as problem:
            if in_flight is None:
                raise
            in_flight.add_note(f"{self.out_file} was not written: {problem}")

    @property
    def findings(self) -> RunFindings:
        """Everything known of the cycles so far.

        Raises:
            RecordingError: No cycle was recorded, or nothing was allocated on the device.
        """
        if self._findings is None:
            with paused_gc():
                for cycle in self._kept:
                    self._read(cycle)
                # A cycle without a recording was interrupted before it was read.
                self._kept = [cycle for cycle in self._kept if cycle.recording is not None]
                code = self._compiled(self._recordings)
                for cycle, recording in zip(self._kept, self._recordings, strict=True):
                    cycle.recording = with_lines_of_nodes(recording, code.graphs)
                self._findings = combine_cycles(self._cycles(code), compiled=code)
        return self._findings

    def _cycles(self, code: CompiledCode) -> list[CycleFindings]:
        known = self._known() if self._known is not None else None
        cycles, empty = [], None
        recordings = self._with_readings()
        # All cycles are about one device.
        held = most_held_bytes(recordings)
        preferred = self.preferred if self.preferred in held else None
        device = self.device or preferred or default_device(recordings)
        for recording, kept in zip(recordings, self._kept, strict=True):
            try:
                cycle = find_in_cycle(
                    recording,
                    known=known,
                    module_names=self._module_names,
                    device=device,
                    is_whole=not kept.was_cut,
                    graphs=code.graphs,
                )
            except RecordingError as error:
                # A cycle that was cut at its very beginning has no results; the others keep theirs.
                empty = empty or error
                continue
            cycles.append(cycle)
        if empty is not None and not cycles:
            raise empty
        return cycles

    def _with_readings(self) -> list[Recording]:
        """The recordings; where a cycle has nothing of the device, with what its allocator's counter said."""
        recordings = self._recordings
        pairs = list(zip(recordings, (cycle.reading for cycle in self._kept), strict=True))
        if self.device is None and most_held_bytes(recordings):
            return recordings  # another accelerator is what the run is about
        return [
            allocations if reading is None else with_reading(allocations, reading) for allocations, reading in pairs
        ]

    def finish(self) -> RunFindings:
        """Analyse what was kept and write the file."""
        findings = self.findings
        if self.out_file is not None:
            write_max_mem(findings.breakdown, [cycle.peak for cycle in findings.averaged], self.out_file)
        return findings


def _is_stopping(prof: Any) -> bool:
    """True if the profiler's `stop` is the caller; the profiler itself looks the same in `step`."""
    code = getattr(getattr(type(prof), "stop", None), "__code__", None)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is prof:
            return True
        frame = frame.f_back
    return False
