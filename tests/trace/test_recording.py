"""A trace as a recording: worked out by hand, and the H100's of the real data."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from tests.trace import chrome
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.errors import RecordingError
from tracer.trace.load import TraceFile, load_trace

REAL = Path(__file__).resolve().parents[3] / "shared" / "realdata" / "trace_h100_bert_small.json.gz"


def found(tmp_path: Path, events: list[chrome.Event]) -> tuple[TraceFile, CycleFindings]:
    trace = load_trace(chrome.write(tmp_path / "trace.json", events))
    return trace, find_in_cycle(trace.recording)


def test_a_step_worked_out_by_hand(tmp_path: Path) -> None:
    trace, cycle = found(tmp_path, chrome.training_step())
    peak = cycle.peak
    assert (peak.device, peak.peak_bytes, peak.allocator_peak_bytes) == ("cuda:0", 6656, 6656)
    assert (peak.phase, peak.step, peak.unexplained_bytes) == ("backward", "ProfilerStep#0", 0)
    assert [(row.bytes, row.category, row.phase, row.module, row.op, row.file, row.line) for row in peak.rows] == [
        (4096, "BEFORE_RECORDING", "before recording", None, None, None, None),
        (1024, "ACTIVATION", "forward", "Net_0", "aten::relu", "net.py", 5),
        (1024, "AUTOGRAD_DETAIL", "backward", "Net_0", "aten::threshold_backward", "net.py", 5),
        (512, "TEMPORARY", "backward", "Net_0", "aten::threshold_backward", "net.py", 5),
    ]
    assert trace.missing == ("Nothing ran on a GPU while it was recorded: activities=[CPU, CUDA].",)


def test_the_order_of_the_events_in_the_file_says_nothing(tmp_path: Path) -> None:
    events = chrome.training_step()
    rows = found(tmp_path, events)[1].peak.rows
    for seed in range(5):
        random.Random(seed).shuffle(events)
        assert found(tmp_path, events)[1].peak.rows == rows


def test_without_lines_of_calls_rows_have_those_of_functions(tmp_path: Path) -> None:
    events = chrome.training_step()
    for event in events:
        event["args"].pop("CallFrom", None)
    trace, cycle = found(tmp_path, events)
    assert {(row.file, row.line) for row in cycle.peak.rows} == {(None, None), ("net.py", 4)}
    assert any("where functions begin" in sentence for sentence in trace.missing)


def test_what_is_missing_is_said_with_its_option(tmp_path: Path) -> None:
    trace, cycle = found(tmp_path, [chrome.operator("aten::relu", 9, 8), chrome.memory(10, 0x1000, 1024, 5120)])
    assert cycle.peak.peak_bytes == 5120
    for option in ("with_stack=True", "record_shapes=True", "prof.step()", "activities="):
        assert any(option in sentence for sentence in trace.missing), option
    trace = load_trace(chrome.write(tmp_path / "bare.json", [chrome.operator("aten::relu", 9, 8)]))
    assert not trace.has_memory and any("profile_memory=True" in sentence for sentence in trace.missing)


@pytest.mark.parametrize(
    ("device", "name"), [((0, -1), "cpu"), ((1, 3), "cuda:3"), ((6, 1), "cuda:1"), ((12, 0), "xpu:0")]
)
def test_devices_have_torchs_names(tmp_path: Path, device: tuple[int, int], name: str) -> None:
    events = [chrome.operator("aten::empty", 9, 8), chrome.memory(10, 0x1000, 1024, 1024, device=device)]
    assert found(tmp_path, events)[1].peak.device == name


def test_calls_that_torch_put_under_thread_0_belong_to_that_of_the_operators(tmp_path: Path) -> None:
    # Two threads of Python's under one number: a monitor that waits, and what trains.
    events = chrome.training_step()
    for event in events:
        if event["cat"] == "python_function":
            event["tid"] = 0
    monitor = [
        chrome.call("threading.py(1): _bootstrap", -5, 200, 50, thread=0),
        chrome.call("threading.py(9): wait", -4, 190, 51, 50, thread=0),
    ]
    trace, cycle = found(tmp_path, [*monitor, *events])
    assert ("net.py", 5) in {(row.file, row.line) for row in cycle.peak.rows}
    assert any("thread" in sentence for sentence in trace.remarks)


def test_calls_of_another_thread_under_thread_0_enclose_nothing(tmp_path: Path) -> None:
    rows = found(tmp_path, chrome.training_step())[1].peak.rows
    events = chrome.training_step()
    for event in events:
        if event["cat"] == "python_function":
            event["tid"] = 0
    poll = chrome.call("monitor.py(9): poll", 8.5, 12, 51, thread=0)
    assert found(tmp_path, [*events, poll])[1].peak.rows == rows


def test_of_two_that_begin_at_once_the_longer_encloses(tmp_path: Path) -> None:
    events = [chrome.operator("aten::inner", 9, 4), chrome.operator("aten::outer", 9, 8),
              chrome.memory(10, 0x1000, 512, 512)]  # fmt: skip
    assert [row.op for row in found(tmp_path, events)[1].peak.rows] == ["aten::outer"]


def test_an_allocation_at_the_end_of_an_operator_is_the_operators(tmp_path: Path) -> None:
    events = [chrome.operator("aten::empty", 9, 8), chrome.memory(17, 0x1000, 512, 512)]
    assert [row.op for row in found(tmp_path, events)[1].peak.rows] == ["aten::empty"]


def test_a_damaged_end_costs_what_is_damaged(tmp_path: Path) -> None:
    packed = gzip.compress(chrome.text_of(chrome.training_step() * 200).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    trace = load_trace(path)
    assert trace.has_memory and any("ends in the middle" in sentence for sentence in trace.remarks)


def test_names_that_are_no_utf8_and_times_that_are_no_numbers(tmp_path: Path) -> None:
    events: list[Any] = [
        *chrome.training_step(),
        chrome.operator("aten::x", float("nan"), float("inf")),
        {"ph": "X", "cat": "cpu_op", "name": "aten::y", "ts": "1", "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": ["z"], "ts": 1, "pid": 1, "tid": 1},
        {"ph": "i", "name": "[memory]", "args": {"Addr": 1 << 70, "Bytes": 1}, "ts": 1, "pid": 1, "tid": 1},
        3,
        None,
    ]
    path = tmp_path / "trace.json"
    path.write_bytes(chrome.text_of(events).encode().replace(b"aten::relu", b"aten::re\xfflu"))
    trace = load_trace(path)
    assert "aten::re\ufffdlu" in trace.recording.strings
    assert any("left out: 6 times" in sentence for sentence in trace.remarks)


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.trace.events._SPARE_BYTES", 1 << 20)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b"{}," * (2 << 20)))
    with pytest.raises(RecordingError, match="times its size"):
        load_trace(path)


@pytest.mark.parametrize("content", ["[" * 100_000, "[3, null, [], {}]"])
def test_what_has_no_events_of_torchs_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "trace.json").write_text(content)
    with pytest.raises(RecordingError, match="without an operator"):
        load_trace(tmp_path / "trace.json")


def test_what_has_nothing_of_torchs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="without an operator"):
        load_trace(chrome.write(tmp_path / "trace.json", [{"ph": "X", "name": "a", "cat": "Java", "ts": 1}]))


@pytest.mark.skipif(not REAL.is_file(), reason="the real trace is not here")
def test_the_h100s_trace_is_explained_to_the_byte() -> None:
    cycle = find_in_cycle(load_trace(REAL).recording)
    assert cycle.peak.peak_bytes == cycle.peak.allocator_peak_bytes == 101_305_344
    assert sum(row.bytes for row in cycle.peak.rows) == 101_305_344 and cycle.peak.unexplained_bytes == 0
    made = [row for row in cycle.peak.rows if row.category != "BEFORE_RECORDING"]
    assert all(row.op and row.module and row.file and row.line for row in made)
