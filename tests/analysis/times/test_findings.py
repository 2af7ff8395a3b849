"""Of which device the times are, and where there are none."""

from __future__ import annotations

from pathlib import Path

from tests.trace import chrome
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.times.findings import TraceTimes, find_times
from tracer.trace.load import load_trace


def times_of(path: Path, events: list[chrome.Event]) -> TraceTimes | None:
    trace = load_trace(chrome.write(path / "trace.json", [*chrome.training_step(), *events]))
    return find_times(trace.recording, attribute(trace.recording), trace.work)


def test_of_several_devices_it_is_the_one_that_worked_most(tmp_path: Path) -> None:
    other = chrome.kernel("relu", 20, 30)
    other["args"]["device"] = 3
    times = times_of(tmp_path, [chrome.kernel("relu", 10, 5), other])
    assert times is not None and (times.device, times.other_devices) == (3, (0,))


def test_without_a_device_there_are_no_times(tmp_path: Path) -> None:
    assert times_of(tmp_path, []) is None
