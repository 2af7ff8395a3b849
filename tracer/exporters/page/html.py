"""memory_timeline.html: one file that opens from disk, without a network, and shows the peak and what was in it.

The page is `static/page.html` with its parts put in: a style sheet, the data and our script, which draws on
canvases. Every word of a recording is in the data, which is JSON; our script shows it as text and never as HTML. A
content security policy lets this script run, by its hash, and nothing else, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracer.exporters.files import write_atomically
from tracer.exporters.page.data import page_data, page_json
from tracer.exporters.page.model import Page, Selector

_POLICY = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
_STATIC = Path(__file__).parent / "static"
_SCRIPTS = (
    "data.js",
    "words.js",
    "stack.js",
    "moments.js",
    "view.js",
    "plot.js",
    "timeline.js",
    "lanes.js",
    "controls.js",
    "frames.js",
    "tree.js",
    "icicle.js",
    "flames.js",
    "table.js",
    "answer.js",
    "ranks.js",
    "moment.js",
    "space.js",
    "sections.js",
    "findings.js",
    "main.js",
)


def write_pages(pages: Sequence[Page], path: Path, *, shown: int = 0) -> None:
    """Write one page of several devices, with a selector.

    Args:
        pages: One for each device, at least one.
        path: Of the HTML file; one that is there is replaced.
        shown: Position of the device that is shown first.

    Raises:
        OutputError: The file cannot be written.
    """
    write_atomically(path, page_html(pages, shown=shown).encode())


def write_prepared(
    pages: Sequence[dict[str, Any]], path: Path, *, shown: int = 0, selector: Selector = "device"
) -> None:
    """Write pages whose data were made elsewhere, each with its share of the room.

    Args:
        pages: What `page_data` returned, at least one.
        path: Of the HTML file; one that is there is replaced.
        shown: Position of the one that is shown first.
        selector: What they are chosen by.

    Raises:
        OutputError: The file cannot be written.
    """
    write_atomically(path, _html(pages, shown=shown, selector=selector).encode())


def page_html(pages: Sequence[Page], *, shown: int = 0) -> str:
    """The page as text; arguments as of `write_pages`."""
    return _html([page_data(page, num_pages=len(pages)) for page in pages], shown=shown, selector="device")


def _html(pages: Sequence[dict[str, Any]], *, shown: int, selector: Selector) -> str:
    script = _own_script()
    first = pages[shown]
    parts = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; {_POLICY}",
        "title": html.escape(f"{first['title']} - memory on {first['device']}"),
        "style": (_STATIC / "page.css").read_text("utf-8"),
        "data": page_json(pages, shown=shown, selector=selector),
        "script": script,
    }
    text = (_STATIC / "page.html").read_text("utf-8")
    pieces = text.split("%%")
    # `text %% name %% text %% ...`: one pass, so that nothing inside a part is taken for a placeholder.
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _own_script() -> str:
    parts = [(_STATIC / name).read_text("utf-8") for name in _SCRIPTS]
    return _plain_newlines("".join(['"use strict";\n(() => {\n', *parts, "})();\n"]))


def _plain_newlines(script: str) -> str:
    """As an HTML parser hands it to the browser, which takes the hash of that."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
