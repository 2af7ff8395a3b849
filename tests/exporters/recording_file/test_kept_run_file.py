"""recording.npz: what is stored comes back, the document describes it, and what anybody sends is a sentence at most."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answer_screens import answer_screen
from tests.exporters.recording_file.samples import SETTINGS, kept_on_cpu, kept_on_cuda
from tests.snapshot.fuzz import mutate_objects
from tests.training_steps import ONE_OF_EACH, Recorded
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import CompiledCode, CompiledGraph, CompiledNode
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError, TracerError
from tracer.exporters.recording_file.kept_run_file import (
    FORMAT,
    INDEXES,
    VERSION,
    KeptCycle,
    KeptRun,
    kept_run_columns,
    kept_run_from,
    load_kept_run,
    save_kept_run,
)
from tracer.sessions.output_files import write_outputs
from tracer.sessions.stored_results import results_of

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "recording.md"


@cache
def columns_of(name: str) -> dict[str, Any]:
    return kept_run_columns({"cpu": kept_on_cpu, "cuda": kept_on_cuda}[name]())


LINE = SourceLine("/home/somebody/net.py", 7)
COMPILED = CompiledCode(
    (
        CompiledGraph(
            path="/tmp/ab/cab.py",
            text="def call(args):\n\treturn ()\n",
            compile_id="0/0",
            is_backward=True,
            num_outputs=-1,
            nodes=(
                CompiledNode("add", (LINE, SourceLine("x", 1)), 2**47, "blocks.0"),
                CompiledNode("mm", (), -1, "", True, False),
            ),
            buffers={"buf0": (1, 0)},
            outputs=("add", ""),
        ),
    ),
    3 << 20,
)


def assert_equal(one: Any, other: Any) -> None:
    """Field by field, columns by type and content."""
    assert type(one) is type(other)
    for each in fields(one):
        ours, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes()), each.name
        elif is_dataclass(ours):
            assert_equal(ours, theirs)
        elif each.name == "cycles":
            for cycle, again in zip(ours, theirs, strict=True):
                assert_equal(cycle, again)
        else:
            assert ours == theirs, each.name


@pytest.mark.parametrize("compiled", [COMPILED, CompiledCode()])
def test_everything_comes_back(compiled: CompiledCode, tmp_path: Path) -> None:
    assert kept_on_cuda().cycles[0].recording.kernels is not None and len(kept_on_cuda().known.time_ns) > 10
    for kept in (kept_on_cpu(), kept_on_cuda()):
        kept = replace(kept, compiled=compiled)
        save_kept_run(tmp_path / "recording.npz", kept)
        found = load_kept_run(tmp_path / "recording.npz")
        assert_equal(found, replace(kept, settings={**SETTINGS, "odd": "[1, 2]"}))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_recording_comes_back_equal(name: str, recorded: Callable[[str], Recorded]) -> None:
    kept = replace(kept_on_cpu(), cycles=tuple(KeptCycle(one, True) for one in recorded(name).recordings))
    assert_equal(kept_run_from(kept_run_columns(kept)), replace(kept, settings={**SETTINGS, "odd": "[1, 2]"}))


def test_texts_come_back_without_what_a_terminal_obeys_and_sources_as_they_are() -> None:
    texts = ("", "für", "\ud800", "a\x1b[31mb", "end")
    source = replace(kept_on_cpu().sources[0], text="a\x1b[31mb\ud800")
    found = kept_run_from(kept_run_columns(replace(kept_on_cpu(), notes=texts, sources=(source,))))
    assert found.notes == ("", "für", "\\ud800", "a\\x1b[31mb", "end")
    assert found.sources == (source,)


# ---- the document ----------------------------------------------------------------------------------------------------


def rows(part: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]


def test_the_document_describes_every_column_and_its_type() -> None:
    text = DOCUMENT.read_text("utf-8")
    described: dict[str, str] = {}
    for names, _ in rows(text.split("## Columns\n")[1]):
        for name, is_bool in re.findall(r"`([\w.]+)`(\??)", names):
            described[name] = "bool" if is_bool else "uint8" if name == "history.pickle" else "int64"
    there = {
        re.sub(r"^cycles\.\d+\.recording\.", "", name): str(column.dtype)
        for name, column in kept_run_columns(kept_on_cuda()).items()
        if name != "run"
    }
    assert described == there


def test_the_document_describes_every_key_and_names_the_version() -> None:
    text = DOCUMENT.read_text("utf-8")
    part = text.split("\n## run\n")[1].split("\n## ")[0]
    run = json.loads(kept_run_columns(kept_on_cuda())["run"].tobytes())
    assert {key for names, _ in rows(part) for key in re.findall(r"`(\w+)`", names)} == set(run)
    assert f"Name `{FORMAT}`, version {VERSION}." in text
    assert f"`{FORMAT}` and {VERSION}." in part


# ---- of another version ----------------------------------------------------------------------------------------------


def with_run(**changes: Any) -> dict[str, Any]:
    columns = columns_of("cpu")
    run = json.loads(columns["run"].tobytes()) | changes
    return columns | {"run": np.frombuffer(json.dumps(run).encode(), np.uint8)}


def test_a_later_version_is_refused_by_its_number() -> None:
    with pytest.raises(RecordingError, match="of format version 4, and this program reads up to 3") as caught:
        kept_run_from(with_run(version=4))
    assert "later" in caught.value.hint


def test_an_earlier_version_is_refused_by_its_number() -> None:
    with pytest.raises(RecordingError, match="of format version 2, which is not read any more") as caught:
        kept_run_from(with_run(version=2))
    assert "profile again" in caught.value.hint


def test_what_came_later_is_passed_over() -> None:
    columns = kept_run_columns(kept_on_cpu())
    kept = kept_run_from(columns | {"cycles.0.recording.ops.flops": np.arange(3), "more": np.ones(2)})
    assert_equal(kept.cycles[0].recording, kept_on_cpu().cycles[0].recording)
    assert kept_run_from(with_run(mood="good")).notes == kept_on_cpu().notes


# ---- of anybody ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "torch-timeline peak"}, "not a recording of this program"),
        ({"format": None}, "not a recording of this program"),
        ({"version": "1"}, "version"),
        ({"version": -1}, "version"),
        ({"device": "cuda:x"}, "name of a device"),
        ({"device": "cpu\n"}, "name of a device"),
        ({"device": 5}, "device"),
        ({"cycles": [5, 5]}, "cycles.0 is not an object"),
        ({"cycles": [{}] * 2}, "cycles.0.recording is not an object"),
        ({"cycles": 5}, "cycles is not a list"),
        ({"losses": ["a"]}, "losses.0 is not a number"),
        ({"module_names": {"x": "a"}}, "a key that is no number"),
        ({"module_names": {"²": "a"}}, "a key that is no number"),
        ({"module_names": {"1" * 30: "a"}}, "a key that is no number"),
        ({"settings": []}, "settings"),
        ({"notes": ["a", 5]}, "notes.1 is not a text"),
        ({"num_steps": 1.5}, "num_steps"),
        ({"num_steps": True}, "num_steps"),
        ({"timings": {"device": "cpu"}}, "clock"),
        ({"timings": {"device": "cpu", "clock": "CPU", "durations_ms": {}}}, "timed equally often"),
        ({"origin": {"command": None}}, "origin.command"),
    ],
)
def test_a_run_that_is_not_described_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecordingError, match=complaint) as caught:
        kept_run_from(with_run(**changes))
    assert caught.value.hint


@pytest.mark.parametrize("run", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}"])
def test_what_is_no_document_is_refused(run: bytes) -> None:
    with pytest.raises(RecordingError):
        kept_run_from(columns_of("cpu") | {"run": np.frombuffer(run, np.uint8)})


DAMAGED: list[tuple[tuple[str | int, ...], Any]] = [
    (("nodes",), [{}]),
    (("text",), 5),
    (("num_outputs",), -2),
    (("buffers",), {"buf0": [2]}),
    (("buffers",), {"buf0": [-1]}),
    (("nodes", 0, "lines"), [["x"]]),
    *((("nodes", 0, "module_id"), number) for number in ("5", -2, 1 << 60, True)),
]


@pytest.mark.parametrize(("place", "value"), DAMAGED)
def test_damaged_compiled_code_is_refused(place: tuple[str | int, ...], value: Any) -> None:
    columns = kept_run_columns(replace(kept_on_cpu(), compiled=COMPILED))
    document = json.loads(columns["run"].tobytes())
    part = document["compiled"]["graphs"][0]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(RecordingError, match="compiled"):
        kept_run_from(columns | {"run": np.frombuffer(json.dumps(document).encode(), np.uint8)})


def history(snapshot: Any) -> dict[str, Any]:
    return {"history.pickle": np.frombuffer(pickle.dumps(snapshot, protocol=4), np.uint8)}


@pytest.mark.parametrize("content", [b"", b"cos\nsystem\n(S'true'\ntR.", b"]r\xff\xff\xff\x7f."])
def test_a_history_that_runs_code_or_fills_the_memory_is_refused(content: bytes) -> None:
    columns = columns_of("cuda") | {"history.pickle": np.frombuffer(content, np.uint8)}
    with pytest.raises(RecordingError, match="allocator data is damaged"):
        kept_run_from(columns)


@pytest.mark.parametrize("snapshot", [[], {}, {"segments": []}, {"segments": [], "device_traces": {}}, "x"])
def test_an_allocator_that_left_no_snapshot_is_refused(snapshot: Any) -> None:
    with pytest.raises(RecordingError, match="allocator data is damaged"):
        kept_run_from(columns_of("cuda") | history(snapshot))


# ---- columns of a cycle ----------------------------------------------------------------------------------------------

CYCLE = "cycles.0.recording"


def place_of(name: str) -> str:
    return name if name.startswith("known.") else f"{CYCLE}.{name}"


def changed(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A column in the middle of a run, changed in place or for another one."""
    columns = columns_of("cuda")
    column = columns[place_of(name)].copy()
    result = change(column)
    return columns | {place_of(name): column if result is None else result}


