"""The memory report of a snapshot, as Skyline's own readers and plain queries see it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.analysis.snapshots.test_findings import BASE, MIB, load
from tests.exporters.snapshot_samples import out_of_memory
from tests.exporters.sqlite_reports.report_readers import R1, R2, R3, dump, query, shape
from tests.snapshot.dumps import REAL_FILES, block, entry, frame, segment, snapshot
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.analysis.snapshots.timeline import device_timeline
from tracer.exporters.sqlite_reports.memory_report import write_snapshot_report
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot

EXTRA = (
    *("entry_counts", "peak_by_category", "devices", "peak_groups", "out_of_memory", "timeline"),
    *("format", "settings"),
)
skyline = pytest.importorskip("skyline.tracking.memory.report", reason="needs the package skyline-cli")


def written(loaded: Snapshot, folder: Path) -> Path:
    replayed = replay_snapshot(loaded)
    finding = explain_replayed(replayed)
    shown = finding.worst
    assert shown is not None
    one = replayed.devices[shown]
    timeline = device_timeline(one)
    path = folder / "report.sqlite"
    write_snapshot_report(replayed, finding, shown, timeline, path, settings={"file": "s"})
    return path


def test_structure_is_that_of_skylines_own_file(tmp_path: Path) -> None:
    golden = tmp_path / "golden.sqlite"
    skyline.MemoryReportBuilder(str(golden)).add_misc_entry(skyline.MiscSizeType.PeakUsageBytes, 0).build()
    ours, theirs = shape(written(load(tmp_path / "s", out_of_memory()), tmp_path)), shape(golden)
    assert {name: ours.get(name) for name in theirs} == theirs


def test_example_by_hand(tmp_path: Path) -> None:
    tables = dump(written(load(tmp_path / "s", out_of_memory()), tmp_path))
    assert tables["weight_entries"] == [(1, "build", 2 * MIB, 0)]
    # Two blocks of one stack are one entry, called after the operation that its C++ frames name.
    assert tables["activation_entries"] == [(1, "mul_Tensor", 3 * MIB)]
    assert tables["entry_counts"] == [(1, 1, 1), (2, 1, 2)]
    assert tables["stack_correlation"] == [(1, 1, 1), (2, 1, 2)]
    assert tables["stack_frames"] == [
        (1, 0, "/home/me/model.py", 3),
        (1, 1, "/home/me/train.py", 70),
        (2, 0, "/home/me/model.py", 7),
        (2, 1, "/home/me/train.py", 70),
    ]
    assert tables["misc_sizes"] == [("peak_usage_bytes", 5 * MIB)]
    assert tables["peak_by_category"] == [("ACTIVATION", 3 * MIB), ("PARAMETER", 2 * MIB)]
    (device,) = tables["devices"]
    assert device[:8] == (0, 1, 9, 4, 50, 5 * MIB, 5 * MIB, 8 * MIB), "the last failure with as much in use"
    assert [row[2:6] for row in tables["out_of_memory"]] == [(3, 40, 64 * MIB, MIB), (4, 50, 48 * MIB, MIB)]
    # The start, then the entries at which something changes; the levels of in use, rounded, reserved.
    levels = {row[0]: row[1:] for row in tables["timeline"]}
    assert levels[-1] == (10, 0, 0, 8 * MIB)
    assert levels[2] == (30, 5 * MIB, 5 * MIB, 8 * MIB)
    assert levels[8] == (70, 2 * MIB, 2 * MIB, 8 * MIB)
    assert dict(tables["settings"]) == {"device": "0", "weights' gradients": "not known", "file": "s"}


def test_skylines_reader_opens_it(tmp_path: Path) -> None:
    path = written(load(tmp_path / "s", out_of_memory()), tmp_path)
    reader = skyline.MemoryReport(sqlite3.connect(path))
    (weight,), (activation,) = reader.get_weight_entries(), reader.get_activation_entries()
    assert tuple(weight) == ("build", 2 * MIB, 0, "/home/me/model.py", 3)
    assert tuple(activation) == ("mul_Tensor", 3 * MIB, "/home/me/model.py", 7)
    assert reader.get_misc_entry(skyline.MiscSizeType.PeakUsageBytes) == 5 * MIB
    assert query(path, R1) == [tuple(weight)]
    assert query(path, R2) == [tuple(activation)]
    assert query(path, R3, "peak_usage_bytes") == [(5 * MIB,)]


def test_the_document_names_every_table_and_column(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text("utf-8")
    _, part = text.split("## From an allocator snapshot\n")
    part, *_ = part.split("\n## ")
    for table, rows in shape(written(load(tmp_path / "s", out_of_memory()), tmp_path)).items():
        if table in EXTRA:
            (line,) = [line for line in part.splitlines() if line.startswith(f"| `{table}` |")]
            columns = [f"`{column[1]}`" for column in rows[0]]
            assert line.split(" | ")[1] == ", ".join(columns)


def test_text_of_a_recording_is_a_value(tmp_path: Path) -> None:
    evil = "x'); DROP TABLE devices; --"
    trace = [entry("alloc", BASE, 5, frames=[frame(f"{evil}\ud800", f"/{evil}.py")])]
    path = written(load(tmp_path / "s", snapshot(trace, [segment(BASE, 512, [block(BASE, 5)])])), tmp_path)
    ((function, file, stack),) = query(path, "SELECT function, file_path, stack FROM peak_groups")
    assert (function, file) == (f"{evil}\\ud800", f"/{evil}.py")
    assert json.loads(stack) == [f"{evil}\\ud800 (/{evil}.py:10)"]
    assert query(path, "SELECT COUNT(*) FROM devices") == [(1,)]


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.stem)
def test_real_recordings_sum(path: Path, tmp_path: Path) -> None:
    report = written(load_snapshot(path, isolated=False), tmp_path)
    ((peak,),) = query(report, "SELECT size_bytes FROM misc_sizes")
    assert query(report, "SELECT SUM(size_bytes) FROM peak_by_category") == [(peak,)]
    assert query(report, "SELECT MAX(requested_bytes) FROM timeline") == [(peak,)]
    groups = "SELECT device, SUM(size_bytes) FROM peak_groups GROUP BY device"
    assert query(report, groups) == query(report, "SELECT device, peak_requested_bytes FROM devices ORDER BY device")
    for kind, table in (("parameter", "weight_entries"), ("activation", "activation_entries")):
        of_kind = (
            "SELECT TOTAL(size_bytes) FROM peak_groups JOIN devices USING (device) "
            f"WHERE is_reported AND kind = '{kind}'"
        )
        assert query(report, f"SELECT TOTAL(size_bytes) FROM {table}") == query(report, of_kind)
    reader = skyline.MemoryReport(sqlite3.connect(report))
    assert sorted(map(tuple, reader.get_activation_entries()), key=repr) == sorted(query(report, R2), key=repr)
