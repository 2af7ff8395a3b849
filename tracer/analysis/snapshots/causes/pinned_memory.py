"""Pinned host memory: the lines that hold it when the recording ends, who pins it, and how to pin less.

No change on the device lowers it, so that nothing of it is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.snapshots.frames import torch_file
from tracer.analysis.snapshots.sites import Site, Sites
from tracer.arrays import grouped
from tracer.snapshot.columns import Frame, Snapshot
from tracer.units import format_bytes

_MUCH_BYTES: Final = 256 << 20
_LEAST_SHARE: Final = 0.1
_LOADER: Final = "a DataLoader's batches: use fewer workers, a smaller prefetch_factor or pin_memory=False"
_PROGRAM: Final = "lines of the program: keep fewer such tensors, or make them without pin_memory"
_MAKERS: Final = {
    "utils/data/_utils/pin_memory.py": _LOADER,
    "autograd/graph.py": "activations under save_on_cpu: give it pin_memory=False, or put fewer layers under it",
    "distributed/fsdp/": "FSDP's offload: CPUOffloadPolicy(pin_memory=False)",
}
"""Who pins and what to change, by the beginning of a file's path below torch/."""
_DEEPSPEED: Final = 'DeepSpeed\'s offload: "pin_memory": false in offload_optimizer and offload_param'


@dataclass(frozen=True, slots=True)
class PinnedLine:
    """Blocks of pinned host memory."""

    site: Site
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class PinnedMemory:
    """Pinned host memory that is in use when the recording ends."""

    lines: tuple[PinnedLine, ...] = ()  # By the line that asked for it, the largest first
    cause: str = ""  # Who pins it, with the change for each; empty unless it is much


def pinned_memory(snapshot: Snapshot, sites: Sites | None = None) -> PinnedMemory:
    """Pinned host memory of a snapshot; nothing where it was not recorded (before torch 2.15)."""
    lines = grouped([snapshot.pinned.stack.astype(np.int64)], (sites or Sites(snapshot.stacks)).site)
    found = map(PinnedLine, lines.keys, lines.sums(snapshot.pinned.size), lines.counts())
    return PinnedMemory(tuple(sorted(found, key=lambda line: -line.bytes)), _cause(snapshot))


def _cause(snapshot: Snapshot) -> str:
    total_bytes = int(snapshot.pinned.size.sum())
    if total_bytes < _MUCH_BYTES:
        return ""
    makers = grouped([snapshot.pinned.stack.astype(np.int64)], lambda stack: _maker(snapshot.stacks[stack]))
    sums = sorted(zip(makers.sums(snapshot.pinned.size), makers.keys, strict=True), reverse=True)
    parts = "; ".join(f"{format_bytes(size)} by {maker}" for size, maker in sums if size >= _LEAST_SHARE * total_bytes)
    return f"{format_bytes(total_bytes)} of the host's memory are pinned, {parts}. torch keeps what is freed."


def _maker(frames: Sequence[Frame]) -> str:
    """Who pins, with the change; the innermost frame that tells decides."""
    for frame in frames:
        if "/deepspeed/" in frame.file.replace("\\", "/"):
            return _DEEPSPEED
        file = torch_file(frame) or ""
        for beginning, words in _MAKERS.items():
            if file.startswith(beginning):
                return words
    return _PROGRAM
