"""The page's findings as one JSON value: long columns reduced and packed, paths so that the page can be sent.

Dataclasses of `model` stand there field by field; only what is reduced or packed has a shape of its own, which the
functions that make it describe. `data.js` reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tracer.answers.paths import packaged_file, short_path
from tracer.answers.tables import Table
from tracer.arrays import Ints, Rows
from tracer.blocks.kinds import Kind, meaning_of, words_of
from tracer.exporters.annotated_source import AnnotatedFile, freed_words
from tracer.exporters.page.blocks import MOST_BLOCKS, blocks_json, packed, space_json
from tracer.exporters.page.model import Curve, Page

_PACKED = "packed"
_PYTHONS = re.compile(r"(?:/|[A-Za-z]:\\).*[/\\](lib[/\\]python3[\d.]*[/\\].+)", re.IGNORECASE)
_FRAME = re.compile(r"\(((?:/|torch/|[A-Za-z]:\\)[^()]*):(\d+)\)$")
_WHOLE = re.compile(r"(?:/|torch/|[A-Za-z]:[\\/])[^\s:()\"'<>]*(?: [^\s:()\"'<>]*)*\.\w+")
_IN_WORDS = re.compile(r"(?<![\w/.~-])(?:(?:/[^\s:()\"',;]+){2,}|[A-Za-z]:\\[^\s:()\"',;]+)")


Names = Callable[[str], str | None]  # What the project calls a file, or None for one that is not of it


def relative_paths(data: Any, names: Names = lambda path: None) -> Any:
    """JSON values of a page with every path in them as a page names it.

    Args:
        names: Names of files of the project, where more is known of it than that it lies below the working directory.
    """
    read = cache(partial(readable_text, names=names))
    return mapped(data, read)


def mapped(data: Any, change: Callable[[str], str]) -> Any:
    """JSON values with every text changed, except keys and packed columns."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {key: value if key == _PACKED else mapped(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [mapped(value, change) if isinstance(value, str | dict | list | tuple) else value for value in data]
    return data


def readable_path(path: str, names: Names = lambda path: None) -> str:
    """A file as the page names it.

    One below the working directory is named from there, one of somebody's home from `~`, one of an installed package
    from `site-packages`; any other stays.
    """
    # Torch's profiler names torch's own files so.
    packaged = path if path.startswith("torch/") else packaged_file(path)
    if packaged is not None:
        return f"site-packages/{packaged}"
    # Python's own: the folders above it are somebody's.
    match = _PYTHONS.match(path)
    return names(path) or (short_path(path) if match is None else match[1])


def readable_text(text: str, names: Names = lambda path: None) -> str:
    """A path, a frame of a stack, or a sentence, with the paths in it as the page names them."""
    if "/" not in text and "\\" not in text:
        return text
    if _WHOLE.fullmatch(text):
        return readable_path(text, names)
    if match := _FRAME.search(text):  # before words: a folder may have a space in its name
        return f"{text[: match.start()]}({readable_path(match[1], names)}:{match[2]})"

    def read(match: re.Match[str]) -> str:
        # A folder is named by no project: a command's --save-dir, say.
        return readable_path(match[0], names) if Path(match[0]).suffix else readable_path(match[0])

    return _IN_WORDS.sub(read, text)


def folders_up(page: Path, root: Path) -> int | None:
    """Number of folders that the sources' folder lies above a page's own; None where it is elsewhere."""
    try:
        relative = os.path.relpath(root, page.resolve().parent)
    except ValueError:  # another drive
        return None
    parts = [part for part in Path(relative).parts if part != os.curdir]
    return len(parts) if all(part == os.pardir for part in parts) else None


MAX_TIMELINE_CHARS = 700_000
MAX_BLOCKS_CHARS = 2_500_000  # With the longest tables the page stays below 5 MB, which a file share carries at once
MAX_OTHER_ROWS = 500
MAX_BANDS = 3000
_MOST_BUCKETS, _FEWEST_BUCKETS = 8192, 256


