"""recording.npz: what is stored comes back, the document describes it, and what anybody sends is a sentence at most."""

from __future__ import annotations

import io
import json
import pickle
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.exporters.recording_file.samples import SETTINGS, kept_on_cpu, kept_on_cuda
from tests.exporters.recording_file.test_recording_columns import assert_equal
from tests.snapshot.fuzz import mutate_objects
from tracer.capture.kept_run import KeptRun
from tracer.errors import RecordingError, TracerError
from tracer.exporters.recording_file.checked_columns import Columns
from tracer.exporters.recording_file.kept_run_file import (
    FORMAT,
    VERSION,
    kept_run_columns,
    kept_run_from,
    load_kept_run,
    save_kept_run,
)
from tracer.exporters.screen.run import print_results
from tracer.sessions.output_files import write_outputs
from tracer.sessions.stored_results import results_of

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "recording.md"


def test_everything_comes_back(tmp_path: Path) -> None:
    for kept in (kept_on_cpu(), kept_on_cuda()):
        save_kept_run(tmp_path / "recording.npz", kept)
        found = load_kept_run(tmp_path / "recording.npz")
        for one, other in zip(found.cycles, kept.cycles, strict=True):
            assert_equal(one.recording, other.recording)
            assert one.is_whole == other.is_whole
        assert_equal(found.known, kept.known)
        compared = {"cycles": (), "known": None}
        expected = replace(kept, **compared, settings={**SETTINGS, "odd": "[1, 2]"})  # type: ignore[arg-type]
        for name in KeptRun.__dataclass_fields__:
            assert getattr(replace(found, **compared), name) == getattr(expected, name), name  # type: ignore[arg-type]


# ---- the document ----------------------------------------------------------------------------------------------------


def rows(part: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]


def test_the_document_describes_every_column_and_its_type() -> None:
    text = DOCUMENT.read_text("utf-8")
    described: dict[str, str] = {}
    for names, kinds, _ in rows(text.split("## Columns of the run")[1]):
        found, kind = re.findall(r"`([\w.]+)`", names), kinds.split(", ")
        described |= dict(zip(found, kind if len(kind) > 1 else kind * len(found), strict=True))
    there: dict[str, str] = {}
    for name, column in kept_run_columns(kept_on_cuda()).items():
        name = re.sub(r"^cycle\d+", "cycleN", name)
        if name.endswith(".utf8"):
            there[name.removesuffix(".utf8")] = "texts"
        elif name != "run" and f"{name.removesuffix('.ends')}" not in there:
            there[name] = str(column.dtype)
    assert described == there


def test_the_document_describes_every_key_and_names_the_version() -> None:
    text = DOCUMENT.read_text("utf-8")
    part = text.split("\n## run\n")[1].split("\n## ")[0]
    run = json.loads(kept_run_columns(kept_on_cuda())["run"].tobytes())
    assert {key for names, _ in rows(part) for key in re.findall(r"`(\w+)`", names)} == set(run)
    inner = {key for value in (run["cycles"][0], run["timings"]) for key in value}
    assert [key for key in inner if f"`{key}`" not in part] == []
    assert f"Name `{FORMAT}`, version {VERSION}." in text
    assert f"`{FORMAT}` and {VERSION}." in part


# ---- of another version ----------------------------------------------------------------------------------------------


def with_run(**changes: Any) -> Columns:
    columns = kept_run_columns(kept_on_cpu())
    run = json.loads(columns["run"].tobytes()) | changes
    return Columns(columns | {"run": np.frombuffer(json.dumps(run).encode(), np.uint8)})


def test_shapes_of_more_elements_than_a_number_has_are_read() -> None:
    columns = kept_run_columns(kept_on_cuda())
    name = "cycle0.shapes.sizes"
    huge = Columns(columns | {name: np.full_like(columns[name], 1 << 40)})
    assert results_of(kept_run_from(huge)).findings is not None


def test_storages_of_several_shapes_are_refused() -> None:
    columns = columns_of("cpu")
    num_shapes = np.diff(columns["cycle0.shapes.set_ends"], prepend=0)
    shapes = np.full_like(columns["cycle0.keys.shape"], np.flatnonzero(num_shapes > 1)[0])
    with pytest.raises(RecordingError, match="no shape, or several"):
        kept_run_from(Columns(columns | {"cycle0.keys.shape": shapes}))


