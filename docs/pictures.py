"""The picture of README.md: `uv run --group browser python docs/pictures.py` makes it anew, from README's own example.

It needs Chromium (Debian's package `chromium`) and playwright. `pictures/page.txt` has the words of the page in the
picture, with which a slow test compares those of a page made today.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/page.png"
WORDS = PICTURE.with_suffix(".txt")
RUN = ("run", "--on", "rtx-4090")
SCRIPT = "examples/gpt.py"
SIZE = {"width": 1180, "height": 900}


def main() -> None:
    """Run the example, and take the picture of its page."""
    with tempfile.TemporaryDirectory() as folder:
        page = make_page(Path(folder))
        with browsing(page) as tab:
            tab.screenshot(path=PICTURE)
        WORDS.write_text("\n".join(words_of(page)) + "\n", encoding="utf-8")


def make_page(folder: Path) -> Path:
    """Run the example on the null GPU; return the page that it leaves in a folder."""
    command = [sys.executable, "main.py", *RUN, "--save-dir", str(folder), SCRIPT]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, check=False)
    return folder / "memory_timeline.html"


def words_of(page: Path) -> list[str]:
    """Return the lines of a page down to its first table, without figures."""
    with browsing(page) as tab:
        text: str = tab.inner_text("body")
    shown, _, _ = text.partition("What was in use\n\n")
    return [words for line in shown.splitlines() if (words := " ".join(re.findall(r"[^\W\d_][\w.:']+", line)))]


@contextmanager
def browsing(page: Path) -> Iterator[Any]:
    """Open a page in a browser, as it is at first."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)  # type: ignore[arg-type, unused-ignore]
        tab.goto(page.as_uri())
        tab.wait_for_timeout(1000)
        yield tab
        browser.close()


if __name__ == "__main__":
    main()
