"""Columns of a snapshot, in numpy; everything behind the loader knows these and no dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tracer.arrays import Bools, Column, ColumnTable, Ints
from tracer.snapshot.actions import Action, BlockState

Int32s: TypeAlias = Column[np.int32]
Bytes8: TypeAlias = Column[np.uint8]

CACHING_ALLOCATOR: Final = "caching_allocator"
"""A setting in our own snapshots of a run without the caching allocator, such as one on the CPU: False."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace(ColumnTable):
    """Actions of one device's allocator, entry by entry, in its own order [entries]."""

    action: Bytes8  # Codes of `Action`
    # Address of the block or segment; of an `oom` entry, the bytes that the device had free, -1 if not known.
    addr: Ints
    size: Ints  # Bytes, as asked for; of segments, as reserved
    stream: Ints
    time_us: Ints  # Microseconds, never decreasing and often tied; -1 where the recording has no times
    stack: Int32s  # Numbers of stacks; 0 is the empty one
    category: Int32s  # Numbers of texts, -1 for none: categories that a tracer wrote beside the entries
    metadata: Int32s  # Numbers of texts, -1 for none: what the program attached to its allocations
    pool: Int32s  # Numbers of texts, -1 for the default pool

    def where(self, *actions: Action) -> Ints:
        """Indices of the entries with one of these actions, in order."""
        wanted = np.zeros(256, dtype=np.bool_)
        wanted[list(actions)] = True
        return np.flatnonzero(wanted[self.action])


@dataclass(frozen=True, slots=True, eq=False)
class StateBlocks(ColumnTable):
    """The pieces of the segments when the snapshot was taken [pieces]."""

    address: Ints
    size: Ints  # Its bytes, rounded as the allocator does
    requested_size: Ints  # What was asked for; without meaning for inactive blocks
    state: Bytes8  # Codes of `BlockState`
    stack: Int32s
    stream: Ints

    @property
    def is_live(self) -> Bools:
        """True for each block whose memory is in use: a freed one is, until `free_completed`."""
        return np.not_equal(self.state, BlockState.INACTIVE)


@dataclass(frozen=True, slots=True, eq=False)
class Segments(ColumnTable):
    """Memory reserved from the driver when the snapshot was taken [segments]."""

    address: Ints  # Where the segment begins; of an expandable one, where this mapped range begins
    total_size: Ints
    stream: Ints
    is_small: Bools  # Whether it serves requests of up to 1 MiB
    is_expandable: Bools
    pool: Int32s  # Numbers of texts, -1 for the default pool


@dataclass(frozen=True, slots=True, eq=False)
class Annotations(ColumnTable):
    """Starts and ends of named regions of the program on one device, in recorded order [annotations]."""

    name: Int32s
    is_start: Bools
    time_us: Ints


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a stack; C++ frames have the file `??`, a source file of torch, or none."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Distinct stacks, innermost frame first, each frame stored once."""

    frames: tuple[Frame, ...]
    offset: Ints  # Where each stack begins in `frame_of` [stacks + 1]
    frame_of: Int32s

    def __len__(self) -> int:
        return len(self.offset) - 1

    def frame_ids(self, stack: int) -> list[int]:
        """Indices of one stack's frames, innermost first."""
        ids: list[int] = self.frame_of[self.offset[stack] : self.offset[stack + 1]].tolist()
        return ids

    def __getitem__(self, stack: int) -> list[Frame]:
        return [self.frames[i] for i in self.frame_ids(stack)]

    def with_one_of(self, is_wanted: Sequence[bool]) -> Bools:
        """Mark stacks that have one of the wanted frames [stacks]; one False where there are no stacks."""
        found = np.zeros(max(len(self), 1), np.bool_)
        stack_of = np.repeat(np.arange(len(self)), np.diff(self.offset))
        found[stack_of[np.asarray(is_wanted, np.bool_)[self.frame_of]]] = True
        return found


@dataclass(frozen=True, slots=True, eq=False)
class DeviceState:
    """Everything that a snapshot says of one device."""

    device: int
    trace: Trace
    segments: Segments
    blocks: StateBlocks
    annotations: Annotations


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A loaded snapshot."""

    # The devices with a segment or a trace entry that says more than that a snapshot was taken, by index; all that have
    # an entry where there is none such.
    devices: tuple[DeviceState, ...]
    stacks: Stacks  # The stacks that all devices share
    texts: tuple[str, ...]  # Names of annotations, categories, metadata and pools
    settings: Mapping[str, Any]  # What is known of the allocator's settings; those that decide what it reserves
    pinned_bytes: int  # Host memory that is pinned at the end; 0 where that was not recorded
    remarks: tuple[str, ...] = ()  # What was odd in the file and how it was read, in sentences

    @property
    def has_allocator(self) -> bool:
        """True if a caching allocator served the requests; else segments are ranges that blocks ever lay in."""
        return self.settings.get(CACHING_ALLOCATOR, True) is not False

    def text(self, number: int) -> str:
        """A text by its number; the empty one for -1."""
        return self.texts[number] if number >= 0 else ""
