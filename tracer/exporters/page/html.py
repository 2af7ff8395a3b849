"""memory_timeline.html: one file that opens from disk, without a network, and shows the peak and what was in it.

The page is `static/head.html` and `static/page.html` with their parts put in: a style sheet, the data and our script,
which draws on canvases. Every word of a recording is in the data, which is JSON; our script shows it as text and never
as HTML. A content security policy lets this script run, by its hash, and nothing else, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracer.exporters.files import write_atomically
from tracer.exporters.page.data import Names, folders_up, page_data, page_json, relative_paths
from tracer.exporters.page.model import Page
from tracer.working_folder import working_folder

_POLICY = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
_STATIC = Path(__file__).parent / "static"
_DATA_BEGINS = '<script type="application/json" id="data">'
# Names of the script's parts, in the order in which they need one another.
_SCRIPTS = (
    "data", "elements", "words", "editor", "stack", "moments", "view", "plot", "timeline", "lanes",
    "kept_block", "search", "picture", "controls", "tree", "icicle", "table",
    "answer", "moment", "allocator", "space", "source", "sections", "main",
)  # fmt: skip


def write_pages(
    pages: Sequence[Page],
    path: Path,
    *,
    shown: int = 0,
    names: Names = lambda path: None,
    root: Path | None = None,
) -> None:
    """Write one page of several devices, with a selector."""
    data = [page_data(page, num_pages=len(pages)) for page in pages]
    write_prepared(data, path, shown=shown, names=names, root=root)


def write_prepared(
    pages: Sequence[dict[str, Any]],
    path: Path,
    *,
    shown: int = 0,
    names: Names = lambda path: None,
    root: Path | None = None,
) -> None:
    """Write pages from the data that `page_data` returned for each."""
    up, named = folders_up(path, root or working_folder()), relative_paths(pages, names)
    data = {"shown": shown, "up": up, "pages": named}
    write_atomically(path, html_of_data(data).encode())


def html_of_data(data: Mapping[str, Any]) -> str:
    """Return the page as text, whose policy lets its script run and nothing be loaded.

    Args:
        data: JSON values: `pages`, what `page_data` returned for each; `shown`, which of them comes first; and `up`,
            how many folders above the page's own one the sources are, or None.
    """
    first = data["pages"][data["shown"]]
    title = f"{first['title']} - memory on {first['device']}"
    script = "".join(['"use strict";\n(() => {\n', *(_static_text(f"{name}.js") for name in _SCRIPTS), "})();\n"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; {_POLICY}",
        "title": html.escape(title),
        "style": _static_text("page.css"),
        "data": page_json(data),
        "script": script,
    }
    pieces = (_static_text("head.html") + _static_text("page.html")).split("%%")
    # `text %% name %% text %% ...`: one pass, so that nothing inside a part is taken for a placeholder.
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def data_of_html(text: str) -> dict[str, Any]:
    """Return the data that `html_of_data` put into a page.

    Raises:
        ValueError: It is no such page.
    """
    before, marker, behind = text.partition(_DATA_BEGINS)
    if not marker or "<title>" not in before:
        raise ValueError("no data in it")
    data = json.loads(behind.partition("</script>")[0])
    if not isinstance(data, dict) or not isinstance(data.get("pages"), list) or not data["pages"]:
        raise ValueError("no pages in it")
    return data


def _static_text(name: str) -> str:
    """Return a file of `static/` with plain newlines, as an HTML parser gives a script to the browser to be hashed."""
    return (_STATIC / name).read_text("utf-8")
