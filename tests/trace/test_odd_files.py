"""Times in every spelling, events that a file has twice or that cannot be, counts it leaves out, tails of gzip."""

from __future__ import annotations

import copy
import gzip
import io
import json
import re
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.trace import chrome
from tracer.errors import RecordingError
from tracer.exporters.trace_times import print_trace
from tracer.results.trace_report import explain_trace

ABSOLUTE_US = 1_608_722_576_381_804
UNITS = {"whole microseconds": 1000, "nanoseconds": 1}


def answer(events: list[Any], *, base_ns: int = 0, offset_us: int = 0) -> str:
    """All that is printed of a trace, its times moved by an offset and written as exactly as kineto writes them."""
    moved = copy.deepcopy(events)
    for event in moved:
        if type(event) is dict and type(event.get("ts")) is int:
            moved_ns = event["ts"] + offset_us * 1000
            event["ts"], event["dur"] = f"@{Decimal(moved_ns) / 1000}", f"@{Decimal(event.get('dur', 0)) / 1000}"
    text = json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": moved})
    return printed(re.sub('"@([^"]*)"', r"\1", text).encode())


def written(events: list[Any]) -> str:
    return printed(json.dumps({"traceEvents": events}).encode())


def printed(content: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        screen = io.StringIO()
        print_trace(explain_trace(path), Console(file=screen, width=200), top=20)
    return screen.getvalue().partition("\n")[2]


@st.composite
def step(draw: st.DrawFn, unit_ns: int) -> list[chrome.Event]:
    """Modules that abut, each with an operator that launches a kernel and allocates; all times in nanoseconds."""
    events, now_ns, in_use = [], 0, 0
    for number, length in enumerate(draw(st.lists(st.integers(4, 50), min_size=1, max_size=6)), start=1):
        end_ns = now_ns + length * unit_ns
        inside_ns = now_ns + draw(st.integers(1, length - 2)) * unit_ns
        in_use += 512 * number
        events += [
            chrome.call(f"nn.Module: Linear_{number}", now_ns, end_ns - now_ns, number),
            chrome.operator(f"aten::op{number}", now_ns, end_ns - now_ns, External_id=number),
            chrome.memory(inside_ns, 4096 * number, 512 * number, in_use),
            chrome.launch("cudaLaunchKernel", inside_ns, unit_ns, correlation=number),
            chrome.kernel(f"k{number}", end_ns, draw(st.integers(1, 60)) * unit_ns, launched_by=number,
                          correlation=number),
        ]  # fmt: skip
        now_ns = end_ns
    return [chrome.region("ProfilerStep#1", 0, now_ns), *events]


@pytest.mark.parametrize("unit_ns", UNITS.values(), ids=UNITS)
@settings(max_examples=12)
@given(data=st.data())
def test_absolute_and_relative_times_give_the_same_answer(unit_ns: int, data: st.DataObject) -> None:
    events = data.draw(step(unit_ns))
    relative = answer(events)
    assert answer(events, base_ns=chrome.BASE_NS) == relative
    assert answer(events, offset_us=ABSOLUTE_US) == relative
    assert "Linear_1.Linear_2" not in relative


def with_kernel() -> list[chrome.Event]:
    return [*chrome.training_step(), chrome.launch("cudaLaunchKernel", 10, 1, correlation=5),
            chrome.kernel("k", 20, 5, launched_by=11, correlation=5)]  # fmt: skip


@settings(max_examples=12)
@given(st.lists(st.integers(0, len(with_kernel()) - 1), min_size=1, max_size=5, unique=True))
def test_an_event_that_is_there_twice_counts_once(repeated: list[int]) -> None:
    events = with_kernel()
    twice = [*events, *(events[number] for number in repeated if events[number].get("cat") != "cuda_runtime")]
    notes, _, rest = written(twice).partition("Peak:")
    assert rest == written(events).partition("Peak:")[2]
    assert len(twice) == len(events) or "in the file twice" in notes


def test_a_block_that_is_allocated_where_one_lies_is_another_one(tmp_path: Path) -> None:
    """No free is recorded between them, and no time passes."""
    events = [chrome.operator("aten::x", 0, 90), chrome.memory(10, 4096, 512, 512), chrome.memory(10, 4096, 1024, 1024)]
    rows = memory_rows(chrome.write(tmp_path / "trace.json", events))
    assert rows == (1024, 1024, [1024])


def memory_rows(path: Path) -> tuple[int, int, list[int]]:
    results = explain_trace(path).results
    assert results is not None
    peak = results.findings.worst.peak
    return peak.peak_bytes, peak.allocator_peak_bytes, [row.bytes for row in peak.rows]


@pytest.mark.parametrize("missing", [[0, 1, 2, 3], [0, 1], [3], [1, 2]])
def test_counts_that_are_missing_follow_from_sizes(tmp_path: Path, missing: list[int]) -> None:
    """4,096 bytes are freed that the trace saw nobody allocate; then 1,024, and 512 beside them."""
    events = [
        chrome.memory(10, 0x1000, 1024, 5120),
        chrome.memory(20, 0x9000, -4096, 1024),
        chrome.memory(30, 0x1000, -1024, 0),
        chrome.memory(40, 0x2000, 512, 512),
    ]
    for number in missing:
        del events[number]["args"]["Total Allocated"]
    path = chrome.write(tmp_path / "trace.json", [chrome.operator("aten::x", 0, 90), *events])
    assert memory_rows(path) == (5120, 5120, [4096, 1024])


IMPOSSIBLE = [-1, -0.5, 7.442496e15, float("nan"), float("inf"), 1e300, None]


@pytest.mark.parametrize("duration_us", IMPOSSIBLE)
def test_impossible_durations_are_left_out_and_counted(tmp_path: Path, duration_us: float | None) -> None:
    events: list[Any] = [*chrome.training_step(), chrome.kernel("k", 20, 5, launched_by=11)]
    odd = {**events[-1], "dur": duration_us, "name": "odd"}
    text = written([*events, odd])
    assert "are left out: 1 time" in text and "odd" not in text
    assert text.partition("Peak:")[2] == written(events).partition("Peak:")[2]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=12)
@given(st.integers(0, len(with_kernel()) - 1), st.data())
def test_any_value_in_any_place_costs_that_event_alone(number: int, data: st.DataObject) -> None:
    events = with_kernel()
    place: dict[str, Any] = data.draw(st.sampled_from([events[number], events[number]["args"]]))
    place[data.draw(st.sampled_from(sorted(place) or ["name"]))] = data.draw(JSON_VALUES)
    try:
        assert "Peak: " in written(events)
    except RecordingError as error:
        pytest.fail(f"refused: {error}")


@pytest.mark.parametrize("tail", [b"garbage", b"\0" * 600, b"\x1f\x8b", b"\x1f\x8bgarbage" * 9])
def test_what_follows_gzip_is_left_out(tail: bytes) -> None:
    plain = json.dumps({"traceEvents": chrome.training_step() * 3000}).encode()
    expected = printed(plain).partition("Peak:")[2]
    assert printed(gzip.compress(plain) + tail).partition("Peak:")[2] == expected


def test_what_is_no_gzip_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").write_bytes(b"\x1f\x8bgarbage" * 9)
    with pytest.raises(RecordingError, match="cannot be read"):
        explain_trace(tmp_path / "trace.json.gz")
