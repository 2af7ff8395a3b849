"""The page that files are dropped on; `tracer.sessions.page_server` serves it."""

from __future__ import annotations

from tracer.exporters.page.html import filled


def drop_page() -> str:
    """Return the page as text: its script sends files to where it came from, and nothing else is loaded or sent."""
    return filled(
        "drop.html",
        title="torch-timeline",
        styles=("page", "drop"),
        scripts=("elements", "drop"),
        may_send=True,
    )
