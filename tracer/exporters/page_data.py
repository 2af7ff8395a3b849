"""The page's findings as one JSON value, small enough to carry in the page: long columns reduced and packed.

A packed table is its columns' differences, as little-endian int64, sorted by the significance of their bytes,
deflated, in base64. Most differences are 0, so an event costs a few bytes. `data.js` unpacks it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracer.analysis.downsample import reduce_rows
from tracer.arrays import Ints
from tracer.exporters.page_model import (
    Band,
    Cell,
    Curve,
    FileCell,
    Mark,
    Page,
    PageLostTrack,
    PagePeak,
    Section,
    SlowModule,
    StepTiming,
    Table,
)
from tracer.exporters.page_payload import (
    BandJson,
    CellJson,
    CurveJson,
    LostTrackJson,
    MarkJson,
    Packed,
    PageJson,
    PeakJson,
    RestJson,
    SectionJson,
    SlowModuleJson,
    StacksJson,
    TableJson,
    TimelineJson,
    TimingJson,
)
from tracer.exporters.page_words import CATEGORY_COLORS, CATEGORY_WORDS, headline
from tracer.exporters.row_json import row_json

if TYPE_CHECKING:
    from tracer.analysis.peak_row import PeakRow

MAX_TIMELINE_CHARS = 700_000
"""With plotly's 2 MB and the longest tables the page stays below 4 MB, which a file share carries at once."""
MAX_PEAK_ROWS = 1000
MAX_OTHER_ROWS = 500
MAX_BANDS = 3000
MAX_STACK_FRAMES = 40
_MOST_BUCKETS, _FEWEST_BUCKETS = 8192, 256


