"""A program on a modelled device whose requests have stacks, for what is said of causes and changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.allocator.recorded import MIB
from tests.allocator.recording_allocator import RecordingAllocator
from tests.analysis.snapshots.allocator_samples import explain
from tracer.allocator.blocks import Block
from tracer.allocator.reserving import OutOfMemoryError
from tracer.analysis.snapshots.first_changes import FirstChange


class Recorded:
    """Each request and free has a stack; sizes are in MiB."""

    def __init__(self, capacity: int | None = None) -> None:
        self.allocator = RecordingAllocator(device_bytes=None if capacity is None else capacity * MIB)
        self._frames: list[Any] = []

    def make(self, size: int, frames: Any, *, stream: int = 0) -> Block:
        block = self.allocator.allocate(size * MIB, stream)
        self._note(frames)
        return block

    def fail(self, size: int, frames: Any) -> None:
        with pytest.raises(OutOfMemoryError):
            self.allocator.allocate(size * MIB)
        self._note(frames)

    def free(self, block: Block, frames: Any) -> None:
        self.allocator.free(block)
        self._note(frames)

    def _note(self, frames: Any) -> None:
        self._frames += [frames] * (len(self.allocator.history) - len(self._frames))

    def snapshot(self) -> Any:
        objects = self.allocator.snapshot()
        for row, frames in zip(objects["device_traces"][0], self._frames, strict=True):
            row["frames"] = frames
        return objects

    def changes(self) -> dict[str, FirstChange]:
        """By their causes."""
        first = explain(self.snapshot()).first
        assert first is not None
        return {change.cause: change for change in first.changes}
