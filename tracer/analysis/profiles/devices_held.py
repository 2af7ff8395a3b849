"""How much each device held, and which one a run is about when nobody names one."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.capture.recording import Recording


def most_held_bytes(recordings: Sequence[Recording]) -> dict[str, int]:
    """The most that the allocator of each accelerator had handed out in some cycles, by name, largest first.

    The CPU is left out: its counter begins with the recording.
    """
    most_bytes: dict[str, int] = {}
    for recording in recordings:
        device, total = recording.allocations.device, recording.allocations.total_allocated_bytes
        for index, name in enumerate(recording.devices):
            mine = total[device == index]
            if name != "cpu" and len(mine):
                most_bytes[name] = max(most_bytes.get(name, 0), int(mine.max()))
    return dict(sorted(most_bytes.items(), key=lambda item: (-item[1], item[0])))


def default_device(recordings: Sequence[Recording]) -> str:
    """The device that a person means when they name none: the accelerator that held most, else the CPU."""
    return next(iter(most_held_bytes(recordings)), "cpu")
