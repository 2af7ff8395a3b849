"""The page that files are dropped on; `tracer.sessions.page_server` serves it."""

from __future__ import annotations

from tracer.exporters.page.html import filled, static_text


def drop_page() -> str:
    """Return the page as text: its script sends files to where it came from, and nothing else is loaded or sent."""
    return filled(
        "drop.html",
        title="torch-timeline",
        style=static_text("page.css") + static_text("drop.css"),
        script=static_text("drop.js"),
        may_send=True,
    )
