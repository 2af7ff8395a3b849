"""Look at what a device's driver counts beside torch's allocator, and note the calls that are known to raise it.

A driver answers in tens of microseconds, some in a millisecond: it is asked where steps end, around an optimizer's, and
around models' calls in the first one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from tracer.capture.device import devices
from tracer.capture.device.processes import processes_on
from tracer.capture.graph_captures import Capture
from tracer.capture.recording import Recording
from tracer.capture.run_facts import DriverLooks, KnownCall, Look, OtherProcess
from tracer.capture.sources.source_files import is_user_code, whole_path
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import LIBRARY_CALLS, node_name
from tracer.units import NS_PER_US


class DriverLedger:
    """Looks at one device; a device without a driver's count, such as the CPU, has no looks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.looks: list[Look] = []
        self._calls: dict[tuple[str, int], KnownCall] = {}  # By library and thread
        self._spans: list[tuple[KnownCall, int]] = []  # What ran while the count rose, and until when in us
        self._at: tuple[str, str, SourceLine | None] | None = None  # Where the last look was, if it had a name

    def look(self, edge: str = "", what: str = "", line: SourceLine | None = None) -> None:
        """Look now, unless a graph is captured: at the beginning, the end or the gradient of what has a name."""
        if not devices.is_accelerator(self._device) or devices.is_capturing():
            return
        memory, seen = devices.device_memory(self._device), self.looks
        if memory is None:
            return
        used = memory[1] - memory[0]
        # torch takes longer than the driver to say what it has reserved: while the count stands, that does too.
        stands = what and seen and seen[-1].used_bytes == used
        reserved = seen[-1].reserved_bytes if stands else devices.reserved_bytes(self._device)
        if reserved is None:
            return
        look = Look(time.time_ns() // NS_PER_US, used, reserved)
        was, self._at = self._at, (edge, what, line) if what else None
        if was is not None and what and look.beside_bytes > seen[-1].beside_bytes:
            is_whole = (was[0], was[1], edge) == ("beginning", what, "end")
            span = what if is_whole else f"from the {was[0]} of {was[1]} to the {edge} of {what}"
            place = was[2] or users_line_here() or (None, None)
            self._spans.append((KnownCall(seen[-1].time_us, span, *place), look.time_us))
        if len(seen) > 1 and seen[-2].beside_bytes == seen[-1].beside_bytes == look.beside_bytes:
            seen.pop()
        seen.append(look)

    def read(self, recording: Recording) -> None:
        """Note the first call of each library in each thread of a recording of the first step."""
        if self._calls:
            return
        ops = recording.ops
        names = {number: node_name(recording.strings[number]) for number in set(ops.name.tolist())}
        of = LIBRARY_CALLS.items()
        libraries = {number: kind for number, name in names.items() for kind, calls in of if calls.fullmatch(name)}
        known = np.flatnonzero(np.isin(ops.name, list(libraries)))
        _, first = np.unique(np.stack([ops.name[known], ops.thread[known]]), axis=1, return_index=True)
        for op in np.sort(known[first]).tolist():
            name, thread = int(ops.name[op]), int(ops.thread[op])
            if (key := (libraries[name], thread)) not in self._calls:
                what = f"first recorded call of {libraries[name]}, {names[name]}"
                self._calls[key] = KnownCall(int(ops.start_ns[op]) // NS_PER_US, what, *_users_line(recording, op))

    def seen(self, device: torch.device, captures: Iterable[Capture] = ()) -> DriverLooks | None:
        """Return all looks, with captures of CUDA graphs; None for another device, or one without a driver's count."""
        if not self.looks or device != self._device:
            return None
        graphs = [KnownCall(capture.began_ns // NS_PER_US, "capture of a CUDA graph") for capture in captures]
        calls = [*self._calls.values(), *graphs]
        for span, end_us in self._spans:
            if not any(span.time_us <= call.time_us < end_us for call in calls):
                calls.append(span)
        calls.sort(key=lambda call: call.time_us)
        return DriverLooks(tuple(self.looks), tuple(calls), tuple(_other_processes(device)))


def users_line_here() -> SourceLine | None:
    """Return the innermost line of the user's that runs in this thread."""
    frame = sys._getframe(1)
    while not is_user_code(frame.f_code.co_filename):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return SourceLine(whole_path(frame.f_code.co_filename), frame.f_lineno)


def _users_line(recording: Recording, op: int) -> tuple[str | None, int | None]:
    """Return the innermost line of the user's that led to an operator."""
    calls, frames, call = recording.calls, recording.frames, int(recording.ops.call[op])
    frame = int(recording.ops.inline_frame[op])
    while (frame < 0 or not frames.user[frame]) and call >= 0:
        frame, call = int(calls.frame[call]), int(calls.parent[call])
    if frame < 0 or not frames.user[frame]:
        return None, None
    return recording.strings[frames.file[frame]], int(frames.line[frame])


def _other_processes(device: torch.device) -> Iterator[OtherProcess]:
    """Yield the other processes on a device; none where this one is not listed, as its number is another there."""
    found = [OtherProcess(name, number, size) for number, name, size in processes_on(devices.uuid_of(device) or "")]
    if any(one.number == os.getpid() for one in found):
        yield from (one for one in found if one.number != os.getpid())
