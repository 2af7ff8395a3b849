"""Of which device the times are, and where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trace import chrome
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.times.findings import TraceTimes, cause, find_times
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


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (
            [chrome.launch("cudaLaunchKernel", 80, 10, correlation=1),
             chrome.kernel("relu", 91, 9, launched_by=11, correlation=1)],
            "90 % of the time the GPU waits for the host to launch work. 100 % of the waiting is in forward of Net_0; "
            "the largest part, 100 %, is for aten::relu (net.py:5).",
        ),
        (
            [chrome.kernel("relu", 10, 80, launched_by=11)],
            "80 % of the time the GPU computes. 100 % of the GPU's work is in forward of Net_0; the largest part, "
            "100 %, is aten::relu (net.py:5).",
        ),
        (
            [chrome.kernel("ncclDevKernel_AllReduce", 10, 70), chrome.kernel("relu", 10, 20, launched_by=11)],
            "50 % of the time communication runs alone, with nothing computed beside it",
        ),
        ([chrome.kernel("Memcpy HtoD", 10, 90, category="gpu_memcpy")], "90 % of the time copies and fills run alone"),
        (
            [chrome.launch("cudaLaunchKernel", 0, 1, correlation=1), chrome.kernel("relu", 90, 10, correlation=1)],
            "89 % of the time the GPU waits though work is launched",
        ),
    ],
)  # fmt: skip
def test_the_cause_in_one_sentence(tmp_path: Path, events: list[chrome.Event], sentence: str) -> None:
    times = times_of(tmp_path, events)
    assert times is not None and cause(times).startswith(sentence)


@pytest.mark.parametrize("write", [chrome.region, chrome.operator])
def test_loading_data_is_said_beside_the_wait_for_the_host(tmp_path: Path, write: Any) -> None:
    """torch writes a named region around each batch; before 1.12 it was called an operator."""
    loads = write("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 72, 13)
    launched = [chrome.launch("cudaLaunchKernel", 80, 10, correlation=1), chrome.kernel("relu", 91, 9, correlation=1)]
    times = times_of(tmp_path, [loads, *launched])
    assert times is not None
    assert (times.total.loading_ns, times.total.loading_wait_ns) == (13_000, 13_000)
    assert ", and in 14 % of that the host is loading data." in cause(times)


@pytest.mark.parametrize(
    ("others_us", "words"), [(30, "is in forward of Net_0; the largest part"), (80, ". The largest")]
)
def test_a_module_is_named_where_it_has_more_than_half(tmp_path: Path, others_us: int, words: str) -> None:
    work = [chrome.kernel("relu", 10, 60, launched_by=11), chrome.kernel("of nobody", 100, others_us)]
    times = times_of(tmp_path, work)
    assert times is not None and words in cause(times)