def page_json(page: Page) -> str:
    """All of the page's data, safe inside a script element: no character that HTML gives a meaning to."""
    text = json.dumps(page_data(page), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(page: Page) -> PageJson:
    """Everything that the page shows, as JSON values; times count from the origin."""
    origin = _origin(page)
    return {
        "title": page.title,
        "device": page.device,
        "subtitle": page.subtitle,
        "source": page.source,
        "headline": headline(page),
        "axis": page.axis,
        "timeline": _timeline(page, origin),
        "marks": [_mark(mark, origin) for mark in page.marks],
        "bands": [_band(band, origin) for band in page.bands[:MAX_BANDS]],
        "peak": None if page.peak is None else _peak(page.peak, origin),
        "lostTrack": [_lost(lost) for lost in page.lost_track[:MAX_OTHER_ROWS]],
        "timings": [_timing(timing) for timing in page.timings[:MAX_OTHER_ROWS]],
        "clock": page.clock,
        "slowModules": [_slow_module(module) for module in page.slow_modules[:MAX_OTHER_ROWS]],
        "run": [(str(name), str(value)) for name, value in page.run.items()],
        "notes": page.notes,
        "sections": [_section(section) for section in page.sections],
        "categories": {
            name: {"light": light, "dark": dark, "words": CATEGORY_WORDS[name]}
            for name, (light, dark) in CATEGORY_COLORS.items()
        },
    }


def _origin(page: Page) -> int:
    if page.origin is not None:
        return page.origin
    firsts = [int(times[0]) for times in (page.times, *(line.times for line in page.lines)) if len(times)]
    return min(firsts, default=0)


def _mark(mark: Mark, origin: int) -> MarkJson:
    return {"kind": mark.kind, "label": mark.label, "time": mark.time - origin, "bytes": mark.bytes}


def _band(band: Band, origin: int) -> BandJson:
    return {"kind": band.kind, "name": band.name, "start": band.start - origin, "end": band.end - origin}


def _lost(lost: PageLostTrack) -> LostTrackJson:
    return {"op": lost.op, "bytes": lost.bytes, "module": lost.module, "file": lost.file, "line": lost.line}


def _timing(timing: StepTiming) -> TimingJson:
    return {
        "name": timing.name,
        "forward_ns": timing.forward_ns,
        "backward_ns": timing.backward_ns,
        "optimizer_ns": timing.optimizer_ns,
        "total_ns": timing.total_ns,
    }


def _slow_module(slow: SlowModule) -> SlowModuleJson:
    return {
        "module": slow.module,
        "forward_ns": slow.forward_ns,
        "backward_ns": slow.backward_ns,
        "peak_bytes": slow.peak_bytes,
        "calls": slow.calls,
    }


def _peak(peak: PagePeak, origin: int) -> PeakJson:
    return {
        "bytes": peak.bytes,
        "time": None if peak.time is None else peak.time - origin,
        "step": peak.step,
        "phase": peak.phase,
        "breakdown": [{"name": share.name, "bytes": share.bytes} for share in peak.breakdown],
        "rows": [row_json(row) for row in peak.rows[:MAX_PEAK_ROWS]],
        "rest": _rest(peak.rows[MAX_PEAK_ROWS:]),
        "stacks": _stacks(peak),
    }


def _stacks(peak: PagePeak) -> StacksJson:
    """Each frame once, and for each row the numbers of its frames."""
    number: dict[str, int] = {}
    shown = peak.stacks[:MAX_PEAK_ROWS]
    rows = [[number.setdefault(frame, len(number)) for frame in stack[:MAX_STACK_FRAMES]] for stack in shown]
    return {"frames": list(number), "rows": rows, "cut": [max(len(stack) - MAX_STACK_FRAMES, 0) for stack in shown]}


def _section(section: Section) -> SectionJson:
    return {
        "title": section.title,
        "sentences": section.sentences,
        "tables": [_table(table) for table in section.tables],
        "is_alarming": section.is_alarming,
    }


def _table(table: Table) -> TableJson:
    """The rows that there is room for, and how many more there are."""
    rows = [[_cell(cell) for cell in row] for row in table.rows[:MAX_OTHER_ROWS]]
    return {"title": table.title, "columns": table.columns, "rows": rows, "left": len(table.rows) - len(rows)}


def _cell(cell: Cell) -> int | str | CellJson:
    return {"words": cell.words, "file": cell.file, "line": cell.line} if isinstance(cell, FileCell) else cell


def _rest(rows: Sequence[PeakRow]) -> RestJson:
    """The rows that the page has no room for: they count, so that the sum is right."""
    return {"groups": len(rows), "count": sum(row.count for row in rows), "bytes": sum(row.bytes for row in rows)}


# ---------------------------------------------------------------------------------------------------- long columns
def _timeline(page: Page, origin: int) -> TimelineJson:
    """Stack and lines, at the finest reduction that fits."""
    num_buckets = _MOST_BUCKETS
    while True:
        packed = _timeline_in(page, origin, num_buckets)
        size = sum(len(table["packed"]) for table in (packed["stack"], *packed["lines"]))
        if size <= MAX_TIMELINE_CHARS or num_buckets <= _FEWEST_BUCKETS:
            return packed
        num_buckets //= 2


def _timeline_in(page: Page, origin: int, num_buckets: int) -> TimelineJson:
    values = np.empty((len(page.times), len(page.series)), np.int64)
    for column, series in enumerate(page.series):
        values[:, column] = series.values_bytes
    return {
        "series": [{"name": series.name, "color": series.color} for series in page.series],
        "stack": _pack_rows(page.times, values, origin, num_buckets),
        "lines": [_line(line, origin, num_buckets) for line in page.lines],
    }


def _line(line: Curve, origin: int, num_buckets: int) -> CurveJson:
    return {"name": line.name, **_pack_rows(line.times, line.values_bytes.reshape(-1, 1), origin, num_buckets)}


def _pack_rows(times: Ints, values: Ints, origin: int, num_buckets: int) -> Packed:
    """Rows reduced along both of the page's axes, with the number that each had among all rows as first column."""
    # Drawn left to right: a clock that steps back stands still instead.
    drawn = np.maximum.accumulate(times) - origin if len(times) else times
    number = np.arange(len(times), dtype=np.int64)
    rows = number
    if len(times) > 2 * num_buckets:
        by_time = reduce_rows(drawn, values, num_buckets=num_buckets)
        rows = np.union1d(by_time, reduce_rows(number, values, num_buckets=num_buckets))
    columns = (rows, drawn[rows], *values[rows].T)
    return {"total": len(times), "rows": len(rows), "columns": len(columns), "packed": pack(columns)}


def pack(columns: Iterable[Ints]) -> str:
    """Columns of one length as text. All values below 2**53, which JavaScript counts exactly."""
    deltas = np.array([np.diff(column, prepend=0) for column in columns], "<i8")
    planes = deltas.reshape(-1, 1).view(np.uint8).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def unpack(packed: Packed) -> Ints:
    """What `pack` was given, [columns, rows]; the page does the same in `data.js`."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"])), np.uint8).reshape(8, -1)
    deltas = np.ascontiguousarray(planes.T).view("<i8").reshape(packed["columns"], packed["rows"])
    return np.asarray(np.cumsum(deltas, axis=1), np.int64)
