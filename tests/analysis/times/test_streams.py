"""Streams by name: CUDA's default stream, and those on which one sort of work alone runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.times.test_step_times import work_of
from tests.trace import chrome
from tracer.analysis.times.findings import MOST_LANES, SORTS, StreamTimes, stream_times, work_lanes
from tracer.trace.device_work import DeviceWork
from tracer.trace.load import load_trace


def streams_of(tmp_path: Path, call: str, kernels: list[chrome.Event]) -> tuple[StreamTimes, ...]:
    events = [*chrome.training_step(), chrome.launch(call, 12, 1, correlation=1), *kernels]
    work = load_trace(chrome.write(tmp_path / "trace.json", events)).work
    return stream_times(work.take(work.device == 0))


def test_streams_by_hand(tmp_path: Path) -> None:
    kernels = [
        chrome.kernel("relu", 20, 6, correlation=1),
        chrome.kernel("Memcpy", 26, 1, category="gpu_memcpy"),
        chrome.kernel("ncclDevKernel_AllReduce", 20, 9, stream=20),
        chrome.kernel("Memcpy", 30, 2, stream=20, category="gpu_memcpy"),
        chrome.kernel("Memcpy", 20, 3, stream=21, category="gpu_memcpy"),
        chrome.kernel("relu", 20, 4, stream=22),
        chrome.kernel("ncclDevKernel_AllReduce", 26, 5, stream=22),
    ]
    found = streams_of(tmp_path, "cudaLaunchKernel", kernels)
    assert found == (
        StreamTimes(7, "default", 6000, 0, 1000, 2),
        StreamTimes(20, "collectives", 0, 9000, 2000, 2),
        StreamTimes(21, "copies", 0, 0, 3000, 1),
        StreamTimes(22, "", 4000, 5000, 0, 2),
    )
    assert [stream.words for stream in found][1:3] == ["stream 20 (collectives)", "stream 21 (copies)"]


@pytest.mark.parametrize(("call", "name"), [("cudaLaunchKernel", "default"), ("hipLaunchKernel", "")])
def test_the_default_stream_has_its_number_under_cuda_alone(tmp_path: Path, call: str, name: str) -> None:
    (found,) = streams_of(tmp_path, call, [chrome.kernel("relu", 20, 6, correlation=1)])
    assert (found.stream, found.name) == (7, name)


def work_on(streams: list[int], rows: list[tuple[int, int, str]]) -> DeviceWork:
    """Start, end and what it is; each row has a name of its own."""
    work = work_of([(*row, -1) for row in rows])
    names = tuple(f"kernel{number}" for number in range(len(rows)))
    return replace(work, stream=np.array(streams), name=np.arange(len(rows)), names=names)


def test_what_lies_close_together_is_one_span_named_by_its_longest() -> None:
    # Two groups of three, 1 apart; the groups are 1000 apart.
    rows = [(at + 10 * k, at + 10 * k + 9 - k % 2, "kernel") for at in (0, 1000) for k in range(3)]
    rows[4] = (1010, 1020, "kernel")
    (lane,) = work_lanes(work_on([0] * 6, rows), most_spans=2)
    assert (lane.start_ns.tolist(), lane.end_ns.tolist()) == ([0, 1000], [29, 1029])
    assert (lane.count.tolist(), lane.busy_ns.tolist()) == ([3, 3], [26, 28])
    assert [lane.names[number] for number in lane.name.tolist()] == ["kernel2", "kernel4"]


def test_what_differs_in_sort_stays_apart() -> None:
    rows = [(0, 9, "kernel"), (10, 19, "copy"), (20, 29, "kernel"), (900, 901, "kernel")]
    (lane,) = work_lanes(work_on([0] * 4, rows), most_spans=3)
    assert (lane.sort.tolist(), lane.count.tolist()) == ([0, 2, 0], [1, 1, 2])


def test_what_changes_too_often_is_gathered_by_stretches_of_time() -> None:
    rows = [(10 * number, 10 * number + 9, "kernel" if number % 2 else "nccl") for number in range(100)]
    (lane,) = work_lanes(work_on([0] * 100, rows), most_spans=12)
    assert (lane.sort.tolist(), lane.count.tolist()) == ([1, 0, 0, 1] * 2, [13, 12] * 4)


def test_of_many_streams_those_that_worked_most() -> None:
    rows = [(100 * number, 100 * number + number + 1, "kernel") for number in range(12)]
    lanes = work_lanes(work_on(list(range(12)), rows))
    assert [lane.stream for lane in lanes] == list(range(12 - MOST_LANES, 12))


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 50), st.sampled_from(["kernel", "nccl", "copy"])), min_size=1
    ),
    st.integers(2, 20),
)
def test_nothing_is_lost_or_made(rows: list[tuple[int, int, str]], most: int) -> None:
    work = work_on([0] * len(rows), sorted((start, start + long, sort) for start, long, sort in rows))
    (lane,) = work_lanes(work, most_spans=most)
    assert lane.count.sum() == len(rows)
    assert lane.busy_ns.sum() == work.duration_ns.sum()
    assert (lane.start_ns[0], lane.end_ns.max()) == (work.start_ns[0], work.end_ns.max())
    assert (np.diff(lane.start_ns) >= 0).all() and (lane.busy_ns >= 0).all()
    for sort, name in enumerate(SORTS):
        wanted = {"computes": ~(work.is_copy | work.is_communication), "collectives": work.is_communication}
        mine = wanted.get(name, work.is_copy)
        assert lane.busy_ns[lane.sort == sort].sum() == work.duration_ns[mine].sum()


@pytest.mark.parametrize("most", [100, 1000])
def test_a_long_trace_is_short_enough(most: int) -> None:
    random = np.random.default_rng(0)
    starts = np.cumsum(random.integers(10, 5000, 20_000))
    work = work_on([0] * 20_000, [(start, start + 5, "kernel") for start in starts.tolist()])
    (lane,) = work_lanes(work, most_spans=most)
    assert len(lane.start_ns) == most
