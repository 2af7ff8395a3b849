"""What the page's scripts are given: one JSON object, whose types are these. `data.js` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tracer.exporters.json_documents.row import RowJson
from tracer.exporters.page.model import Axis, BandKind, MarkKind, RankState, Source


class Packed(TypedDict):
    """A table of integers as text; see `page_data.pack`."""

    total: int
    """Rows before they were reduced."""
    rows: int
    columns: int
    packed: str


class CurveJson(Packed):
    """A curve above the stack: row number, time, bytes."""

    name: str


class SeriesJson(TypedDict):
    """A layer of the stack, whose values are a column of it."""

    name: str
    color: str | None


class TimelineJson(TypedDict):
    """Stack and curves; the stack's columns are row number, time, then the series. `counted` has one for each row."""

    series: list[SeriesJson]
    stack: Packed
    lines: list[CurveJson]
    counted: Packed | None


class MarkJson(TypedDict):
    """A point of the timeline with a label; its place among the kept rows, where that is known."""

    kind: MarkKind
    label: str
    time: int
    bytes: int
    row: int | None


class BandJson(TypedDict):
    """A stretch of the axis."""

    kind: BandKind
    name: str
    start: int
    end: int


class KindBytesJson(TypedDict):
    """One row of the breakdown."""

    name: str
    bytes: int


class RestJson(TypedDict):
    """The rows that the page has no room for."""

    groups: int
    count: int
    bytes: int


class StacksJson(TypedDict):
    """Each frame once, which of them are lines of Python, and for each row its frames and how many more there were."""

    frames: list[str]
    python: list[int]
    rows: list[list[int]]
    cut: list[int]


class BlocksJson(TypedDict):
    """What was in use at every kept row of the timeline; positions are indices into the kept rows.

    The columns of `groups` are numbers of texts, one more than the number, and 0 for none; lines are lines.
    Those of `blocks` are the first position, how many positions, bytes and group of each block. Those of `changes` are
    position, group, bytes and count: by how much the small blocks of a group changed. Those of `places` are the address
    of each block and, where they are not its bytes, its rounded bytes.
    """

    texts: list[str]
    groups: Packed
    blocks: Packed
    changes: Packed
    places: Packed | None
    smaller_than: int
    stacks: StacksJson


class SpaceJson(TypedDict):
    """Reserved ranges; the columns are first position, how many positions, address, bytes, home, expandable or not.

    Before the position `known_from` they are not known.
    """

    homes: Sequence[str]
    ranges: Packed
    known_from: int


class AdviceJson(TypedDict):
    """A change that would save memory; `PageAdvice` describes it."""

    change: str
    saves_bytes: int
    cost: str
    how_found: str


class PeakJson(TypedDict):
    """The worst moment; its rows stand here where no blocks are known."""

    bytes: int
    row: int | None
    time: int | None
    step: str | None
    phase: str | None
    breakdown: list[KindBytesJson]
    rows: list[RowJson]
    rest: RestJson
    stacks: StacksJson


class RankJson(TypedDict):
    """A bar; `PageRank` describes it."""

    name: str
    rank: int | None
    state: RankState
    bytes: int
    kinds: list[KindBytesJson]
    is_odd: bool
    ran_out: bool
    alike: int
    words: str
    file: str
    has_page: bool


class LostTrackJson(TypedDict):
    """Where torch lost track."""

    op: str
    bytes: int
    module: str | None
    file: str | None
    line: int | None


class TimingJson(TypedDict):
    """How long one step took."""

    name: str
    forward_ns: float | None
    backward_ns: float | None
    optimizer_ns: float | None
    total_ns: float | None


class SlowModuleJson(TypedDict):
    """Time of a module beside its memory."""

    module: str
    forward_ns: float | None
    backward_ns: float | None
    peak_bytes: int | None
    calls: int | None


class CellJson(TypedDict):
    """A line of a file as a table's cell."""

    words: str
    file: str | None
    line: int | None


class TableJson(TypedDict):
    """The rows that there is room for, and how many more there are."""

    title: str
    columns: Sequence[str]
    rows: list[list[int | str | CellJson]]
    left: int


class SectionJson(TypedDict):
    """A part of the page with a title of its own."""

    title: str
    sentences: Sequence[str]
    tables: list[TableJson]
    is_alarming: bool


class CategoryJson(TypedDict):
    """How a category is drawn and called."""

    light: str
    dark: str
    words: str
    meaning: str


class PageJson(TypedDict):
    """All of the page; times count from its origin."""

    title: str
    device: str
    subtitle: str
    source: Source
    headline: Sequence[str]
    axis: Axis
    timeline: TimelineJson
    marks: list[MarkJson]
    bands: list[BandJson]
    peak: PeakJson | None
    blocks: BlocksJson | None
    space: SpaceJson | None
    alarm: Sequence[str]
    advice: list[AdviceJson]
    lostTrack: list[LostTrackJson]
    timings: list[TimingJson]
    clock: str
    slowModules: list[SlowModuleJson]
    run: list[tuple[str, str]]
    notes: Sequence[str]
    sections: list[SectionJson]
    ranks: list[RankJson]
    categories: dict[str, CategoryJson]
