"""memory_timeline.html: one file that opens from disk, without a network, and shows the peak and what was in it.

The page is `page_static/page.html` with its parts put in: a style sheet, the data, plotly and our script. Every word of
a recording is in the data, which is JSON; our script shows it as text and never as HTML. Plotly is packed, which makes
the file less than half as large, and our script unpacks it. A content security policy lets these two scripts run, by
their hashes, and nothing else, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.util
import json
import re
import zlib
from pathlib import Path

from tracer.errors import MissingPackageError
from tracer.exporters.files import write_atomically
from tracer.exporters.page_data import page_json
from tracer.exporters.page_model import (
    Band,
    Curve,
    FileCell,
    KindBytes,
    Mark,
    Page,
    PageLostTrack,
    PagePeak,
    Section,
    Series,
    SlowModule,
    StepTiming,
    Table,
)

__all__ = [
    "Band",
    "Curve",
    "FileCell",
    "KindBytes",
    "Mark",
    "Page",
    "PageLostTrack",
    "PagePeak",
    "Section",
    "Series",
    "SlowModule",
    "StepTiming",
    "Table",
    "check_plotly",
    "page_html",
    "write_page",
]

_POLICY = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
_WRAPPER = ('} (typeof self !== "undefined" ? self : this, () => {\n', "return Plotly;\n}));")
_STATIC = Path(__file__).parent / "page_static"
_SCRIPTS = (
    "data.js",
    "words.js",
    "stack.js",
    "timeline.js",
    "controls.js",
    "treemap.js",
    "table.js",
    "sections.js",
    "findings.js",
    "main.js",
)


def write_page(page: Page, path: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        page: What to show.
        path: Of the HTML file; one that is there is replaced.

    Raises:
        MissingPackageError: Plotly is not installed.
        OutputError: The file cannot be written.
    """
    write_atomically(path, page_html(page).encode())


def page_html(page: Page) -> str:
    """The page as text.

    Raises:
        MissingPackageError: Plotly is not installed.
    """
    plotly, script = _plotly_script(), _own_script()
    parts = {
        "policy": f"default-src 'none'; script-src {_hash(script)} {_hash(plotly)}; {_POLICY}",
        "title": html.escape(f"{page.title} - memory on {page.device}"),
        "style": (_STATIC / "page.css").read_text("utf-8"),
        "data": page_json(page),
        "plotly": base64.b64encode(zlib.compress(plotly.encode())).decode(),
        "script": script,
    }
    text = (_STATIC / "page.html").read_text("utf-8")
    pieces = text.split("%%")
    # `text %% name %% text %% ...`: one pass, so that nothing inside a part is taken for a placeholder.
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def check_plotly() -> None:
    """Find out before long work whether a page can be made.

    Raises:
        MissingPackageError: Plotly is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise _no_plotly()


def _no_plotly() -> MissingPackageError:
    return MissingPackageError(
        "The page needs the package plotly, which is not installed.",
        hint="Install it with `pip install plotly`, or leave the page out.",
    )


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError as error:
        raise _no_plotly() from error
    return _in_ascii(_unwrapped(get_plotlyjs()))


def _unwrapped(script: str) -> str:
    """Plotly's script without the function around all of it, where it has the one known here.

    A browser reads a function twice, once to find its end and once to run it, and this one has 4.8 MB: without it the
    page opens a third of a second sooner.

    Source:
        First and last lines of plotly.min.js 4.1.1, in the Python package plotly 7.1.
    """
    head, opening, body = script.partition(_WRAPPER[0])
    body, closing, rest = body.rpartition(_WRAPPER[1])
    licence, end_of_comment, _ = head.partition("*/")
    return licence + end_of_comment + "\n" + body if opening and closing and not rest.strip() else script


def _in_ascii(script: str) -> str:
    """With its few letters beyond ASCII, all in strings and patterns, written as escapes.

    One letter beyond Latin-1 makes a browser keep and read all 4.8 MB at two bytes a letter.
    """
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], script)


def _own_script() -> str:
    parts = [(_STATIC / name).read_text("utf-8") for name in _SCRIPTS]
    return _plain_newlines("".join(['"use strict";\n(() => {\n', *parts, "})();\n"]))


def _plain_newlines(script: str) -> str:
    """As an HTML parser hands it to the browser, which takes the hash of that."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
