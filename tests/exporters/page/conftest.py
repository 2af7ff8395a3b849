"""A real browser without a network, and pages opened in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.page.tab import TIMEOUT_MS
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import Page

CHROMIUM = shutil.which("chromium")
DRAW_ALL = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { content-visibility: visible !important }");
  document.adoptedStyleSheets.push(sheet);
}"""
"""What is far below the window has no text for `inner_text` in some runs: the page lets the browser leave it out."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright (group `browser`)")
    if CHROMIUM is None:
        pytest.skip("needs Debian's package chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless=new"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[..., Any]:
    """`with opened(page) as tab`: the page, drawn. Fails at its end on any console message, dialog or request."""

    @contextmanager
    def open_page(page: Page | list[Page], **context: Any) -> Iterator[Any]:
        path = tmp_path / "memory_timeline.html"
        write_pages([page] if isinstance(page, Page) else page, path)
        with browser.new_context(viewport={"width": 1280, "height": 900}, offline=True, **context) as session:
            tab = session.new_page()
            tab.set_default_timeout(TIMEOUT_MS)
            seen: list[str] = []
            tab.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
            tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
            tab.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
            tab.on("request", lambda request: seen.append(request.url))
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-drawn]")
            tab.evaluate(DRAW_ALL)
            yield tab
            assert [one for one in seen if one != path.as_uri() and not one.startswith(("data:", "blob:"))] == []

    return open_page
