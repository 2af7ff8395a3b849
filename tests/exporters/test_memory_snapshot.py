"""memory_snapshot.pkl from a CPU run: what torch's own viewer, our own reader and plain arithmetic make of it."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from torch.cuda import _memory_viz

from tests.histories import Event, History, Key, histories, recording_of
from tests.training_steps import ONE_OF_EACH, Recorded
from tracer.answers.findings import CycleFindings
from tracer.answers.labels import Labels, PythonStacks, stacks_of_rows
from tracer.answers.recording_findings import find_in_cycle
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.blocks.from_recording.block_lifetimes import follow_blocks
from tracer.blocks.kinds import LABEL_BEFORE, Kind
from tracer.capture.recording import Recording
from tracer.exporters.memory_snapshot import snapshot_of_recording, write_memory_snapshot
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay

Snapshot = dict[str, Any]
Convert = Callable[[str], tuple[CycleFindings, Snapshot]]


@pytest.fixture(scope="module")
def converted(recorded: Callable[[str], Recorded]) -> Convert:
    """`converted(name)`: the last cycle of a workload, and the snapshot made of it."""

    @cache
    def convert(name: str) -> tuple[CycleFindings, Snapshot]:
        findings = recorded(name).cycles[-1]
        return findings, snapshot_of_recording(findings.source.recording, findings.source.lifetimes)

    return convert


def snapshot_of(recording: Recording) -> Snapshot:
    return snapshot_of_recording(recording, follow_blocks(recording, None, 0))


def entries(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    return [(entry["action"], entry["addr"], entry["size"]) for entry in snapshot["device_traces"][0]]


def assert_sound(snapshot: Snapshot) -> None:
    """What every snapshot promises: segments enclose their blocks, which fill them in order without a gap."""
    end_of_segment = 0
    for segment in snapshot["segments"]:
        assert segment["address"] >= end_of_segment, "segments are sorted and disjoint"
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at, "no gap and no overlap"
            assert block["size"] > 0
            assert block["requested_size"] <= block["size"]
            at += block["size"]
        end_of_segment = segment["address"] + segment["total_size"]
        assert at == end_of_segment
        allocated = sum(block["size"] for block in segment["blocks"] if block["state"] == "active_allocated")
        assert segment["allocated_size"] == segment["active_size"] == allocated
        assert (
            allocated + sum(b["size"] for b in segment["blocks"] if b["state"] == "inactive")
            == end_of_segment - (segment["address"])
        )
    for address, size in {(address, size) for _, address, size in entries(snapshot)}:
        assert any(
            segment["address"] <= address and address + size <= segment["address"] + segment["total_size"]
            for segment in snapshot["segments"]
        ), "every entry lies in a segment"


def walk(snapshot: Snapshot) -> tuple[dict[int, int], list[int]]:
    """Play the trace backwards from the segments: blocks at the beginning, and bytes after each entry."""
    live = {
        block["address"]: block["size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    levels = []
    for action, address, size in reversed(entries(snapshot)):
        levels.append(sum(live.values()))
        if action == "alloc":
            assert live.pop(address) == size
        elif action == "free_completed":
            assert live.setdefault(address, size) == size
    return live, levels[::-1]


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_history_worked_by_hand() -> None:
    # There before: 50 bytes at 0. Made: 100 at 50, freed; 30 at 60 in its place; 8 at 1000 all alone.
    recording = recording_of(
        [Event(50, 100, 2), Event(50, -100, 2), Event(60, 30, 3), Event(1000, 8, 4)], [Key(0, 50, 1)]
    )
    snapshot = snapshot_of(recording)
    assert entries(snapshot) == [
        ("alloc", 50, 100),
        ("free_requested", 50, 100),
        ("free_completed", 50, 100),
        ("alloc", 60, 30),
        ("alloc", 1000, 8),
    ]
    found = [
        (segment["address"], segment["total_size"], [(b["address"], b["size"], b["state"]) for b in segment["blocks"]])
        for segment in snapshot["segments"]
    ]
    used, free = "active_allocated", "inactive"
    assert found == [
        (0, 150, [(0, 50, used), (50, 10, free), (60, 30, used), (90, 60, free)]),
        (1000, 8, [(1000, 8, used)]),
    ]


def test_of_two_storages_from_before_in_one_place_the_first_stands_for_both() -> None:
    """One of them was gone before anybody could see it, and no viewer takes blocks that overlap."""
    snapshot = snapshot_of(recording_of([Event(500, 8, 3)], [Key(0, 100, 1), Key(50, 20, 2)]))
    assert_sound(snapshot)
    assert [block["size"] for block in snapshot["segments"][0]["blocks"]] == [100]


def test_memory_of_which_nobody_knows_where_it_lies_is_behind_all_other() -> None:
    recording = recording_of([Event(500, 8, 3)], [Key(0, 100, 1)])
    lifetimes = follow_blocks(recording, None, 0)
    unknown = replace(lifetimes, address=np.where(lifetimes.address == 0, -1, lifetimes.address))
    snapshot = snapshot_of_recording(recording, unknown)
    assert_sound(snapshot)
    assert [block["address"] for segment in snapshot["segments"] for block in segment["blocks"]] == [500, 508]


def test_a_block_from_before_that_is_freed_keeps_its_kind(tmp_path: Path) -> None:
    """Its frees are all that the trace has of it: the viewer shows their frames for it, and so does our reader."""
    recording = recording_of([Event(50, 8, 3), Event(0, -50, 1)], [Key(0, 50, 1)])
    lifetimes = follow_blocks(recording, None, 0)
    of_kind = {True: Kind.INPUT, False: Kind.ACTIVATION}
    named = [of_kind[bool(row < 0)] for row in lifetimes.allocation.tolist()]
    frames = [{"name": LABEL_BEFORE, "filename": f"<explained as {kind.name.lower()}>", "line": 0} for kind in named]
    labels = Labels([kind.name.lower() for kind in named], frames, [None] * len(named))
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(recording, lifetimes, labels=labels), path)
    (device,) = replay_snapshot(load_snapshot(path)).devices
    assert dict(zip(device.blocks.size_bytes.tolist(), device.blocks.kind.tolist(), strict=True)) == {
        50: Kind.INPUT,
        8: Kind.ACTIVATION,
    }


def test_nothing_recorded_gives_an_empty_snapshot() -> None:
    snapshot = snapshot_of(recording_of([]))
    assert (snapshot["segments"], snapshot["device_traces"]) == ([], [[]])


@given(histories())
def test_of_any_history_the_snapshot_is_sound_and_tells_the_same_levels(history: History) -> None:
    snapshot = snapshot_of(history.recording())
    assert_sound(snapshot)
    assert len(snapshot["segments"]) <= len(history.lives)
    before, levels = walk(snapshot)
    assert sum(before.values()) == sum(life.size_bytes for life in history.lives if life.made < 0)
    assert max([sum(before.values()), *levels]) == max(
        [sum(life.size_bytes for life in history.lives if life.made < 0), *history.levels()]
    )


# ---- of workloads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_of_a_workload_the_snapshot_is_sound_and_our_reader_finds_the_same_peak(
    name: str, converted: Convert, tmp_path: Path
) -> None:
    findings, snapshot = converted(name)
    assert_sound(snapshot)
    write_memory_snapshot(snapshot, tmp_path / "memory_snapshot.pkl")
    loaded = load_snapshot(tmp_path / "memory_snapshot.pkl", isolated=False)
    (state,) = loaded.devices
    played = replay(state, loaded.settings)
    assert int(played.requested_bytes.max()) == max(walk(snapshot)[1]) == findings.peak.peak_bytes
    oddities = played.oddities
    assert oddities == type(oddities)(), "a complete recording"


@pytest.mark.parametrize("name", ["fno_2d_new_zeros", "convnet", "checkpointing_reentrant", "replaced_data"])
def test_torchs_own_viewer_takes_it(name: str, converted: Convert) -> None:
    _, snapshot = converted(name)
    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in draw(snapshot)
    played = _memory_viz.trace(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in played
    assert " = MEM[" in played
    summary = _memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in summary
    assert _memory_viz.segments(snapshot, format_flamegraph=lambda lines: lines)
    assert _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)


# ---- frames and annotations ------------------------------------------------------------------------------------------


def test_frames_lead_from_the_operator_to_the_program(converted: Convert) -> None:
    _, snapshot = converted("fno_2d_new_zeros")
    spectra = [
        entry["frames"]
        for entry in snapshot["device_traces"][0]
        if entry["action"] == "alloc" and any(f["filename"].endswith("fno_layers.py") for f in entry["frames"])
    ]
    assert spectra
    for frames in spectra:
        assert all(set(frame) == {"name", "filename", "line"} for frame in frames)
        files = [Path(frame["filename"]).name for frame in frames]
        assert files.index("fno_layers.py") < files.index("training_steps.py"), "innermost first"
        assert Path(next(f["filename"] for f in frames if f["filename"].endswith("fno_layers.py"))).is_file()


def test_equal_stacks_are_one_object(converted: Convert) -> None:
    """A pickle writes an object once: this is what keeps the file small."""
    _, snapshot = converted("fno_2d_new_zeros")
    stacks = [entry["frames"] for entry in snapshot["device_traces"][0] if entry["frames"]]
    assert len({id(stack) for stack in stacks}) < len(stacks) / 2


def test_steps_are_annotated_and_closed(converted: Convert) -> None:
    _, snapshot = converted("fno_2d_new_zeros")
    marks = [(mark["name"], mark["stage"]) for mark in snapshot["external_annotations"]]
    steps = [name for name, stage in marks if name.startswith("ProfilerStep#") and stage == "START"]
    assert len(steps) == 2
    assert all(marks.count((name, "START")) == marks.count((name, "END")) for name, _ in marks)
    times = [mark["time_us"] for mark in snapshot["external_annotations"]]
    assert times == sorted(times)


# ---- the file --------------------------------------------------------------------------------------------------------


class _NoGlobals(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"the file asks for {module}.{name}")


def test_the_file_needs_no_code_to_be_read_and_is_of_protocol_4(converted: Convert, tmp_path: Path) -> None:
    _, snapshot = converted("fno_2d_new_zeros")
    write_memory_snapshot(snapshot, tmp_path / "memory_snapshot.pkl")
    data = (tmp_path / "memory_snapshot.pkl").read_bytes()
    assert _NoGlobals(io.BytesIO(data)).load() == snapshot
    assert max(opcode.proto for opcode, _, _ in pickletools.genops(data)) == 4
    assert data[:2] == b"\x80\x04"


def test_only_plain_values_are_in_it(converted: Convert) -> None:
    """A numpy integer would look the same here and be unreadable in the browser."""

    def check(value: Any) -> None:
        if type(value) in (list, tuple):
            for one in value:
                check(one)
        elif type(value) is dict:
            for key, one in value.items():
                assert type(key) is str
                check(one)
        else:
            assert type(value) in (int, str, bool), type(value)

    check(converted("fno_2d_new_zeros")[1])


# -------------------------------------------------------------------------------------------------------- python stacks
def test_a_row_has_the_stack_of_most_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: blocks of 7 and 9 bytes share a stack, one of 11 has another, and one of 5 has none; all are one row."""
    recording = recording_of([Event(500, 7, 1), Event(600, 11, 2), Event(700, 9, 3), Event(800, 5, 4)])
    peak = find_in_cycle(recording).peak
    assert [row.count for row in peak.rows] == [4]
    shared = [{"name": "f", "filename": "a.py", "line": 3}, {"name": "main", "filename": "a.py", "line": 9}]
    alone = [{"name": "g", "filename": "b.py", "line": 1}]
    monkeypatch.setattr(PythonStacks, "of_allocation", lambda _, row: [shared, alone, shared, []][row])
    assert stacks_of_rows(recording, peak, num_rows=9, num_frames=9) == [["f (a.py:3)", "main (a.py:9)"]]
    assert stacks_of_rows(recording, peak, num_rows=9, num_frames=1) == [["f (a.py:3)"]]
    assert stacks_of_rows(recording, peak, num_rows=0, num_frames=9) == [None]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_on_a_workload_of_each_kind_the_line_of_a_row_is_in_its_stack(
    name: str, recorded: Callable[[str], Recorded]
) -> None:
    found = recorded(name).cycles[-1]
    stacks = stacks_of_rows(found.source.recording, found.peak, num_rows=1000, num_frames=1000)
    assert len(stacks) == len(found.peak.rows)
    made = [(row, stack) for row, stack in zip(found.peak.rows, stacks, strict=True) if stack is not None]
    assert made, "forward has stacks"
    for row, stack in made:
        if row.file is not None and row.phase == "forward":
            assert any(frame.endswith(f"({row.file}:{row.line})") for frame in stack), (row, stack)
        assert row.phase != "before recording"
