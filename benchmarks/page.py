"""How large memory_timeline.html of a million events is, and how long Chromium takes to open it.

    uv run --group browser python benchmarks/page.py

Opening counts from the navigation to the second frame after everything is drawn. Beside the elapsed time stands the
time that the browser's main thread computed, which says more on a machine that has other things to do. Needs Debian's
package chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.synthetic_page import synthetic_page
from tracer.exporters.page import write_page

MAX_MB, MAX_SECONDS = 6.0, 2.0
_DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"


def open_once(browser: Any, path: Path) -> tuple[float, float]:
    """Elapsed seconds until the page is drawn, and seconds of computing on the main thread."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, offline=True) as session:
        tab = session.new_page()
        metrics = session.new_cdp_session(tab)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.goto(path.as_uri(), wait_until="commit")
        tab.wait_for_selector("html[data-drawn]", timeout=120_000)
        elapsed_ms = tab.evaluate(_DRAWN)
        values = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
    return elapsed_ms / 1000, values["TaskDuration"]


def main() -> None:
    """Write the page, open it several times in fresh profiles, print the figures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path, page = Path(folder) / "memory_timeline.html", synthetic_page(options.events, num_steps=20, num_rows=800)
        start = time.perf_counter()
        write_page(page, path)
        written, size = time.perf_counter() - start, path.stat().st_size / 1e6
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        runs = [open_once(browser, path) for _ in range(options.repeats + 1)][1:]
        version = browser.version
        browser.close()
    elapsed, computed = zip(*runs, strict=True)
    print(f"events            {options.events:,}")
    print(f"written in        {written:.1f} s")
    print(f"size              {size:.2f} MB (target < {MAX_MB:.0f} MB)")
    print(f"opens in          {min(elapsed):.2f} s best, {median(elapsed):.2f} s median of {len(runs)}", end="")
    print(f" (target < {MAX_SECONDS:.0f} s)")
    print(f"of it computing   {min(computed):.2f} s best, {median(computed):.2f} s median")
    print(f"machine           {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Chromium {version}")


if __name__ == "__main__":
    main()