def page_json(data: Mapping[str, Any]) -> str:
    """Return the page's data, safe inside a script element: no character that HTML gives a meaning to."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(page: Page, *, num_pages: int = 1) -> dict[str, Any]:
    """Everything that the page shows of one device, as JSON values; times count from the origin."""
    origin = _origin(page)
    timeline, blocks, rows = _long_columns(page, origin, num_pages)
    answer = page.answer
    sections = (*(section for section in answer.sections if not section.is_drawn), *page.sections)
    data = {
        "title": page.title,
        "device": page.device,
        "subtitle": page.subtitle,
        "source": page.source,
        "said": (*answer.happened, *answer.why, *answer.change),
        "axis": page.axis,
        "timeline": timeline,
        "marks": [asdict(replace(mark, time=mark.time - origin, row=_position(mark.row, rows))) for mark in page.marks],
        "bands": [
            asdict(replace(band, start=band.start - origin, end=band.end - origin)) for band in page.bands[:MAX_BANDS]
        ],
        "peak": {
            "bytes": sum(page.breakdown.values()),
            "row": _position(page.peak_row, rows) if blocks is not None else None,
            "breakdown": [{"name": name, "bytes": size_bytes} for name, size_bytes in page.breakdown.items()],
        }
        if page.breakdown
        else None,
        "blocks": blocks,
        "space": space_json(page, rows) if blocks is not None else None,
        "caveat": answer.caveat,
        "is_alarming": answer.is_alarming,
        "run": [(str(name), str(value)) for name, value in page.run.items()],
        "notes": answer.remarks,
        "sections": [
            {**asdict(replace(section, tables=())), "tables": list(map(_table, section.tables))} for section in sections
        ],
        "categories": {
            words_of(name): {"light": light, "dark": dark, "meaning": meaning_of(name)}
            for name, (light, dark) in ({kind.name: kind.colors for kind in Kind} | OTHER_LAYERS).items()
        },
    }
    # People read the same words here as on a screen; only JSON for programs has the identifiers.
    read: dict[str, Any] = mapped(data, words_of)
    return {**read, "sources": list(map(_source, page.sources))}


def _origin(page: Page) -> int:
    if page.origin is not None:
        return page.origin
    firsts = [int(times[0]) for times in (page.times, *(line.times for line in page.lines)) if len(times)]
    return min(firsts, default=0)


def _position(row: int | None, rows: Rows) -> int | None:
    """The place of a row that is kept among those that are."""
    return None if row is None else int(np.searchsorted(rows, row))


def _source(file: AnnotatedFile) -> dict[str, Any]:
    """Lines are number and text, and where they have memory its bytes, those of backward, own peak and where freed."""
    lines: list[dict[str, Any]] = []
    for line in file.lines:
        memory = line.memory
        values: dict[str, Any] = {"number": line.number, "text": line.text}
        if memory is not None:
            values |= {
                "bytes": memory.peak_bytes,
                "backward": memory.backward_bytes,
                "own": memory.own_peak_bytes,
                "freed": freed_words(memory),
            }
        lines.append(values)
    return {"file": file.file, "bytes": file.peak_bytes, "note": file.note, "lines": lines}


def _table(table: Table) -> dict[str, Any]:
    """The rows that there is room for, and in `left` how many more there are."""
    shown = replace(table, rows=table.rows[:MAX_OTHER_ROWS])
    return {**asdict(shown), "left": len(table.rows) - len(shown.rows)}


# ---------------------------------------------------------------------------------------------------- long columns
def _long_columns(page: Page, origin: int, num_pages: int) -> tuple[dict[str, Any], dict[str, Any] | None, Rows]:
    """Stack, lines and blocks at the finest reduction that fits, and the rows of the stack that are kept."""
    num_buckets = _MOST_BUCKETS
    while True:
        values = np.stack([np.zeros(len(page.times), np.int64), *page.series.values()], axis=1)[:, 1:]
        marked = [mark.row for mark in page.marks if mark.row is not None]
        if page.peak_row is not None:
            marked.append(page.peak_row)
        rows = _rows_to_draw(_drawn(page.times, origin), values, num_buckets, marked)
        timeline = _timeline(page, origin, rows, num_buckets)
        size = sum(len(table["packed"]) for table in (timeline["stack"], *timeline["lines"]))
        fits = size * num_pages <= MAX_TIMELINE_CHARS
        is_fitting = page.blocks is not None and (fits or num_buckets <= _FEWEST_BUCKETS)
        blocks = blocks_json(page, rows, most_blocks=MOST_BLOCKS // num_pages) if is_fitting else None
        if blocks is not None:
            tables = (blocks["blocks"], blocks["changes"], blocks["places"])
            size = sum(len(table["packed"]) for table in tables if table is not None)
            fits = size * num_pages <= MAX_BLOCKS_CHARS
        if fits or num_buckets <= _FEWEST_BUCKETS:
            return timeline, blocks, rows
        num_buckets //= 2


def _drawn(times: Ints, origin: int) -> Ints:
    """Drawn left to right: a clock that steps back stands still instead."""
    return np.maximum.accumulate(times) - origin if len(times) else times


def _rows_to_draw(drawn: Ints, values: Ints, num_buckets: int, keep: Sequence[int] = ()) -> Rows:
    """Rows reduced along both of the page's axes: time, and number of the row."""
    number = np.arange(len(drawn), dtype=np.int64)
    if len(drawn) <= 2 * num_buckets:
        return number
    by_time = reduce_rows(drawn, values, num_buckets=num_buckets, keep=keep)
    return np.union1d(by_time, reduce_rows(number, values, num_buckets=num_buckets))


