"""A real browser without a network, and pages opened in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
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


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright (group `browser`)")
    if CHROMIUM is None:
        pytest.skip("needs Debian's package chromium")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--headless=new", "--disable-gpu"]
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def new_tab(browser: Any) -> Callable[[tuple[str, ...]], Any]:
    """`new_tab(permissions)`: a tab that all tests share who ask for these; one of its own costs twice the time."""

    @cache
    def tab_with(permissions: tuple[str, ...]) -> Any:
        tab = browser.new_context(offline=True, permissions=list(permissions)).new_page()
        tab.set_default_timeout(TIMEOUT_MS)
        return tab

    return tab_with


@pytest.fixture
def opened(new_tab: Callable[[tuple[str, ...]], Any], tmp_path: Path) -> Callable[..., Any]:
    """`with opened(page) as tab`: the page, drawn. Fails at its end on any console message, dialog or request."""

    @contextmanager
    def open_page(
        page: Page | list[Page], *, color_scheme: str = "light", permissions: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        path = tmp_path / "memory_timeline.html"
        write_pages([page] if isinstance(page, Page) else page, path)
        tab = new_tab(permissions)
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.emulate_media(media="null", color_scheme=color_scheme)
        seen: list[str] = []
        listeners = {
            "console": lambda message: seen.append(f"{message.type}: {message.text}"),
            "pageerror": lambda error: seen.append(f"error: {error}"),
            "dialog": lambda dialog: (seen.append("dialog"), dialog.dismiss()),
            "request": lambda request: seen.append(request.url),
        }
        for event, listener in listeners.items():
            tab.on(event, listener)
        try:
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-drawn]")
            tab.evaluate(DRAW_ALL)
            yield tab
            tab.evaluate("localStorage.clear()")
            tab.goto("about:blank")
        finally:
            for event, listener in listeners.items():
                tab.remove_listener(event, listener)
        expected = {path.as_uri(), "about:blank"}
        assert [one for one in seen if one not in expected and not one.startswith(("data:", "blob:"))] == []

    return open_page
