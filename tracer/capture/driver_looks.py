"""Look at what a device's driver counts beside torch's allocator, and note the calls that are known to raise it.

A driver answers in tens of microseconds, some in a millisecond: it is asked where steps begin and end, and before an
optimizer's step.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import torch

from tracer.capture.device import devices
from tracer.capture.graph_captures import Capture
from tracer.capture.recording import Recording
from tracer.capture.run_facts import DriverLooks, KnownCall, Look, OtherProcess
from tracer.capture.torch_names import LIBRARY_CALLS, node_name
from tracer.units import MIB, NS_PER_US

_LIMIT_S: Final = 10.0
_PROCESS: Final = re.compile(r"^(\d+), (.*), (\d+)$", re.MULTILINE)


class DriverLedger:
    """Looks at one device; a device without a driver's count, such as the CPU, has no looks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._looks: list[Look] = []
        self._calls: dict[tuple[str, int], KnownCall] = {}  # By library and thread

    def look(self) -> None:
        """Look now, unless a graph is captured."""
        if not devices.is_accelerator(self._device) or devices.is_capturing():
            return
        memory, reserved = devices.device_memory(self._device), devices.reserved_bytes(self._device)
        if memory is None or reserved is None:
            return
        look, seen = Look(time.time_ns() // NS_PER_US, memory[1] - memory[0], reserved), self._looks
        if len(seen) > 1 and seen[-2].beside_bytes == seen[-1].beside_bytes == look.beside_bytes:
            seen.pop()
        seen.append(look)

    def read(self, recording: Recording) -> None:
        """Note the first call of each library in each thread of the first recording."""
        if self._calls:
            return
        ops = recording.ops
        names = {number: node_name(recording.strings[number]) for number in set(ops.name.tolist())}
        libraries = {number: library for number, name in names.items() if (library := _library(name))}
        known = np.flatnonzero(np.isin(ops.name, list(libraries)))
        _, first = np.unique(np.stack([ops.name[known], ops.thread[known]]), axis=1, return_index=True)
        for op in np.sort(known[first]).tolist():
            name, thread = int(ops.name[op]), int(ops.thread[op])
            if (key := (libraries[name], thread)) not in self._calls:
                what = f"first recorded call of {libraries[name]}, {names[name]}"
                self._calls[key] = KnownCall(int(ops.start_ns[op]) // NS_PER_US, what, *_users_line(recording, op))

    def seen(self, device: torch.device, captures: Iterable[Capture] = ()) -> DriverLooks | None:
        """Return all looks, with captures of CUDA graphs; None for another device, or one without a driver's count."""
        if not self._looks or device != self._device:
            return None
        graphs = [KnownCall(capture.began_ns // NS_PER_US, "capture of a CUDA graph") for capture in captures]
        calls = sorted((*self._calls.values(), *graphs), key=lambda call: call.time_us)
        return DriverLooks(tuple(self._looks), tuple(calls), tuple(_other_processes(device)))


def _library(name: str) -> str | None:
    return next((library for library, calls in LIBRARY_CALLS.items() if calls.fullmatch(name)), None)


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
    asked = ["nvidia-smi", f"--id=GPU-{devices.uuid_of(device)}", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(
            [*asked, "--query-compute-apps=pid,process_name,used_memory"],
            capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
    found = [OtherProcess(name, int(pid), int(mib) * MIB) for pid, name, mib in _PROCESS.findall(ended.stdout)]
    if any(one.number == os.getpid() for one in found):
        yield from (one for one in found if one.number != os.getpid())
