"""What is expensive is worked out once in a run, whoever asks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.exporters.recording_file.samples import on_cpu, on_cuda
from tests.snapshot.dumps import block, frame, segment, snapshot
from tests.watched import report_of
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.peak import SnapshotRow
from tracer.capture.objects.storage_observer import StorageObserver
from tracer.null_gpu import cudnn
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results import null_run, run_history
from tracer.results.run_history import RunHistory
from tracer.results.watch_report import WatchReport
from tracer.sessions import output_files as outputs
from tracer.sessions.output_files import write_outputs
from tracer.snapshot import load

BASE, MIB = 1 << 32, 1 << 20
NOTHING_KNOWN = StorageObserver().observations()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(load, "snapshot_in_memory")
    count(run_history, "with_allocator_history")
    count(outputs, "op_instances")
    return found


def test_a_history_tells_how_much_host_memory_is_pinned() -> None:
    """The cache keeps a fourth block, which nothing uses."""
    blocks = [
        block(BASE + MIB * at, size * MIB, frames=[frame("load", line=line)], state=state)
        for at, size, line, state in (
            (0, 1, 7, "active_allocated"), (1, 3, 9, "active_allocated"), (4, 1, 7, "active_pending_free"),
            (5, 8, 5, "inactive"),
        )
    ]  # fmt: skip
    history = RunHistory(snapshot([], host_segments=[segment(BASE, 16 * MIB, blocks)]))
    assert history.pinned_bytes == 5 * MIB
    assert RunHistory(None).pinned_bytes == RunHistory(snapshot([])).pinned_bytes == 0


def test_a_history_becomes_columns_once(calls: Counter[str]) -> None:
    results = on_cuda(oom=True)
    assert results.findings is not None
    history = RunHistory(results.snapshot)
    assert history.joined(results.findings, results.known).cycles[-1].history is not None
    failed = history.failed_allocation(results.findings, results.known, "cuda:0")
    assert failed is not None
    assert failed.event.asked_bytes == 1 << 40
    assert failed.first is not None and failed.first.num_failed == 1
    assert history.columns is not None
    assert calls == {"snapshot_in_memory": 2, "with_allocator_history": 1}  # once more with what the blocks are


def test_a_history_that_cannot_be_read_is_read_once_and_is_one_note(calls: Counter[str]) -> None:
    results = on_cuda()
    assert results.findings is not None
    history = RunHistory({"dump": 1})
    assert history.joined(results.findings, results.known) is results.findings
    assert history.failed_allocation(results.findings, results.known, "cuda:0") is None
    assert calls == {"snapshot_in_memory": 1}
    (note,) = history.notes
    assert note.startswith("Requested sizes and segments are left out: ")


def test_without_a_history_there_is_nothing_to_read(calls: Counter[str]) -> None:
    findings = on_cpu().findings
    assert findings is not None
    history = RunHistory(None)
    assert history.joined(findings, NOTHING_KNOWN) is findings
    assert (history.columns, history.failed_allocation(None, NOTHING_KNOWN, "cpu")) == (None, None)
    assert not calls


def test_the_files_join_nothing_anew_and_find_the_invocations_of_each_cycle_once(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = on_cuda()
    assert results.findings is not None
    calls.clear()
    monkeypatch.setattr("tracer.analysis.profiles.allocator_join.join_entries", None)
    assert [one.error for one in write_outputs(results, tmp_path)] == [None] * 8
    # Once as it is, and once more with what the blocks are.
    assert calls == {"op_instances": len(results.findings.cycles), "snapshot_in_memory": 2}


# ------------------------------------------------------------------------------------------------------------- null run
def notes_with(*operators: str) -> tuple[str, ...]:
    ops = SimpleNamespace(name=np.arange(len(operators)))
    findings: Any = SimpleNamespace(cycles=[SimpleNamespace(recording=SimpleNamespace(strings=operators, ops=ops))])
    return null_run.notes_of(findings)


@pytest.mark.parametrize(("operator", "is_said"), [("aten::convolution", True), ("prims::convert_element_type", False)])
def test_of_cudnn_is_spoken_where_there_is_a_convolution(
    operator: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "answered_version", lambda: 0)
    monkeypatch.setattr(NcclBuffers, "of_this_process", NcclBuffers)
    assert any("cuDNN" in note for note in notes_with("aten::mm", operator)) == is_said


# --------------------------------------------------------------------------------------------------------- watch report
def group(kind: Kind, size: int) -> SnapshotRow:
    return SnapshotRow(size, 1, kind.name, None, "", "", None, "f", "a.py", 1)


def test_kinds_sum_to_the_groups_the_largest_first() -> None:
    groups = (group(Kind.HELD, 3), group(Kind.PARAMETER, 5), group(Kind.HELD, 4))
    report: WatchReport = report_of(groups=groups)
    assert list(report.by_kind().items()) == [("held", 7), ("parameter", 5)]
