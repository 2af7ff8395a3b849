"""Tables and sections of an answer: made once, then shown by the screen, the page, a notebook and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from tracer.answers.paths import source_place
from tracer.units import format_bytes, ms

NUM_ROWS: Final = 8  # Of each table of an answer that is shown whole
ColumnKind = Literal["text", "label", "bytes", "change", "count", "duration", "share"]
WORDS: Final = ("text", "label")
"""Kinds of columns whose cells are words; a label is never folded."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file as a table's cell; without a file, only the words."""

    words: str
    file: str | None = None
    line: int | None = None
    below: tuple[str, ...] = ()  # Lines of words below it, such as those of its callers


Cell = int | float | str | Place | None  # A text stands in any column as it is; None is not known


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; durations are in nanoseconds and shown in milliseconds, a share is 0 to 1."""

    name: str
    kind: ColumnKind = "text"
    adds_up: bool = True  # Whether the sum of some rows says anything, unlike that of peaks
    is_exact: bool = False  # Whether another column says the same with a unit, so that the short form has no need of it


def columns(kind: ColumnKind, *names: str, adds_up: bool = True) -> tuple[Column, ...]:
    """Columns of one kind."""
    return tuple(Column(name, kind, adds_up) for name in names)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title, in the order in which to show them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]  # As many cells each as there are columns
    footer: tuple[Cell, ...] | None = None  # The last row, which is always shown
    is_wide: bool = False  # Whether a terminal has no room for all of its words: see `joined`
    is_whole: bool = False  # Whether all rows are always shown

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in (*self.rows, self.footer or self.columns)):
            raise ValueError(f"{self.title}: a row has another number of cells than the {len(self.columns)} columns")

    def first_rows(self, most: int) -> Iterator[tuple[Cell, ...]]:
        """The first rows, and in place of several others their sum: `12 more`."""
        rest = self.rows[most:] if len(self.rows) > most + 1 and not self.is_whole else ()
        yield from self.rows[: len(self.rows) - len(rest)]
        if rest:
            kinds = [column.kind for column in self.columns]
            named = kinds.index("text" if "text" in kinds else "label")
            sums = [_sum(cells, column) for cells, column in zip(zip(*rest, strict=True), self.columns, strict=True)]
            yield (*sums[:named], f"{len(rest):,} more", *sums[named + 1 :])

    def joined(self) -> Table:
        """The last columns of text as one, where it is wide."""
        if not self.is_wide:
            return self
        first = next(index for index in range(len(self.columns), 0, -1) if self.columns[index - 1].kind != "text")
        names, rest = self.columns[:first], ", ".join(column.name for column in self.columns[first:])
        rows = tuple(
            (*row[:first], ", ".join(cell_text(cell, self.columns[-1]) for cell in row[first:] if cell))
            for row in self.rows
        )
        return replace(self, columns=(*names, Column(rest)), rows=rows)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an answer with a title of its own: sentences, then tables."""

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    is_alarming: bool = False  # Whether it belongs to what ended the program, which is said first
    is_drawn: bool = False  # Whether a page draws it itself, or leaves it out


def _sum(cells: tuple[Cell, ...], column: Column) -> Cell:
    numbers = [cell for cell in cells if isinstance(cell, int | float)]
    return sum(numbers) if numbers and column.adds_up else ""


def signed(size_bytes: float) -> str:
    """A change: `+1.00 MiB`."""
    return f"+{format_bytes(size_bytes)}" if size_bytes > 0 else format_bytes(size_bytes)


_FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "bytes": format_bytes,
    "change": signed,
    "count": "{:,}".format,
    "duration": lambda duration_ns: f"{ms(duration_ns):,.3f}",
    "share": lambda share: f"{100 * share:.1f} %",
}


def cell_text(cell: Cell, column: Column) -> str:
    """A cell as text, where no link is to be had."""
    if cell is None:
        return "-"
    if isinstance(cell, Place):
        return "\n".join([place_text(cell), *(f"  {line}" for line in cell.below)])
    return cell if isinstance(cell, str) else _FORMATS[column.kind](cell)


def place_text(place: Place) -> str:
    """The words, and the line behind them: `forward  train.py:14`."""
    if place.file is None:
        return place.words
    return "  ".join(filter(None, [place.words, source_place(place.file, place.line)]))
