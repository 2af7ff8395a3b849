"""A page without times: the same picture, by the position of each event."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from tests.exporters.page.page_samples import empty_page, small_page
from tracer.exporters.page.data import page_data
from tracer.exporters.page.model import without_times


def test_everything_stands_at_its_position() -> None:
    page = without_times(small_page())
    assert page.axis == "entry" and page.times.tolist() == [0, 1, 2, 3, 4, 5]
    assert [mark.time for mark in page.marks] == [3, 2]
    assert [(band.name, band.start, band.end) for band in page.bands] == [
        ("ProfilerStep#4", 0, 5),
        ("forward", 0, 3),
        ("backward", 3, 5),
    ]
    assert page.timings == () and page.clock == "" and page.slow_modules == ()


def test_two_runs_of_another_speed_are_the_same_page() -> None:
    fast = small_page()
    origin = int(fast.times[0])
    slow = replace(
        fast,
        times=origin + 3 * (fast.times - origin),
        marks=tuple(replace(mark, time=origin + 3 * (mark.time - origin)) for mark in fast.marks),
        bands=tuple(
            replace(band, start=origin + 3 * (band.start - origin), end=origin + 3 * (band.end - origin))
            for band in fast.bands
        ),
    )
    one, other = (json.dumps(page_data(without_times(page))) for page in (fast, slow))
    assert one == other and str(origin)[:6] not in one


def test_of_events_that_tie_the_row_decides_where_it_is_known() -> None:
    page = small_page()
    tied = replace(page, times=np.zeros(6, np.int64), marks=tuple(replace(mark, time=0, row=4) for mark in page.marks))
    assert [mark.time for mark in without_times(tied).marks] == [4, 4]


def test_nothing_is_a_page_too() -> None:
    assert without_times(empty_page()).axis == "entry"
