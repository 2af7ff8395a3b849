"""run_time_report.sqlite: Skyline's own reader gets back what was put in."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.analysis.snapshots.test_findings import load
from tests.exporters.snapshot_samples import out_of_memory
from tests.exporters.sqlite_reports.report_readers import R4, dump, query, shape
from tests.exporters.sqlite_reports.test_snapshot_report import written as snapshot_written
from tests.report_workloads import REPORT_WORKLOADS
from tests.training_steps import ONE_OF_EACH, recorded_workload
from tracer.analysis.operators.memory_report import memory_report
from tracer.analysis.operators.run_times import BookkeepingRow, DeviceTime, RunTimeRow, RunTimes, StepTime, run_times
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.findings import find_in_cycle, put_together
from tracer.capture.objects.parameter_origins import describe_parameters
from tracer.capture.sources.source_files import ProjectFiles
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.sqlite_reports.memory_report import write_memory_report
from tracer.exporters.sqlite_reports.run_time_report import write_run_time_report

skyline = pytest.importorskip("skyline.tracking.time.report", reason="needs the package skyline-cli")

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "reports.md"
NAMES = [*ONE_OF_EACH, *REPORT_WORKLOADS]


@cache
def times(name: str) -> RunTimes:
    run = recorded_workload(name)
    model = run.workload.model
    names = {id(module): path for path, module in model.named_modules()} if model is not None else {}
    return run_times([(recording, attribute(recording, module_names=names)) for recording in run.recordings])


def written(what: RunTimes, folder: Path) -> Path:
    path = folder / "run_time_report.sqlite"
    write_run_time_report(what, path, relative=ProjectFiles(ROOT), settings={"device": "cpu"})
    return path


def by_hand() -> RunTimes:
    frames = (
        SourceLine(str(ROOT / "models" / "net.py"), 7),
        SourceLine("/elsewhere/x.py", 1),
        SourceLine(str(ROOT / "run.py"), 3),
    )
    rows = (
        RunTimeRow("conv2d", 1_500_000, 3e6, 1_500_000, 3e6, 0, "net.conv", frames, 0, 1, ((8, 3),), 3),
        RunTimeRow("argmax", 20_000, None, 20_000, None, 0, None, (), 0, 1, (), 3),
    )
    step = StepTime(0, "ProfilerStep#1", 10_000_000, 2_000_000, 1_520_000, 80_000, 400_000, 3_000_000, 3_000_000, 0, 0,
                    4_000_000, 1_000_000)  # fmt: skip
    return RunTimes(rows, (BookkeepingRow("view", 4, 80_000, 0),), (step,), "host")


def test_structure_is_that_of_skylines_own_file(tmp_path: Path) -> None:
    golden = tmp_path / "golden.sqlite"
    skyline.OperationRunTimeReportBuilder(str(golden)).build()
    ours, theirs = shape(written(by_hand(), tmp_path)), shape(golden)
    assert {name: ours.get(name) for name in theirs} == theirs
    own = {"run_time_details", "bookkeeping_operations", "step_times", "device_time", "format", "settings"}
    assert set(ours) - set(theirs) == own


def test_example_by_hand_comes_back(tmp_path: Path) -> None:
    path = written(by_hand(), tmp_path)
    tables = dump(path)
    assert tables["run_time_entries"] == [(1, "conv2d", 1.5, 3.0), (2, "argmax", 0.02, None)]
    assert tables["stack_frames"] == [(0, "models/net.py", 7, 1), (1, "run.py", 3, 1)]
    assert tables["run_time_details"] == [
        (1, "net.conv", "forward", 0, 1, "[[8, 3]]", 3, 1.5, 3.0, 0.0),
        (2, None, "forward", 0, 1, "[]", 3, 0.02, None, 0.0),
    ]
    assert tables["bookkeeping_operations"] == [("view", 4, 0.08, 0.0)]
    assert tables["step_times"] == [(0, "ProfilerStep#1", 10.0, 2.0, 1.52, 0.08, 0.4, 3.0, 3.0, 0.0, 0.0, 4.0, 1.0)]
    assert query(path, "SELECT * FROM time_by_module") == [("net.conv", 1, 1.5, 3.0), (None, 1, 0.02, 0.0)]


@pytest.mark.parametrize("name", NAMES)
def test_skylines_reader_returns_what_was_put_in(name: str, tmp_path: Path) -> None:
    what = times(name)
    path, files = written(what, tmp_path), ProjectFiles(ROOT)
    expected = []
    for row in what.rows:
        named = ((files(frame.file), frame.line) for frame in row.frames)
        file, line = next((frame for frame in named if frame[0] is not None), (None, None))
        backward = None if row.backward_ns is None else row.backward_ns / 1e6
        expected.append((row.name, row.forward_ns / 1e6, backward, file, line))
    reader = skyline.OperationRunTimeReport(sqlite3.connect(path))
    assert sorted(map(tuple, reader.get_run_time_entries()), key=repr) == sorted(expected, key=repr)
    assert sorted(query(path, R4), key=repr) == sorted(expected, key=repr)
    in_order = query(path, "SELECT operation_name FROM run_time_entries ORDER BY id")
    assert [name for (name,) in in_order] == [row.name for row in what.rows]
    assert all(
        isinstance(value, (int, float, str, type(None))) for rows in dump(path).values() for r in rows for value in r
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "every_other_step"])
def test_rows_and_the_rest_are_the_measured_steps(name: str, tmp_path: Path) -> None:
    path = written(times(name), tmp_path)
    ((rows, backward),) = query(path, "SELECT TOTAL(forward_ms), TOTAL(backward_ms) FROM run_time_entries")
    (means,) = query(path, "SELECT * FROM untracked_time")
    forward, _, bookkeeping, python, whole, _, booked, unclaimed, *_ = [mean or 0.0 for mean in means]
    rest, rest_of_backward = bookkeeping + python, booked + unclaimed
    assert rows + rest == pytest.approx(forward, rel=1e-9)
    assert backward + rest_of_backward == pytest.approx(whole, rel=1e-9)
    ((by_module,),) = query(path, "SELECT TOTAL(forward_ms) FROM time_by_module")
    ((by_line,),) = query(path, "SELECT TOTAL(forward_ms) FROM time_by_line")
    assert by_module == pytest.approx(rows) and by_line == pytest.approx(rows)


# ----------------------------------------------------------------------------------------------------- the document
def statements(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


def test_the_documents_queries_run_and_have_the_columns_shown(tmp_path: Path) -> None:
    run = recorded_workload("fno_2d_new_zeros")
    model = run.workload.model
    assert model is not None
    names = {id(module): path for path, module in model.named_modules()}
    found = put_together([find_in_cycle(recording, module_names=names) for recording in run.recordings])
    memory = tmp_path / "memory_report.sqlite"
    what = memory_report(found, parameters=describe_parameters(model))
    write_memory_report(what, memory, relative=ProjectFiles(ROOT))
    time = written(times("fno_2d_new_zeros"), tmp_path)
    blocks = re.findall(r"```sql\n-- (\S+)\n(.*?)```\s*```text\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 5
    for file, sql, output in blocks:
        path = {"memory_report.sqlite": memory, "run_time_report.sqlite": time}[file]
        con = sqlite3.connect(path)
        cursor = con.execute(sql)
        assert cursor.fetchall(), sql
        assert [column for column, *_ in cursor.description] == output.splitlines()[0].split()
        con.close()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The reports, by the words of their formats."""
    memory = tmp_path / "memory_report.sqlite"
    what = memory_report(put_together([find_in_cycle(recorded_workload("loop").recordings[0])]))
    write_memory_report(what, memory, relative=ProjectFiles(ROOT))
    of_a_snapshot = snapshot_written(load(tmp_path / "s", out_of_memory()), tmp_path)
    return {"memory": memory, "run-time": written(by_hand(), tmp_path), "snapshot": of_a_snapshot}