def _timeline(page: Page, origin: int, rows: Rows, num_buckets: int) -> dict[str, Any]:
    """Stack and curves; the stack's columns are row number, time, then the series. `counted` has one for each row."""
    columns = [rows, _drawn(page.times, origin)[rows], *(values[rows] for values in page.series.values())]
    counted = page.counted_bytes
    # Of two recordings the kinds of the first, then those of the second, a column each.
    sides = [levels[side][rows] for side in (0, 1) for levels in page.compared.values()]
    return {
        "series": [{"name": name} for name in page.series],
        "stack": packed(columns, total=len(page.times)),
        "lines": [_line(line, origin, num_buckets) for line in page.lines],
        "compared": {"names": list(page.compared), "levels": packed(sides)} if page.compared else None,
        "counted": packed([counted[rows]]) if counted is not None else None,
    }


def _line(line: Curve, origin: int, num_buckets: int) -> dict[str, Any]:
    """A curve above the stack: row number, time, bytes."""
    drawn = _drawn(line.times, origin)
    rows = _rows_to_draw(drawn, line.values_bytes.reshape(-1, 1), num_buckets)
    return {"name": line.name, **packed([rows, drawn[rows], line.values_bytes[rows]], total=len(line.times))}


BOTH, MORE, LESS = "in both", "more than before", "less than before"
OTHER_LAYERS = {
    "UNTAGGED": ("#7f7a84", "#aba9b8"),  # Torch's word for what it did not tag
    BOTH: ("#c6cbd2", "#424a54"),
    MORE: ("#d1495b", "#e8646f"),
    LESS: ("#2a78b5", "#5aa7e0"),
}
"""Layers that are no kinds, and their colors on white and on black."""


def reduce_rows(x: Ints, values: Ints, *, num_buckets: int, keep: Iterable[int] = ()) -> Rows:
    """Choose the rows that a drawing of `num_buckets` pixels needs.

    The range of x is cut into buckets of equal width. Of each bucket stay its first and last row and, for the total
    and for each column, the first row with its smallest and the first with its largest value. So a staircase through
    the chosen rows enters and leaves every bucket at the right height and touches every extreme, and each chosen row
    is one of the input's, with all its columns as they were.

    Args:
        x: Position of each row, in the order of the rows. A position smaller than an earlier one counts as that.

    Returns:
        Indices of the chosen rows, ascending, each once: at most `num_buckets * (2 * columns + 4)` of them and `keep`.
    """
    if values.ndim != 2 or len(x) != len(values):
        raise ValueError(f"{len(x)} positions, but values of shape {values.shape}")
    if num_buckets < 1:
        raise ValueError(f"{num_buckets} buckets")
    kept = np.fromiter(keep, np.int64)
    if not len(x):
        return kept[:0]
    starts = bucket_starts(x, num_buckets)
    chosen = np.zeros(len(x), bool)
    chosen[starts] = True
    chosen[starts[1:] - 1] = True
    chosen[-1] = True
    chosen[kept] = True
    for column in (values.sum(axis=1), *values.T):
        chosen[_first_of(column, starts, np.maximum)] = True
        chosen[_first_of(column, starts, np.minimum)] = True
    return np.flatnonzero(chosen)


def bucket_starts(x: Ints, num_buckets: int) -> Rows:
    """First row of each bucket that has any; buckets have equal width, the last one includes the end of the range.

    Args:
        x: Where each row lies, in order; what steps back counts as standing still. One row at least.
    """
    position = np.maximum.accumulate(x)
    offset, width = position - position[0], int(position[-1] - position[0])
    # Floating point may move a row to the neighbouring bucket, never out of order: products of 64 bits would overflow.
    bucket = np.minimum((offset * (num_buckets / max(width, 1))).astype(np.int64), num_buckets - 1)
    return np.concatenate(([0], np.flatnonzero(np.diff(bucket)) + 1)).astype(np.int64)


def _first_of(column: Ints, starts: Rows, extreme: np.ufunc) -> Rows:
    extremes = extreme.reduceat(column, starts)
    lengths = np.diff(np.append(starts, len(column)))
    hits = np.flatnonzero(column == np.repeat(extremes, lengths))
    first = np.searchsorted(hits, starts)
    return np.asarray(hits[first], np.int64)
