"""The two SQLite reports: Skyline's own readers get back what was put in, and nothing of ours is beside it."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.answers.operators.test_memory_report import report
from tests.answers.operators.test_run_times import times
from tests.exporters.report_readers import R1, R2, R3, R4, dump, query, shape
from tests.skips import by_default
from tests.training_steps import ONE_OF_EACH, REPORT_QUICK, REPORT_WORKLOADS, record
from tracer.answers.operators.memory_report import ActivationEntry, MemoryReport, Weight, memory_report
from tracer.answers.operators.run_times import RunTimeRow
from tracer.answers.recording_findings import combine_cycles, find_in_cycle
from tracer.capture.objects.parameter_origins import ParameterOrigins, describe_parameters
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.sources.source_files import ProjectFiles
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.sqlite_reports import write_memory_report, write_run_time_report

memory_reader = pytest.importorskip("skyline.tracking.memory.report", reason="needs the package skyline-cli")
time_reader = pytest.importorskip("skyline.tracking.time.report", reason="needs the package skyline-cli")

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reports.md"
NAMES = by_default([*ONE_OF_EACH, *REPORT_WORKLOADS], {"fno_2d_new_zeros", "convnet", "lbfgs", *REPORT_QUICK})

FRAMES = (
    SourceLine(str(ROOT / "models" / "net.py"), 7),
    SourceLine("/elsewhere/run.py", 3),
    SourceLine(str(ROOT / "run.py"), 10),
)
MEMORY_BY_HAND = MemoryReport(
    peak_bytes=12345,
    weights=(Weight("conv.weight", 100, 100, FRAMES[:1]), Weight("head.bias", 20, 0, ())),
    activations=(ActivationEntry("conv2d", 4096, FRAMES), ActivationEntry("linear", 64, ())),
)
TIMES_BY_HAND = (
    RunTimeRow("conv2d", 1_500_000, 3e6, "net.conv", FRAMES, 3),
    RunTimeRow("argmax", 20_000, None, None, (), 3),
)


def memory_written(what: MemoryReport, folder: Path, *, root: Path = ROOT) -> Path:
    path = folder / "memory_report.sqlite"
    write_memory_report(what, path, relative=ProjectFiles(root))
    return path


def times_written(rows: tuple[RunTimeRow, ...], folder: Path) -> Path:
    path = folder / "run_time_report.sqlite"
    write_run_time_report(rows, path, relative=ProjectFiles(ROOT))
    return path


def all_written(folder: Path) -> dict[str, Path]:
    return {
        "memory": memory_written(MEMORY_BY_HAND, folder),
        "time": times_written(TIMES_BY_HAND, folder),
    }


def test_structure_is_that_of_skylines_own_files(tmp_path: Path) -> None:
    memory, time = tmp_path / "golden_memory.sqlite", tmp_path / "golden_time.sqlite"
    memory_reader.MemoryReportBuilder(str(memory)).add_misc_entry(memory_reader.MiscSizeType.PeakUsageBytes, 0).build()
    time_reader.OperationRunTimeReportBuilder(str(time)).build()
    ours = {name: shape(path) for name, path in all_written(tmp_path).items()}
    assert ours == {"memory": shape(memory), "time": shape(time)}
    assert ours["memory"]["user_version"] == 1


def test_memory_by_hand_comes_back(tmp_path: Path) -> None:
    assert dump(memory_written(MEMORY_BY_HAND, tmp_path)) == {
        "weight_entries": [(1, "conv.weight", 100, 100), (2, "head.bias", 20, 0)],
        "activation_entries": [(1, "conv2d", 4096), (2, "linear", 64)],
        "entry_types": [(1, "Weight"), (2, "Activation")],
        # Weights first; an entry without frames has a number too.
        "stack_correlation": [(1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 2, 2)],
        # Innermost first, without gaps where a file is not of the project.
        "stack_frames": [(1, 0, "models/net.py", 7), (3, 0, "models/net.py", 7), (3, 1, "run.py", 10)],
        "misc_sizes": [("peak_usage_bytes", 12345)],
    }


def test_times_by_hand_come_back(tmp_path: Path) -> None:
    assert dump(times_written(TIMES_BY_HAND, tmp_path)) == {
        "run_time_entries": [(1, "conv2d", 1.5, 3.0), (2, "argmax", 0.02, None)],
        "stack_frames": [(0, "models/net.py", 7, 1), (1, "run.py", 10, 1)],
    }


def test_text_of_a_recording_is_a_value(tmp_path: Path) -> None:
    evil = "x'); DROP TABLE weight_entries; --"
    tables = dump(memory_written(replace(MEMORY_BY_HAND, weights=(Weight(evil, 7, 0, ()),)), tmp_path))
    assert tables["weight_entries"] == [(1, evil, 7, 0)]


def first_line(frames: tuple[SourceLine, ...]) -> tuple[str | None, int | None]:
    files = ProjectFiles(ROOT)
    return next(((file, frame.line) for frame in frames if (file := files(frame.file)) is not None), (None, None))


def same_rows(*found: Any) -> None:
    first, *others = (sorted(map(tuple, rows), key=repr) for rows in found)
    for other in others:
        assert other == first


@pytest.mark.parametrize("name", NAMES)
def test_skylines_readers_return_what_was_put_in(name: str, tmp_path: Path) -> None:
    what, rows = report(name), times(name)
    memory, time = memory_written(what, tmp_path), times_written(rows, tmp_path)
    reader = memory_reader.MemoryReport(sqlite3.connect(memory))
    weights = [(w.name, w.size_bytes, w.grad_size_bytes, *first_line(w.frames)) for w in what.weights]
    same_rows(reader.get_weight_entries(), query(memory, R1), weights)
    activations = [(a.name, a.size_bytes, *first_line(a.frames)) for a in what.activations]
    same_rows(reader.get_activation_entries(), query(memory, R2), activations)
    assert reader.get_misc_entry(memory_reader.MiscSizeType.PeakUsageBytes) == what.peak_bytes > 0
    assert query(memory, R3, "peak_usage_bytes") == [(what.peak_bytes,)]

    backward_ms = [None if row.backward_ns is None else row.backward_ns / 1e6 for row in rows]
    entries = [
        (row.name, row.forward_ns / 1e6, backward, *first_line(row.frames))
        for row, backward in zip(rows, backward_ms, strict=True)
    ]
    entry_reader = time_reader.OperationRunTimeReport(sqlite3.connect(time))
    same_rows(entry_reader.get_run_time_entries(), query(time, R4), entries)
    in_order = query(time, "SELECT operation_name FROM run_time_entries ORDER BY id")
    assert [name for (name,) in in_order] == [row.name for row in rows]
    assert all(
        isinstance(value, (int, float, str, type(None)))
        for path in (memory, time)
        for values in dump(path).values()
        for row in values
        for value in row
    )


def test_sequential_in_a_script_has_rows_with_lines(tmp_path: Path) -> None:
    """Everything in one file, no class of the user's, which left the originals without a single row."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(\n"
        "    torch.nn.Linear(4, 8),\n"
        "    torch.nn.ReLU(),\n"
        ")\n"
        "def step():\n"
        "    model(torch.randn(2, 4)).sum().backward()\n"
        "    model.zero_grad()\n"
    )
    module = ModuleType("script")
    with ParameterOrigins():
        exec(compile(script.read_text(), str(script), "exec"), module.__dict__)
    found = combine_cycles([find_in_cycle(read_recording(one)) for one in record(module.step)])
    what = memory_report(found, parameters=describe_parameters(module.model))
    path = memory_written(what, tmp_path, root=tmp_path)
    assert query(path, R1) == [("0.weight", 128, 128, "script.py", 3), ("0.bias", 32, 32, "script.py", 3)]
    assert query(path, R2) == [("linear", 32, "script.py", 7), ("relu", 64, "script.py", 7)]


# ----------------------------------------------------------------------------------------------------- the document
def test_the_documents_queries_run_and_have_the_columns_shown(tmp_path: Path) -> None:
    name = "fno_2d_new_zeros"
    files = {
        "memory_report.sqlite": memory_written(report(name), tmp_path),
        "run_time_report.sqlite": times_written(times(name), tmp_path),
    }
    blocks = re.findall(r"```sql\n-- (\S+)\n(.*?)```\s*```text\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for file, sql, output in blocks:
        with sqlite3.connect(files[file]) as connection:
            cursor = connection.execute(sql)
            assert cursor.fetchall(), sql
            assert [column for column, *_ in cursor.description] == output.splitlines()[0].split()


def test_the_document_names_every_table_and_column(tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    for path in all_written(tmp_path).values():
        for (table,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'"):
            for column in query(path, f"PRAGMA table_info({table})"):
                assert f"`{table}`" in text and f"`{column[1]}`" in text, f"{table}.{column[1]}"
