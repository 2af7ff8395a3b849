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
    from tracer.blocks.table import Blocks
    from tracer.exporters.annotated_source import AnnotatedFile


Axis = Literal["time", "entry"]
MarkKind = Literal["peak", "tagged", "oom"]
Source = Literal["profile", "snapshot"]


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


@dataclass(frozen=True, slots=True, eq=False)
class PageSpace:
    """The ranges of addresses that were reserved, each with its life."""

    homes: tuple[str, ...]  # Names of pools and streams
    home: Ints  # Which of them each range belongs to
    ranges: AddressRanges


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
    # [Y] bytes held after each row, by layer of the stack, lowest first: names of `Kind` have colours and words
    series: Mapping[str, PerPageRow[Int]] = field(default_factory=dict)
    lines: tuple[Curve, ...] = ()  # Curves above it
    # [Y] what the allocator counted at each row, apart from blocks; None where nobody did.
    counted_bytes: PerPageRow[Int] | None = None
    # [Y] before and after by kind, where two recordings are compared; `series` then says what both have, and who more.
    compared: Mapping[str, tuple[PerPageRow[Int], PerPageRow[Int]]] = field(default_factory=dict)
    blocks: Blocks | None = None  # Every block, from which the page says what was in use at any moment
    groups: tuple[Row, ...] = ()  # Rows of equal blocks, whenever they were in use
    group: PerBlock[Int] | None = None  # [B] Which of these each block belongs to
    first_row: int = 0  # Row of `times` after the first of the events that blocks and ranges count
    has_addresses: bool = False  # Whether blocks lie where their addresses say
    space: PageSpace | None = None  # What was reserved where; with blocks that have addresses
    marks: tuple[Mark, ...] = ()  # Points to name
    bands: tuple[Band, ...] = ()
    breakdown: Mapping[str, int] = field(default_factory=dict)  # Bytes by kind at the peak, which they sum to
    peak_row: int | None = None  # Row of `times` of the peak; None where only its bytes are known
    # Command, device, versions, settings, model size, date.
    run: Mapping[str, str | int | float] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()  # Findings that a page alone has room for, behind those of the answer
    sources: tuple[AnnotatedFile, ...] = ()  # The user's files with bytes beside their lines, the largest first

    def __post_init__(self) -> None:
        for name, values in self.series.items():
            if len(values) != len(self.times):
                raise ValueError(f"{name}: {len(self.times)} times, but {len(values)} values")
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
