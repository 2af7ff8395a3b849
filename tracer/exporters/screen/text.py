"""Lines and tables of the screen: numbers to the right, names and paths whole, an empty line before each table.

A path that is broken in two can neither be searched for nor copied. So words are never broken, and a table is folded to
a width on a terminal alone, which it exceeds where its longest words do: in a file or a pipe its lines are as long as
they are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tracer.exporters.screen.terminal import visible
from tracer.units import format_bytes

_UNLIMITED = 10_000  # Columns: more than any table has


def say(console: Console, line: str = "", *, style: str = "", indent: int = 0) -> None:
    """Print one line, broken between words on a terminal, whole in a file. Nothing in it is read as markup."""
    line = visible(line)
    if console.is_terminal:
        say_wrapped(console, line, style=style, indent=indent)
    else:
        console.print(Text(" " * indent + line, style=style), soft_wrap=True)


def say_wrapped(console: Console, words: str, *, style: str = "", indent: int = 0) -> None:
    """Print prose, broken between words to the width of the console, and never in one."""
    for line in visible(words).split("\n"):
        folded = textwrap.wrap(
            line, max(console.width - indent, 20), break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        for part in folded or [""]:
            console.print(Text(" " * indent + part, style=style), soft_wrap=True)


def table(*numbers: str, words: Iterable[str] = ()) -> Table:
    """A table whose first columns are numbers, and those behind them words."""
    grid = _Grid(box=None, padding=(0, 1), pad_edge=False)
    for number in numbers:
        grid.add_column(number, justify="right", no_wrap=True)
    for word in words:
        grid.add_column(word, overflow="fold")
    return grid


def print_table(title: str, filled: Table, console: Console) -> None:
    """Print a table below an empty line and its title, which is folded to the width of no column."""
    say(console)
    say(console, title, style="bold")
    console.print(_UnwrappedTable(filled), crop=False)


def print_rows(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console, *, words: Sequence[str] = ()
) -> None:
    """Print a table of numbers, and behind them columns of words, which are never read as markup."""
    filled = table(*columns, words=words)
    for row in rows:
        filled.add_row(*row[: len(columns)], *(Text(visible(cell)) for cell in row[len(columns) :]))
    print_table(title, filled, console)


def signed(size_bytes: float) -> str:
    """A change: `+1.00 MiB`."""
    return f"+{format_bytes(size_bytes)}" if size_bytes > 0 else format_bytes(size_bytes)


def exact(size_bytes: int) -> str:
    """Bytes with a unit, and in parentheses the exact number."""
    return f"{format_bytes(size_bytes)} ({size_bytes:,} B)"


class _Grid(Table):
    """A table whose columns are as wide as what is shown in them."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row of texts as they are shown."""
        super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)


class _UnwrappedTable:
    """A table without broken words: folded between them on a terminal, and as wide as it is where there is none."""

    def __init__(self, filled: Table) -> None:
        self._filled = filled

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            yield from console.render(self._filled, options.update(width=_UNLIMITED))
            return
        for column in self._filled.columns:
            cells = (column.header, column.footer, *column.cells)
            column.min_width = max([column.min_width or 0, *(_longest_word(str(cell)) for cell in cells)])
        least = Measurement.get(console, options, self._filled).minimum
        yield from console.render(self._filled, options.update(width=max(options.max_width, least)))


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
