"""Size of memory_timeline.html of a million events, and the time that Chromium takes to open it.

    uv run python benchmarks/page.py

Opening counts from the start of the navigation until the first chart, memory over time, is on the screen: the words
above it are there before, what was in use below it comes after and has a figure of its own. A gesture counts from its
event until the frame that shows it has been painted: of a click on the timeline with categories, tree and rows. Two
frames of a screen with 60 a second are 33 ms, so that nothing is faster. Beside the elapsed time stands the time that
the page's main thread computed, which says more on a machine that has other things to do. Needs Debian's package
chromium; `chromium_pipe.py` says why it is driven without Playwright.
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

MAX_MB, MAX_SECONDS, MAX_MEDIAN_SECONDS, MAX_WORST_SECONDS = 5.0, 0.5, 0.05, 0.1
_NUM_TIMES = 9
_MARKS = "performance.getEntriesByType('mark').map((one) => [one.name, one.startTime])"
# Each gesture several times over, every time elsewhere. Of a frame's callbacks the second one's comes when the first
# frame is on the screen.
_GESTURES = """(async () => {
    const frame = document.querySelector(".frame"), plot = document.querySelector(".plot").getBoundingClientRect();
    const find = document.querySelector(".find"), words = ["conv", "attn", "0", "forward", "1", "add", "mm", "2", ""];
    const button = (name) => [...document.querySelectorAll("button")].find((one) => one.textContent === name);
    const at = (i) => ({
        clientX: plot.left + plot.width * (0.15 + 0.75 * i / NUM), clientY: plot.top + plot.height / 2,
        button: 0, bubbles: true, cancelable: true,
    });
    const act = {
        point: (i) => ["pointerdown", "pointerup"].forEach(
            (type) => frame.dispatchEvent(new PointerEvent(type, at(i)))),
        over: (i) => frame.dispatchEvent(new PointerEvent("pointermove", at(i))),
        wheel: (i) => frame.dispatchEvent(
            new WheelEvent("wheel", { ...at(i), ctrlKey: true, deltaY: i < NUM / 2 ? -1 : 1 })),
        key: (key) => frame.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })),
        search: (text) => {
            find.value = text;
            find.dispatchEvent(new Event("input", { bubbles: true }));
        },
    };
    const gestures = {
        "a moment": act.point,
        "pointing": act.over,
        "zooming": act.wheel,
        "moving": (i) => act.key(i % 2 ? "a" : "d"),
        "searching": (i) => act.search(words[i % words.length]),
        "a moment, compared": (i) => i ? act.point(i) : act.key("c"),
        "each block": () => button("Each block").click(),
        "each block, zooming": act.wheel,
    };
    const took = {}, painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    for (const [name, gesture] of Object.entries(gestures)) {
        took[name] = [];
        for (let i = 0; i < NUM; i++) {
            const start = performance.now();
            gesture(i);
            await painted();
            took[name].push(performance.now() - start);
        }
        act.key("Escape");
        act.key("0");
        await painted();
    }
    window.gestures = took;
})()"""


@dataclass(frozen=True, slots=True)
class Opening:
    """One opening of the page, in seconds; `computing` is the main thread's time for all of it.

    `gestures` are the times from each gesture until it was shown, by its name.
    """

    first_chart: float
    all_charts: float
    computing: float
    gestures: dict[str, list[float]]


def open_once(browser: Chromium, path: Path) -> Opening:
    """Open the page in a fresh profile."""
    with browser.new_tab() as tab:
        browser.command("Performance.enable", tab=tab, timeDomain="threadTicks")
        browser.command("Page.navigate", tab=tab, url=path.as_uri())
        browser.wait_for(tab, "document.documentElement.dataset.drawn === 'true'")
        marks = dict(browser.evaluate(tab, _MARKS))
        metrics = browser.command("Performance.getMetrics", tab=tab)["metrics"]
        computing = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
        browser.evaluate(tab, _GESTURES.replace("NUM", str(_NUM_TIMES)) + ", 0")
        browser.wait_for(tab, "typeof window.gestures === 'object'")
        found = browser.evaluate(tab, "window.gestures").items()
    gestures = {name: [took / 1000 for took in times] for name, times in found}
    return Opening(marks["first-chart"] / 1000, marks["all-charts"] / 1000, computing, gestures)


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
    _print("opens in", [run.first_chart for run in runs], f" (target < {MAX_SECONDS:.1f} s)")
    _print("all charts in", [run.all_charts for run in runs])
    _print("of it computing", [run.computing for run in runs])
    print(f"until shown (target < {1e3 * MAX_MEDIAN_SECONDS:.0f} ms median, {1e3 * MAX_WORST_SECONDS:.0f} ms worst):")
    for name in runs[0].gestures:
        times = [1000 * took for run in runs for took in run.gestures[name]]
        worst = f"{median(times):4.0f} median of {len(times)}, {max(times):4.0f} worst"
        print(f"  {name:<20} {min(times):4.0f} ms best, {worst}")
    print(f"machine             {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {version}")


def _print(what: str, seconds: list[float], after: str = "") -> None:
    print(f"{what:<19} {min(seconds):.2f} s best, {median(seconds):.2f} s median of {len(seconds)}{after}")


if __name__ == "__main__":
    main()
