"""The HTML of an answer in a notebook: sentences, bar, tables of what was in use, and the page.

A kernel prints stderr on red ground, as if something had failed, so that the answer is displayed there and not printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path

from tracer.answers.answer import Answer
from tracer.answers.tables import Table, cell_text
from tracer.blocks.kinds import Kind, words_of
from tracer.capture.sources.source_files import running_shell
from tracer.units import format_bytes

NUM_ROWS = 10
_MAX_PAGE_BYTES = 8 << 20  # A larger page is not put into the notebook, which would be saved with it
_OTHER = "#9aa1aa"


def notebook_html(
    answer: Answer, by_category: Mapping[str, int], *, notes: Sequence[str] = (), page: Path | None = None
) -> str:
    """Return HTML that brings no style sheet or script of its own; every text of the recording is escaped.

    Args:
        by_category: Bytes of the peak by the name of the kind, for the bar.
    """
    first, *others = answer.sentences
    parts = (
        f"<p><strong>{escape(first)}</strong></p>",
        *(f"<p>{escape(sentence)}</p>" for sentence in (*others, *notes)),
        _bar(by_category) if by_category else "",
        *map(_table, answer.in_use),
        _frame(page) if page is not None else "",
    )
    return "".join(parts)


def display_in_notebook(thing: object) -> bool:
    """Display something below the cell that runs; False where there is no notebook."""
    if getattr(running_shell(), "kernel", None) is None:
        return False
    import_module("IPython.display").display(thing)
    return True


class Paragraph:
    """Some lines for a notebook."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._text).replace(chr(10), '<br>')}</p>"

    def __repr__(self) -> str:
        return self._text


def _bar(sizes: Mapping[str, int]) -> str:
    """A bar as wide as the cell, with a part for each kind."""
    peak_bytes = sum(sizes.values())
    colors = {kind.name: kind.colors[0] for kind in Kind}
    parts = (
        f'<span style="width:{100 * size / peak_bytes:.2f}%;background:{colors.get(name, _OTHER)}"'
        f' title="{escape(f"{words_of(name)} {format_bytes(size)}")}"></span>'
        for name, size in sizes.items()
    )
    return f'<div style="display:flex;height:14px;max-width:60em">{"".join(parts)}</div>'


def _frame(page: Path) -> str:
    """Return the page in a frame that the notebook stores; scripts of the page cannot reach the notebook."""
    try:
        size = page.stat().st_size
        text = page.read_text(encoding="utf-8") if size <= _MAX_PAGE_BYTES else None
    except OSError:
        return ""
    if text is None:
        return f"<p>The page, {format_bytes(size)}: {escape(str(page))}</p>"
    frame = (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:640px;border:0" srcdoc="{escape(text)}"></iframe>'
    )
    return f"<details open><summary>Memory over time</summary>{frame}</details>"


def _table(table: Table) -> str:
    def line(tag: str, texts: Iterable[str]) -> str:
        cells = (escape(text).replace("\n", "<br>") for text in texts)
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    rows = [*table.first_rows(NUM_ROWS), *([table.footer] if table.footer else [])]
    heads = line("th", (column.name for column in table.columns))
    lines = "".join(line("td", map(cell_text, row, table.columns)) for row in rows)
    return f"<table><caption>{escape(table.title)}</caption><thead>{heads}</thead><tbody>{lines}</tbody></table>"