def refused(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecordingError, match=complaint) as caught:
        kept_run_from(columns)
    assert caught.value.hint


def put(value: int) -> Callable[[Any], Any]:
    def change(column: Any) -> Any:
        if not len(column):
            return np.array([value])
        column[len(column) // 2] = value
        return column

    return change


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("value", [-2, 2**63 - 1])
def test_an_index_outside_its_table_is_refused(name: str, value: int) -> None:
    refused(changed(name, put(value)), f"{name} has values outside|differ in length")


@pytest.mark.parametrize("name", [name for name in INDEXES if not INDEXES[name].can_lack])
def test_an_index_that_has_to_be_there_is_refused_without(name: str) -> None:
    refused(changed(name, put(-1)), f"{name} has values outside 0|differ in length")


@pytest.mark.parametrize("name", [name for name in INDEXES if INDEXES[name].is_before])
def test_what_encloses_itself_is_refused(name: str) -> None:
    def enclose(column: Any) -> None:
        column[7] = 7

    refused(changed(name, enclose), "enclose themselves")


TABLES = {one.name for one in fields(Recording)} & {name.split(".")[0] for name in INDEXES} | {"kernels"}
COLUMN_NAMES = [name.removeprefix(f"{CYCLE}.") for name in columns_of("cuda") if name.startswith(CYCLE)]


@pytest.mark.parametrize("name", [name for name in COLUMN_NAMES if "." in name])
def test_a_column_of_another_length_or_type_or_none_is_refused(name: str) -> None:
    assert name.split(".")[0] in TABLES
    refused(changed(name, lambda column: column[:-1]), "differ in length|outside")
    refused(changed(name, lambda column: column.astype(np.float64)), f"{name}, of (int64|bool), is of float64")
    columns = columns_of("cuda")
    refused({key: columns[key] for key in columns if key != place_of(name)}, f"{name}, of (int64|bool), is missing")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("ops.kind", 3, "outside 0 to 2"),
        ("calls.kind", -1, "outside 0 to 3"),
        ("known.role", 13, "outside 0 to 12"),
        ("known.size_bytes", -1, "outside 0"),
        ("allocations.time_ns", -5, "outside"),
        ("allocations.size_bytes", 1 << 60, "outside"),
        ("allocations.total_allocated_bytes", -(1 << 60), "outside"),
        ("keys.size_bytes", -1, "outside"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: int, complaint: str) -> None:
    refused(changed(name, put(value)), complaint)


def test_sizes_that_cannot_be_summed_are_refused() -> None:
    """Each may be, all together are more than 64 bits hold."""

    def much(count: int) -> dict[str, Any]:
        known = {name: column for name, column in columns_of("cuda").items() if name.startswith("known.")}
        alike = [name for name in known if len(known[name]) == len(known["known.time_ns"])]
        large = {name: np.repeat(known[name][:1], count) for name in alike}
        return columns_of("cuda") | large | {"known.size_bytes": np.full(count, 1 << 50)}

    refused(much(1 << 13), "more bytes than there are")
    assert kept_run_from(much(1 << 11)).known.size_bytes[0] == 1 << 50


def test_a_number_that_is_allocated_twice_is_refused() -> None:
    def same(column: Any) -> None:
        column[:] = 5

    refused(changed("allocations.allocation_id", same), "the same number")


@pytest.mark.parametrize("name", ["flow.node_time_ns", "flow.edge_node", "flow.edge_key"])
def test_a_data_flow_in_another_order_is_refused(name: str) -> None:
    refused(changed(name, lambda column: column[::-1].copy()), "not in order")


def test_storages_of_several_shapes_are_refused() -> None:
    several = next(row for row, shapes in enumerate(kept_on_cuda().cycles[0].recording.shapes) if len(shapes) > 1)
    refused(changed("keys.shape", lambda column: np.full_like(column, several)), "no shape, or several")


def test_shapes_of_more_elements_than_a_number_has_are_read() -> None:
    run = json.loads(columns_of("cuda")["run"].tobytes())
    shapes = run["cycles"][0]["recording"]["shapes"]
    run["cycles"][0]["recording"]["shapes"] = [[[1 << 40 for _ in shape] for shape in each] for each in shapes]
    huge = columns_of("cuda") | {"run": np.frombuffer(json.dumps(run).encode(), np.uint8)}
    assert results_of(kept_run_from(huge)).findings is not None


# ---- changed by chance -----------------------------------------------------------------------------------------------

ODD = st.sampled_from([-(2**63), -(2**61), -1, 0, 1, 2, 5, 511, 2**31, 2**40, 2**50, 2**61, 2**63 - 1])
CHANGES = ("odd", "near", "cut", "longer", "same", "shuffled", "other", "gone")


@st.composite
def changed_columns(draw: st.DrawFn) -> dict[str, Any]:
    """The columns of a run with something wrong in one to four of them."""
    columns = dict(columns_of(draw(st.sampled_from(["cpu", "cuda"]))))
    for _ in range(draw(st.integers(1, 4))):
        name, how = draw(st.sampled_from(sorted(columns))), draw(st.sampled_from(CHANGES))
        column = columns[name].copy()
        at = draw(st.integers(0, max(0, len(column) - 1)))
        if how == "gone":
            del columns[name]
            continue
        if not len(column) or how == "longer":
            column = np.concatenate([column, column[at : at + 1] if len(column) else np.zeros(1, column.dtype)])
        elif how == "cut":
            column = column[:at]
        elif how == "shuffled":
            column = np.roll(column, at)
        elif how == "same":
            column[:] = column[at]
        elif column.dtype.kind == "b":
            column[at] = not column[at]
        elif column.dtype.kind == "i" and how == "odd":
            column[at] = draw(ODD)
        elif column.dtype.kind == "i" and how == "near":
            column[at] = np.add(column[at], draw(st.sampled_from([-512, -1, 1, 512])))
        else:
            column[at] = column[draw(st.integers(0, len(column) - 1))]
        columns[name] = column
    if draw(st.booleans()):
        run = json.loads(columns_of("cuda")["run"].tobytes())
        with suppress(TypeError):  # of bytes, which JSON does not have
            text = json.dumps(mutate_objects(run, draw(st.randoms(use_true_random=False))))
            columns["run"] = np.frombuffer(text.encode(), np.uint8)
    return columns


@settings(max_examples=25)
@given(columns=changed_columns())
def test_changed_columns_are_refused_or_are_those_of_a_run(columns: dict[str, Any]) -> None:
    try:
        kept = kept_run_from(columns)
    except RecordingError as error:
        assert error.hint
        return
    for cycle in kept.cycles:
        recording = cycle.recording
        for rows, num_rows in (
            (recording.allocations.key, len(recording.keys.id)),
            (recording.allocations.op, len(recording.ops.name)),
            (recording.ops.call, len(recording.calls.kind)),
            (recording.ops.name, len(recording.strings)),
            (recording.calls.frame, len(recording.frames.file)),
            (recording.flow.edge_key, len(recording.keys.id)),
        ):
            assert all(-1 <= row < num_rows for row in rows.tolist())


def explain(kept: KeptRun, folder: Path) -> None:
    """All that a report does, but for the page, whose writing costs more than all else."""
    results = results_of(kept)
    write_outputs(results, folder, leave_out=["memory-timeline"])
    answer_screen(results.answer)


@settings(max_examples=15)
@given(columns=changed_columns())
def test_a_report_of_changed_columns_ends_in_files_or_in_a_sentence(
    columns: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with suppress(TracerError):
        explain(kept_run_from(columns), tmp_path_factory.mktemp("report"))


@pytest.mark.slow
@settings(max_examples=25)
@given(random=st.randoms(use_true_random=False))
def test_a_report_of_a_changed_history_ends_in_files_or_in_a_sentence(
    random: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = load_history(kept_on_cuda().snapshot, random)
    if kept is not None:
        explain(kept, tmp_path_factory.mktemp("report"))


def load_history(snapshot: Any, random: Any) -> KeptRun | None:
    """A run with a history in which one place is changed; None where no file has it."""
    copied = json.loads(json.dumps(snapshot))
    copied["device_traces"][0] = copied["device_traces"][0][-60:]
    try:
        return kept_run_from(columns_of("cuda") | history(mutate_objects(copied, random)))
    except RecordingError:
        return None
