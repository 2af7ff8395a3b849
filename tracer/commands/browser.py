"""`--open`: the page that a command wrote, shown in the browser."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from tracer.command_line import role
from tracer.commands.options import option
from tracer.commands.usage import OUTPUTS
from tracer.exporters.screen.terminal import say
from tracer.null_gpu.job.place import RankPlace
from tracer.results.files import PAGE

Html = Annotated[Path | None, option("Also write an HTML page.", OUTPUTS, metavar="<path>")]
Open = Annotated[bool, option("Show the page in the browser.", OUTPUTS, "--open")]


def pages_of(folder: Path | None) -> Sequence[Path]:
    """Return the pages that a run may write to a folder, the one to show first; of a job that of its first rank."""
    return () if folder is None else (folder / PAGE.file_name, folder / "rank0" / PAGE.file_name)


def page_to_open(html: Path | None, *, is_opened: bool) -> Path | None:
    """Return where to write a page: as `--html` says, or with `--open` alone to a new folder of this user's."""
    if html is not None or not is_opened:
        return html
    return Path(tempfile.mkdtemp(prefix="torch-timeline-")) / "page.html"


@contextmanager
def opened(pages: Sequence[Path], *, is_wanted: bool) -> Iterator[None]:
    """Show the first of these pages that was written in the block; no-op in a rank or a trial of a command's."""
    if not is_wanted or RankPlace.here() is not None or role("trial") is not None:
        yield
        return
    before = list(map(_written_at, pages))
    try:
        yield
    finally:
        written = [page for page, then in zip(pages, before, strict=True) if _written_at(page) not in (None, then)]
        if written:
            show(written[0].resolve().as_uri())


def show(address: str) -> None:
    """Show an address in the browser, or say where there is none that it is to be opened."""
    with _without_null_gpu():
        if not (_has_display() and webbrowser.open(address)):
            say(f"No browser can be started here. Open {address}")


def _has_display() -> bool:
    """Whether a browser has a window; one in text would take the terminal, and runs no scripts."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")))


@contextmanager
def _without_null_gpu() -> Iterator[None]:
    """Start no browser with the null GPU's libraries."""
    preloaded = os.environ.pop("LD_PRELOAD", None)
    try:
        yield
    finally:
        if preloaded is not None:
            os.environ["LD_PRELOAD"] = preloaded


def _written_at(page: Path) -> int | None:
    try:
        return page.stat().st_mtime_ns
    except OSError:
        return None
