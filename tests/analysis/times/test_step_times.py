"""Where a device's time went: by hand, against a loop over every nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trace import chrome
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.times.findings import TraceTimes, find_times
from tracer.analysis.times.step_times import step_times
from tracer.trace.device_work import DeviceWork
from tracer.trace.load import load_trace


def work_of(rows: list[tuple[int, int, str, int]]) -> DeviceWork:
    """Start, end, what it is, and when it was launched."""
    rows = sorted(rows)
    start, end, launched = (np.array([row[at] for row in rows], np.int64) for at in (0, 1, 3))
    none = np.full(len(rows), -1, np.int64)
    return DeviceWork(
        start_ns=start,
        end_ns=end,
        is_copy=np.array([row[2] == "copy" for row in rows], bool),
        is_communication=np.array([row[2] == "nccl" for row in rows], bool),
        device=none,
        stream=none,
        name=none,
        launched_ns=launched,
        operator_ns=none,
        thread=none,
        group=none,
        names=(),
    )


def test_a_step_divided_by_hand() -> None:
    # 0    10        20   25      35    40   50      60        80
    # idle compute........copy    idle  nccl.....    idle       |
    #                                   compute                 step ends
    work = work_of(
        [
            (10, 20, "kernel", 6),  # nothing ran from 0, launched at 6: 6 waiting for the host, 4 for the launch
            (20, 25, "copy", 7),
            (35, 50, "nccl", 30),  # idle from 25, launched at 30: 5 and 5
            (40, 45, "kernel", 31),
        ]
    )
    (step,), waits = step_times(work, [("ProfilerStep#0", 0, 80)], (0, 80))
    assert (step.wall_ns, step.compute_ns, step.copies_ns) == (80, 15, 5)
    assert (step.communication_ns, step.overlapped_ns) == (10, 5)
    # Behind the last kernel nothing was launched any more: 30.
    assert (step.host_wait_ns, step.launched_wait_ns) == (6 + 5 + 30, 4 + 5)
    assert waits.work.tolist() == [0, 2, -1]


def test_loading_data_is_a_part_of_the_step_and_of_what_the_device_waits() -> None:
    # The device waits for the host from 0 to 6 and from 20 to 30; the host loads from 2 to 8 and from 25 to 40.
    work = work_of([(10, 20, "kernel", 6), (40, 50, "kernel", 30)])
    loading = np.array([2, 25]), np.array([8, 40])
    steps, _ = step_times(work, [("a", 0, 28), ("b", 28, 50)], (0, 50), loading=loading)
    assert [(step.loading_ns, step.loading_wait_ns) for step in steps] == [(6 + 3, 4 + 3), (12, 2)]
    assert [step.host_wait_ns for step in steps] == [6 + 8, 2]
    both = steps[0] + steps[1]
    assert (both.loading_ns, both.loading_wait_ns) == (21, 9)


KINDS = st.sampled_from(["kernel", "nccl", "copy"])
ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), KINDS, st.integers(-1, 60)), max_size=10)


@given(ROWS, st.integers(1, 30))
def test_the_parts_sum_to_the_step_and_agree_with_every_nanosecond_looked_at(
    rows: list[tuple[int, int, str, int]], second: int
) -> None:
    work = work_of([(start, start + length, kind, min(launched, start)) for start, length, kind, launched in rows])
    steps, _ = step_times(work, [("a", 0, second), ("b", second, 90)], (0, 90))
    edges = [0, second, max(90, *work.end_ns.tolist(), 0)]
    for step, first, last in zip(steps, edges, edges[1:], strict=False):
        parts = (step.compute_ns, step.communication_ns, step.copies_ns, step.host_wait_ns, step.launched_wait_ns)
        assert sum(parts) == step.wall_ns and min(*parts, step.overlapped_ns) >= 0
        counted = {"compute": 0, "alone": 0, "copies": 0, "idle": 0, "both": 0, "host": 0}
        for now in range(first, last):
            running = {kind for start, end, kind in _spans(work) if start <= now < end}
            if "kernel" in running:
                counted["compute"] += 1
                counted["both"] += "nccl" in running
            elif running:
                counted["alone" if "nccl" in running else "copies"] += 1
            else:
                following = next((row for row in range(len(work)) if work.start_ns[row] > now), None)
                launched = work.launched_ns[following] if following is not None else last + 999
                counted["host" if launched > now else "idle"] += 1
        assert counted == {
            "compute": step.compute_ns, "alone": step.communication_ns, "copies": step.copies_ns,
            "idle": step.launched_wait_ns, "both": step.overlapped_ns, "host": step.host_wait_ns,
        }  # fmt: skip


def _spans(work: DeviceWork) -> list[tuple[int, int, str]]:
    kinds = np.where(work.is_copy, "copy", np.where(work.is_communication, "nccl", "kernel")).tolist()
    return list(zip(work.start_ns.tolist(), work.end_ns.tolist(), kinds, strict=True))


RELU = PlaceInCode("aten::relu", "Net_0", "net.py", 5)
BACKWARD = PlaceInCode("aten::threshold_backward", "Net_0", "net.py", 5)


def times_of(path: Path, kernels: list[chrome.Event]) -> TraceTimes:
    trace = load_trace(chrome.write(path / "trace.json", [*chrome.training_step(), *kernels]))
    found = find_times(trace.recording, attribute(trace.recording), trace.work)
    assert found is not None
    return found


def test_rows_by_hand(tmp_path: Path) -> None:
    times = times_of(
        tmp_path,
        [
            chrome.launch("cudaLaunchKernel", 12, 1, correlation=1),
            chrome.kernel("relu", 14, 6, launched_by=11, correlation=1),
            chrome.kernel("relu", 20, 2, launched_by=11),
            chrome.kernel("backward", 60, 5, launched_by=14),
            chrome.kernel("alone", 70, 1, launched_by=99),
        ],
    )
    rows = {row.launcher: (row.forward_ns, row.backward_ns, row.other_ns, row.host_wait_ns, row.count)
            for row in times.rows}  # fmt: skip
    assert rows == {
        RELU: (8000, 0, 0, 13000, 2),
        BACKWARD: (0, 5000, 0, 0, 1),
        PlaceInCode(None, None, None, None): (0, 0, 1000, 0, 1),
    }
    assert [(row.name, row.total_ns, row.longest_ns, row.count) for row in times.kernels] == [
        ("relu", 8000, 6000, 2), ("backward", 5000, 5000, 1), ("alone", 1000, 1000, 1),
    ]  # fmt: skip


KERNELS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.integers(0, 30), st.sampled_from([0, 11, 12, 13, 14])),
    min_size=1,
    max_size=9,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(KERNELS)
def test_rows_and_kernels_sum_to_all_work(tmp_path: Path, kernels: list[tuple[str, int, int, int]]) -> None:
    times = times_of(
        tmp_path, [chrome.kernel(name, start, length, launched_by=by) for name, start, length, by in kernels]
    )
    total = 1000 * sum(length for _, _, length, _ in kernels)
    assert times.work_ns == sum(row.total_ns for row in times.rows) == sum(row.total_ns for row in times.kernels)
    assert times.work_ns == total
    assert sum(row.count for row in times.rows) == sum(row.count for row in times.kernels) == len(kernels)
