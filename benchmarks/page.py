"""How large memory_timeline.html of a million events is, and how long Chromium takes to open it.

    uv run python benchmarks/page.py

Opening counts from the start of the navigation until the first chart, memory over time, is on the screen: the words
above it are there before, what was in use below it comes after and has a figure of its own. A moment counts from a
click on the timeline until the frame with its categories, tree and rows has been painted. Beside the elapsed time
stands the time that the page's main thread computed, which says more on a machine that has other things to do. Needs
Debian's package chromium; `chromium_pipe.py` says why it is driven without Playwright.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.chromium_pipe import Chromium, chromium
from benchmarks.synthetic_page import synthetic_page
from tracer.exporters.page.html import write_pages

MAX_MB, MAX_SECONDS, MAX_MOMENT_SECONDS = 6.0, 2.0, 0.1
_NUM_CLICKS = 9
_MARKS = "performance.getEntriesByType('mark').map((one) => [one.name, one.startTime])"
# Of a frame's callbacks the second one's comes when the first frame is on the screen.
_CLICKS = """(async () => {
    const frame = document.querySelector(".frame"), plot = document.querySelector(".plot").getBoundingClientRect();
    const took = [];
    for (let i = 0; i < NUM; i++) {
        const clientX = plot.left + plot.width * (0.15 + 0.75 * i / NUM), clientY = plot.top + plot.height / 2;
        const before = document.querySelector(".when").textContent, start = performance.now();
        for (const type of ["pointerdown", "pointerup"])
            frame.dispatchEvent(new PointerEvent(type, { clientX, clientY, button: 0, bubbles: true }));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        if (document.querySelector(".when").textContent !== before) took.push(performance.now() - start);
    }
    window.moments = took;
})()"""


@dataclass(frozen=True, slots=True)
class Opening:
    """One opening of the page, in seconds; `computing` is the main thread's time for all of it.

    `moments` are the times from a click until the moment was shown.
    """

    first_chart: float
    all_charts: float
    computing: float
    moments: list[float]


def open_once(browser: Chromium, path: Path) -> Opening:
    """Open the page in a fresh profile."""
    with browser.new_tab() as tab:
        browser.command("Performance.enable", tab=tab, timeDomain="threadTicks")
        browser.command("Page.navigate", tab=tab, url=path.as_uri())
        browser.wait_for(tab, "document.documentElement.dataset.drawn === 'true'")
        marks = dict(browser.evaluate(tab, _MARKS))
        metrics = browser.command("Performance.getMetrics", tab=tab)["metrics"]
        computing = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
        browser.evaluate(tab, _CLICKS.replace("NUM", str(_NUM_CLICKS)) + ", 0")
        browser.wait_for(tab, "Array.isArray(window.moments)")
        moments = [took / 1000 for took in browser.evaluate(tab, "window.moments")]
    return Opening(marks["first-chart"] / 1000, marks["all-charts"] / 1000, computing, moments)


def main() -> None:
    """Write the page, open it several times in fresh profiles, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path, page = Path(folder) / "memory_timeline.html", synthetic_page(options.events, num_steps=20, num_rows=800)
        start = time.process_time()
        write_pages([page], path)
        written, size = time.process_time() - start, path.stat().st_size / 1e6
        runs = [open_once(browser, path) for _ in range(options.repeats + 1)][1:]
        version = browser.command("Browser.getVersion")["product"]
    print(f"events              {options.events:,}")
    print(f"written in          {written:.1f} s of processor time")
    print(f"size                {size:.2f} MB (target < {MAX_MB:.0f} MB)")
    _print("opens in", [run.first_chart for run in runs], f" (target < {MAX_SECONDS:.0f} s)")
    _print("all charts in", [run.all_charts for run in runs])
    _print("of it computing", [run.computing for run in runs])
    clicks = [took for run in runs for took in run.moments]
    print(
        f"{'a moment in':<19} {1000 * min(clicks):.0f} ms best, {1000 * median(clicks):.0f} ms median of {len(clicks)} "
        f"(target < {1000 * MAX_MOMENT_SECONDS:.0f} ms), {1000 * max(clicks):.0f} ms worst"
    )
    print(f"machine             {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {version}")


def _print(what: str, seconds: list[float], after: str = "") -> None:
    print(f"{what:<19} {min(seconds):.2f} s best, {median(seconds):.2f} s median of {len(seconds)}{after}")


if __name__ == "__main__":
    main()
