"""Who launched what: by hand, and in every trace the rows sum to all work."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trace import chrome
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.times.findings import TraceTimes, find_times
from tracer.trace.load import load_trace

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