def test_a_later_version_is_refused_by_its_number() -> None:
    with pytest.raises(RecordingError, match="of format version 3, and this program reads up to 2") as caught:
        kept_run_from(with_run(version=3))
    assert "later" in caught.value.hint


def test_an_earlier_version_is_refused_by_its_number() -> None:
    with pytest.raises(RecordingError, match="of format version 1, which is not read any more") as caught:
        kept_run_from(with_run(version=1))
    assert "profile again" in caught.value.hint


def test_what_came_later_is_passed_over() -> None:
    columns = kept_run_columns(kept_on_cpu())
    kept = kept_run_from(Columns(columns | {"cycle0.ops.flops": np.arange(3), "more": np.ones(2)}))
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
        ({"cycles": [{"is_whole": 1, "num_events": 5}] * 2}, "is_whole"),
        ({"cycles": [5, 5]}, "cycles"),
        ({"cycles": [{"is_whole": True, "num_events": 5}] * 3}, "no column cycle2"),
        ({"cycles": [{}] * 20_000}, "cycles"),
        ({"settings": []}, "settings"),
        ({"notes": ["a", 5]}, "notes"),
        ({"num_steps": 1.5}, "num_steps"),
        ({"num_steps": True}, "num_steps"),
        ({"timings": {"device": "cpu"}}, "clock"),
        ({"command": None}, "command"),
    ],
)
def test_a_run_that_is_not_described_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecordingError, match=complaint) as caught:
        kept_run_from(with_run(**changes))
    assert caught.value.hint


@pytest.mark.parametrize("run", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}"])
def test_what_is_no_document_is_refused(run: bytes) -> None:
    with pytest.raises(RecordingError):
        kept_run_from(Columns(kept_run_columns(kept_on_cpu()) | {"run": np.frombuffer(run, np.uint8)}))


def history(snapshot: Any) -> dict[str, Any]:
    return {"history.pickle": np.frombuffer(pickle.dumps(snapshot, protocol=4), np.uint8)}


@pytest.mark.parametrize("content", [b"", b"cos\nsystem\n(S'true'\ntR.", b"]r\xff\xff\xff\x7f."])
def test_a_history_that_runs_code_or_fills_the_memory_is_refused(content: bytes) -> None:
    columns = kept_run_columns(kept_on_cuda()) | {"history.pickle": np.frombuffer(content, np.uint8)}
    with pytest.raises(RecordingError, match="allocator data is damaged"):
        kept_run_from(Columns(columns))


@pytest.mark.parametrize("snapshot", [[], {}, {"segments": []}, {"segments": [], "device_traces": {}}, "x"])
def test_an_allocator_that_left_no_snapshot_is_refused(snapshot: Any) -> None:
    columns = kept_run_columns(kept_on_cuda())
    with pytest.raises(RecordingError, match="allocator data is damaged"):
        kept_run_from(Columns(columns | history(snapshot)))


ODD = st.sampled_from([-(2**63), -(2**61), -1, 0, 1, 2, 5, 511, 2**31, 2**40, 2**50, 2**61, 2**63 - 1])
CHANGES = ("odd", "near", "cut", "longer", "same", "shuffled", "other", "gone")


@cache
def columns_of(name: str) -> dict[str, Any]:
    return kept_run_columns({"cpu": kept_on_cpu, "cuda": kept_on_cuda}[name]())


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
    return columns


@given(columns=changed_columns())
def test_changed_columns_are_refused_or_are_those_of_a_run(columns: dict[str, Any]) -> None:
    try:
        kept = kept_run_from(Columns(columns))
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
    print_results(results, Console(file=io.StringIO()))


@settings(max_examples=40)
@given(columns=changed_columns())
def test_a_report_of_changed_columns_ends_in_files_or_in_a_sentence(
    columns: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with suppress(TracerError):
        explain(kept_run_from(Columns(columns)), tmp_path_factory.mktemp("report"))


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
        return kept_run_from(Columns(columns_of("cuda") | history(mutate_objects(copied, random))))
    except RecordingError:
        return None
