"""The content of a page, in the same form for profiler recordings and allocator snapshots.

Bytes and nanoseconds throughout. Everything but title and device may be left empty: the page then says that it is not
known, or leaves the section out. Where times mean nothing, everything stands at its position in the order of events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracer.answers.answer import Answer
from tracer.answers.tables import Section
from tracer.arrays import Int, Ints, PerBlock, PerPageRow

if TYPE_CHECKING:
    from tracer.allocator.fragmentation import AddressRanges
    from tracer.answers.rows import Row
    from tracer.blocks.from_snapshot.timeline import Band
    from tracer.exporters.annotated_source import AnnotatedFile


Axis = Literal["time", "entry"]
MarkKind = Literal["peak", "tagged", "oom"]
Source = Literal["profile", "snapshot"]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A layer of the stacked drawing."""

    name: str  # Name of the category. Those of `Kind` have colours and words of their own
    values_bytes: PerPageRow[Int]  # [Y] Bytes held after each row of `Page.times`


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A curve above the stack, such as allocated or reserved memory, with rows of its own."""

    name: str  # For people: "allocated", "reserved"
    times: Ints  # On the same axis as `Page.times`
    values_bytes: Ints  # As many

    def __post_init__(self) -> None:
        if len(self.times) != len(self.values_bytes):
            raise ValueError(f"{self.name}: {len(self.times)} times, but {len(self.values_bytes)} values")


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the timeline with a label.

    The kinds: the true peak ("peak"), the peak of what has a category ("tagged"), an allocation that failed ("oom").
    """

    kind: MarkKind
    label: str
    time: int
    bytes: int
    row: int | None = None  # Of `Page.times`, where several rows have this time
    detail: str = ""  # Said behind its bytes where there is room


@dataclass(frozen=True, slots=True)
class PagePeak:
    """The worst moment."""

    bytes: int  # All that was allocated
    breakdown: Mapping[str, int] = field(default_factory=dict)  # Bytes by category, in the order in which to show them
    row: int | None = None  # Row of `Page.times`; the page then says what was in use by `Page.blocks`


@dataclass(frozen=True, slots=True, eq=False)
class PageBlocks:
    """Every block of the recording, from which the page says what was in use at any moment."""

    # Groups of equal blocks; bytes and counts are of all blocks of a group, whenever they were in use.
    groups: tuple[Row, ...]
    group: PerBlock[Int]  # [B] Which group each block belongs to
    size_bytes: PerBlock[Int]  # [B]
    made_at: PerBlock[Int]  # [B] The first row of `Page.times` at which it was in use; negative if it was there before
    freed_at: PerBlock[Int]  # [B] The first row at which it no longer was; the number of rows if that was never
    # Stack of each group, innermost frame first; as many as groups, or none.
    stacks: tuple[tuple[str, ...], ...] = ()
    address: PerBlock[Int] | None = None  # [B] Where each block lies; None where that is of no use
    allocated_bytes: PerBlock[Int] | None = None  # [B] What it takes there, rounded; None where that is its size

    def __post_init__(self) -> None:
        if len({len(self.group), len(self.size_bytes), len(self.made_at), len(self.freed_at)}) > 1:
            raise ValueError("the columns of the blocks have different lengths")
        if self.stacks and len(self.stacks) != len(self.groups):
            raise ValueError(f"{len(self.groups)} groups, but {len(self.stacks)} stacks")


@dataclass(frozen=True, slots=True, eq=False)
class PageSpace:
    """The ranges of addresses that were reserved, each with its life."""

    homes: tuple[str, ...]  # Names of pools and streams
    home: Ints  # Which of them each range belongs to
    ranges: AddressRanges
    first_row: int  # Row of `Page.times` after the first entry of the ranges' lives


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Everything on one page, for one device and one recording."""

    title: str
    device: str  # As `str(torch.device)` writes it
    answer: Answer  # What the page says, but for the sections that it draws itself
    # "profile", whose rows have phase, module and operator, or "snapshot", whose rows have a function.
    source: Source = "profile"
    subtitle: str = ""  # One line below the title: model, number of events, date
    axis: Axis = "time"  # "time" for times in ns, "entry" for recordings whose entries have a number and no time
    origin: int | None = None  # What is 0 on the axis, same unit as `times`; by default the first row
    # [Y], in allocator order. One that is smaller than an earlier one is drawn where that is.
    times: PerPageRow[Int] = field(default_factory=lambda: np.empty(0, np.int64))
    series: tuple[Series, ...] = ()  # Layers of the stack, lowest first
    lines: tuple[Curve, ...] = ()  # Curves above it
    # [Y] what the allocator counted at each row, apart from blocks; None where nobody did.
    counted_bytes: PerPageRow[Int] | None = None
    # [Y] before and after by kind, where two recordings are compared; `series` then says what both have, and who more.
    compared: Mapping[str, tuple[PerPageRow[Int], PerPageRow[Int]]] = field(default_factory=dict)
    blocks: PageBlocks | None = None  # Every block, or None where only the peak is known
    space: PageSpace | None = None  # What was reserved where; with blocks that have addresses
    marks: tuple[Mark, ...] = ()  # Points to name
    bands: tuple[Band, ...] = ()
    peak: PagePeak | None = None  # The worst moment, or None where there is none
    # Command, device, versions, settings, model size, date.
    run: Mapping[str, str | int | float] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()  # Findings that a page alone has room for, behind those of the answer
    sources: tuple[AnnotatedFile, ...] = ()  # The user's files with bytes beside their lines, the largest first

    def __post_init__(self) -> None:
        for series in self.series:
            if len(series.values_bytes) != len(self.times):
                raise ValueError(f"{series.name}: {len(self.times)} times, but {len(series.values_bytes)} values")
        if self.counted_bytes is not None and len(self.counted_bytes) != len(self.times):
            raise ValueError(f"{len(self.times)} times, but {len(self.counted_bytes)} counts")


def without_times(page: Page) -> Page:
    """Return the page on an axis of events."""
    drawn = np.maximum.accumulate(page.times) if len(page.times) else page.times

    def positions(times: Ints) -> Ints:
        """The row of each time, the first of those that tie."""
        return np.searchsorted(drawn, times).astype(np.int64)

    def position(time: int) -> int:
        return int(np.searchsorted(drawn, time))

    return replace(
        page,
        axis="entry",
        times=np.arange(len(page.times), dtype=np.int64),
        lines=tuple(replace(line, times=positions(line.times)) for line in page.lines),
        marks=tuple(
            replace(mark, time=mark.row if mark.row is not None else position(mark.time)) for mark in page.marks
        ),
        bands=tuple(replace(band, start=position(band.start), end=position(band.end)) for band in page.bands),
    )
