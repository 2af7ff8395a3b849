"""The pictures of README.md: `uv run --group browser python docs/pictures.py` makes them anew.

The page needs Chromium (Debian's package `chromium`) and playwright.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
RUN = (
    "main.py",
    "--model",
    "models.gpt:build",
    "--batch-size",
    "8",
    "--device",
    "cpu",
    "--no-cuda-timing",
)
WIDTH = 100
NUM_LINES = 24
PAGE = {"width": 1180, "height": 860}


def main() -> None:
    """Profile a small GPT on the CPU, and take a picture of what it prints and of its page."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "COLUMNS": str(WIDTH), "OMP_NUM_THREADS": "2"}
        command = [sys.executable, *RUN, "--save-dir", folder]
        printed = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
        write_screen(printed.strip().splitlines()[:NUM_LINES], PICTURES / "screen.svg")
        write_page(Path(folder) / "memory_timeline.html", PICTURES / "page.png")


def write_screen(lines: list[str], path: Path) -> None:
    """A terminal with some lines in it, headings bold."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), highlight=False)  # noqa: SIM115, PTH123
    for number, line in enumerate(lines):
        is_heading = number == 0 or (not lines[number - 1] and line)
        console.print(Text(line, style="bold" if is_heading else ""))
    svg = console.export_svg(title="torch-timeline --model models.gpt:build")
    path.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")  # nothing from elsewhere


def write_page(page: Path, path: Path) -> None:
    """The page as a browser shows it at first."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=PAGE)  # type: ignore[arg-type, unused-ignore]
        tab.goto(page.as_uri())
        tab.wait_for_timeout(1000)
        tab.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main()