def test_the_document_names_every_table_and_column(files: dict[str, Path]) -> None:
    text = DOCUMENT.read_text()
    for path in files.values():
        for kind, name in query(path, "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')"):
            assert f"`{name}`" in text, f"{kind} {name}"
            for column in query(path, f"PRAGMA table_info({name})"):
                assert f"`{column[1]}`" in text, f"{name}.{column[1]}"


def test_the_format_of_our_tables_is_in_the_file_and_in_the_document(files: dict[str, Path]) -> None:
    """Beside `user_version`, which is the originals'."""
    for name, path in files.items():
        assert query(path, "SELECT name, version FROM format") == [(f"torch-timeline {name} report", 1)]
        assert query(path, "PRAGMA user_version") == [(1,)]
        assert f"`torch-timeline {name} report` and 1" in DOCUMENT.read_text()


def test_where_the_devices_time_went(tmp_path: Path) -> None:
    assert dump(written(by_hand(), tmp_path))["device_time"] == []
    on_device = replace(by_hand(), clock="device", device=DeviceTime(10_000_000, 4_000_000, 3_000_000, 0, 3_000_000))
    parts = {"total": 10.0, "forward_rows": 4.0, "backward_rows": 3.0, "bookkeeping": 0.0, "elsewhere": 3.0}
    assert dict(dump(written(on_device, tmp_path))["device_time"]) == parts
