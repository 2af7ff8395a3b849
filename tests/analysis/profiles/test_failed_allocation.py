"""Out of memory with the kinds that the recording of the failing step knows, beside what the history knows alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.exporters.recording_file.samples import on_cuda
from tests.histories import START_NS, Event, known_of, recording_of
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.failed_allocation import failed_allocation, held_at_failure, held_now
from tracer.analysis.profiles.findings import find_in_cycle, put_together
from tracer.analysis.snapshots.kind_finder import NOTHING_HELD
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.results.run_history import RunHistory
from tracer.snapshot.load import snapshot_in_memory


def bytes_by_kind(found: OutOfMemory) -> dict[str, int]:
    sums: dict[str, int] = {}
    for group in found.groups:
        sums[group.kind.words] = sums.get(group.kind.words, 0) + group.bytes
    return sums


def test_the_recording_says_what_the_history_does_not_know() -> None:
    """Memory runs out where most is in use: the history has addresses, and in these lines of torch no stack of ours."""
    results = on_cuda()
    assert results.snapshot is not None
    trace = results.snapshot["device_traces"][0]
    change = {"alloc": 1, "free_completed": -1}
    in_use = np.cumsum([change.get(entry["action"], 0) * entry["size"] for entry in trace])
    peak = int(np.argmax(in_use))
    failed = {"action": "oom", "size": 1 << 40, "device_free": 5, "stream": 0, "frames": [], "time_us": 1}
    trace.insert(peak + 1, failed)
    history = RunHistory(results.snapshot)
    assert results.findings is not None and history.columns is not None
    findings = history.joined(results.findings, results.known)
    with_recording = history.failed_allocation(findings, results.known, "cuda:0")
    alone = failed_allocation(history.columns, None, results.known, device_type="cuda")
    assert with_recording is not None and alone is not None
    known, before = bytes_by_kind(with_recording.event), bytes_by_kind(alone.event)
    assert sum(known.values()) == sum(before.values()) == with_recording.event.requested_bytes
    assert before["not known"] > 0
    assert "not known" not in known
    assert with_recording.event.asked_bytes == alone.event.asked_bytes == 1 << 40
    found = with_recording.in_use
    assert found is not None and alone.in_use is None
    assert sum(row.bytes for row in found.rows) == with_recording.event.requested_bytes == found.allocator_peak_bytes
    assert found.rows == findings.worst.peak.rows, "memory ran out at the peak"
    rows_by_kind: dict[str, int] = {}
    for row in found.rows:
        words = Kind[row.category].words
        rows_by_kind[words] = rows_by_kind.get(words, 0) + (row.requested_bytes or 0)
    assert rows_by_kind == known


def test_without_a_failure_there_is_nothing_to_explain() -> None:
    results = on_cuda()
    assert results.snapshot is not None
    columns = snapshot_in_memory(results.snapshot)
    assert failed_allocation(columns, results.findings, results.known, device_type="cuda") is None


@pytest.mark.parametrize("role", Role)
def test_each_role_that_was_observed_is_told(role: Role) -> None:
    """What a walk finds is named by its role, or is at least known to be held; idle memory is neither."""
    now = held_now(known_of((0, 64, 8, role, "x")), "cpu")
    assert (64 in now.named or 64 in now.kept_by_graphs or 64 in now.reached) == (role != Role.IDLE)


def test_another_device_holds_nothing_of_it() -> None:
    assert held_now(known_of((0, 64, 8, Role.PARAMETER, "x"), device="cuda:1"), "cuda:0") == NOTHING_HELD


def with_walks(*times: int) -> KnownStorages:
    """A parameter at 64 that is seen at 0 and at 9, and what lies at 128: saved at 0, an optimizer's state at 9."""
    known = known_of(
        (0, 64, 8, Role.PARAMETER, "weight"),
        (0, 128, 8, Role.SAVED, ""),
        (9, 64, 8, Role.PARAMETER, "weight"),
        (9, 128, 8, Role.OPTIMIZER_STATE, "weight.exp_avg"),
    )
    return replace(known, walks_ns=np.array(times, np.int64) + START_NS)


def test_a_failure_is_told_by_the_last_walk_alone() -> None:
    now = held_at_failure(with_walks(0, 9), "cpu", None)
    assert now.named == {64: Kind.PARAMETER, 128: Kind.OPTIMIZER_STATE}
    assert not now.kept_by_graphs


def test_without_a_walk_nothing_is_told() -> None:
    assert held_at_failure(with_walks(), "cpu", None) == NOTHING_HELD


def test_a_walk_from_before_a_recorded_event_tells_nothing_of_the_failure() -> None:
    """An event at 5: the walk at 0 was before that cycle, and what lies at its addresses may be something else."""
    recording = recording_of([Event(0, 100, 1, at_ns=5)])
    findings = put_together([find_in_cycle(recording)])
    assert held_at_failure(with_walks(0), "cpu", findings) == NOTHING_HELD
    assert held_at_failure(with_walks(0, 9), "cpu", findings).named
