"""The memory report of a snapshot: its weights and activations at the peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.arrays import grouped
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import Sites
from tracer.blocks.kinds import Kind
from tracer.blocks.table import Blocks


@dataclass(frozen=True, slots=True)
class Entry:
    """A weight or an activation."""

    name: str  # The operation or autograd node that made it; the function, where the stack names neither
    bytes: int  # Bytes as requested
    frames: tuple[tuple[str, int], ...]  # File and line of the user's frames, innermost first


def weights_at_peak(device: ReplayedDevice) -> tuple[Entry, ...]:
    """An entry for each block that is proven to be a parameter, in the order of their addresses."""
    blocks = _at_peak(device, Kind.PARAMETER)
    blocks = blocks.take(np.argsort(blocks.address, kind="stable"))
    columns = (blocks.size_bytes.tolist(), blocks.stack.tolist())
    return tuple(_entry(size, stack, device.sites) for size, stack in zip(*columns, strict=True))


def activations_at_peak(device: ReplayedDevice) -> tuple[Entry, ...]:
    """An entry for each stack of blocks that are proven to be activations, largest first."""
    blocks = _at_peak(device, Kind.ACTIVATION)
    stacks = grouped([blocks.stack], int)
    sizes = zip(stacks.sums(blocks.size_bytes), stacks.keys, strict=True)
    entries = [_entry(size, stack, device.sites) for size, stack in sizes]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.name, entry.frames)))


def _at_peak(device: ReplayedDevice, kind: Kind) -> Blocks:
    blocks = device.blocks.take(device.blocks.alive_at(device.replay.peak_entry))
    return blocks.take(blocks.kind == kind)


def _entry(size: int, stack: int, sites: Sites) -> Entry:
    return Entry(sites.operation(stack) or sites.site(stack).frame, size, sites.users_lines(stack))
