"""Times of a trace's kernels, on the screen and on the page."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.times.test_step_times import times_of
from tests.trace import chrome
from tracer.exporters.screen.terminal import text_of
from tracer.exporters.trace_times import print_times, time_section


def test_a_kernels_name_is_whole_on_the_page_and_has_room_on_the_screen(tmp_path: Path) -> None:
    name = "gemm" * 60
    times = times_of(tmp_path, [chrome.kernel(name, 14, 6, launched_by=11)])
    assert time_section(times).tables[-1].rows[0][3] == name
    said = text_of(lambda console: print_times(times, console, top=3))
    (line,) = (line for line in said.splitlines() if "gemm" in line)
    assert f"{name[:57]}..., aten::relu  net.py:5, Net_0" in line
