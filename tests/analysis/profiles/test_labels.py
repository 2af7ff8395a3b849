"""Categories, modules and phases on the entries of a snapshot: the profiler's own, and one that the allocator wrote."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.profiles.test_unrecorded_storages import KEYS, WALK, events, with_flow, with_steps
from tests.histories import levels_of, recording_of
from tests.snapshot.explained import explain_snapshot
from tests.training_steps import WORKLOADS, Recorded, build_workload
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.allocator_join import join_history
from tracer.analysis.profiles.block_lifetimes import follow_blocks
from tracer.analysis.profiles.findings import CycleFindings
from tracer.analysis.profiles.labels import Labels, label_snapshot, labels_of
from tracer.arrays import Int, PerBlock
from tracer.errors import SnapshotError
from tracer.exporters.memory_snapshot import snapshot_of_recording, write_memory_snapshot
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.snapshot.load import load_snapshot, snapshot_in_memory


def profiled(name: str, schedule: Schedule) -> ProfileSession:
    workload = build_workload(name)
    assert workload.model is not None
    with ProfileSession(workload.model, workload.optimizer, schedule=schedule) as session:
        for _ in range(schedule.num_steps):
            workload.step()
            session.step()
    return session


@pytest.fixture(scope="module")
def cycle() -> CycleFindings:
    return profiled("fno_2d_torch_zeros", Schedule(0, 1, 2, 1)).findings.worst


@pytest.fixture(scope="module")
def labels(cycle: CycleFindings) -> Labels:
    blocks = cycle.blocks
    return labels_of(cycle.recording, cycle.attribution, blocks)


def entries(snapshot: dict[str, Any], action: str) -> list[dict[str, Any]]:
    return [entry for entry in snapshot["device_traces"][0] if entry["action"] == action]


def unmade(cycle: CycleFindings) -> PerBlock[Int]:
    """[B] for a history that has made none of the blocks."""
    return np.full(len(cycle.lifetimes.address), -1)


def test_every_allocation_of_ours_has_a_category_and_a_line_of_text(cycle: CycleFindings, labels: Labels) -> None:
    snapshot = snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels)
    allocations = entries(snapshot, "alloc")
    assert len(allocations) == (cycle.lifetimes.allocation >= 0).sum()
    assert {entry["category"] for entry in allocations} >= {"activation", "workspace", "gradient"}
    assert all(entry["frames"][0]["filename"].startswith("<explained as ") for entry in allocations)
    assert any("activation in forward, " in entry["frames"][0]["name"] for entry in allocations)
    # Without this word on some entry the viewer throws.
    assert "unknown" in {entry["category"] for entry in snapshot["device_traces"][0]}


def test_blocks_that_live_on_have_a_line_of_text_too(cycle: CycleFindings, labels: Labels) -> None:
    """It is all that the viewer has to show of a parameter, which no entry allocates."""
    snapshot = snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    living = [block for block in blocks if block["state"] == "active_allocated"]
    address = {
        int(cycle.lifetimes.address[row]): row for row in cycle.lifetimes.alive_at(len(cycle.lifetimes.events) - 1)
    }
    assert len(living) > 10
    for block in living:
        assert block["frames"][0]["filename"].startswith("<explained as ")
        assert block["frames"][0]["name"] == labels.frame[address[block["address"]]]["name"]
    assert "parameter, made before recording" in {block["frames"][0]["name"] for block in living}
    assert all(block["frames"] == [] for block in blocks if block["state"] != "active_allocated")


def joined_with(snapshot: dict[str, Any], cycle: CycleFindings) -> PerBlock[Int]:
    """Entry of device 1 of the history that made each block."""
    history = join_history(snapshot_in_memory(snapshot), "cuda:1", cycle.lifetimes)
    assert history is not None
    return history.entry


def test_labels_reach_the_allocators_own_entries_by_address_and_order(cycle: CycleFindings, labels: Labels) -> None:
    """The allocator's history as CUDA would write it: it began earlier, at addresses that are used again later.

    All entries share one microsecond, so a join by time could not tell them apart.
    """
    theirs = snapshot_of_recording(cycle.recording, cycle.lifetimes)
    earlier = [
        {"action": action, "addr": entry["addr"], "size": 512, "stream": 0, "time_us": 1, "frames": []}
        for entry in entries(theirs, "alloc")[:50]
        for action in ("alloc", "free_requested", "free_completed")
    ]
    trace = [*earlier, *({**entry, "time_us": 1} for entry in theirs["device_traces"][0])]
    theirs["device_traces"] = [[], trace]
    before = copy.deepcopy(theirs)
    entry_of = joined_with(theirs, cycle)
    labelled = label_snapshot(theirs, cycle.lifetimes, labels, entry_of, device_index=1)
    assert theirs == before, "the allocator's own snapshot is left as it is"
    assert (entry_of >= 0).sum() == (cycle.lifetimes.allocation >= 0).sum()
    with pytest.raises(SnapshotError, match="joined with another history"):
        label_snapshot(theirs, cycle.lifetimes, labels, np.where(entry_of >= 0, entry_of - 1, -1), device_index=1)
    named = [entry for entry in labelled["device_traces"][1] if entry["frames"][:1] and "category" in entry]
    expected = snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels)
    assert Counter(entry["category"] for entry in named if entry["action"] == "alloc") == Counter(
        entry["category"] for entry in entries(expected, "alloc")
    )
    assert all(entry["category"] == "unknown" for entry in labelled["device_traces"][1][: len(earlier)])
    assert labelled["segments"] == theirs["segments"], "they are of device 0"
    assert [entry["addr"] for entry in labelled["device_traces"][1]] == [entry["addr"] for entry in trace]


def test_a_snapshot_of_other_devices_stays_as_it_is(cycle: CycleFindings, labels: Labels) -> None:
    other: dict[str, Any] = {"segments": [], "device_traces": [[]]}
    assert label_snapshot(other, cycle.lifetimes, labels, unmade(cycle), device_index=3) == other


def test_blocks_that_live_on_are_labelled_in_their_segments(cycle: CycleFindings, labels: Labels) -> None:
    theirs = snapshot_of_recording(cycle.recording, cycle.lifetimes)
    damaged = {**theirs, "segments": [*theirs["segments"], {"address": 0}]}  # By a segment without blocks
    labelled = label_snapshot(damaged, cycle.lifetimes, labels, unmade(cycle), device_index=0)
    expected = snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels)
    assert labelled["segments"][:-1] == expected["segments"] != theirs["segments"]


def test_a_parameter_is_labelled_with_its_name() -> None:
    session = profiled("convnet", Schedule(0, 1, 1, 1))
    cycle, known = session.findings.worst, session.known
    blocks = cycle.blocks
    texts = [frame["name"] for frame in labels_of(cycle.recording, cycle.attribution, blocks, known=known).frame]
    names = [name for name, _ in build_workload("convnet").model.named_parameters()]
    assert names
    for name in names:
        assert f"parameter {name}, made before recording" in texts


def test_our_own_snapshot_is_read_back_with_what_it_says(tmp_path: Path) -> None:
    """What was there before the recording has no entry and no stack: its kind is in the label alone."""
    session = profiled("convnet", Schedule(0, 1, 1, 1))
    cycle, known = session.findings.worst, session.known
    blocks = cycle.blocks
    labels = labels_of(cycle.recording, cycle.attribution, blocks, known=known)
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels), path)
    (device,) = explain_snapshot(load_snapshot(path)).devices
    by_kind = {share.name: share.bytes for share in device.peak.by_kind}
    by_category = cycle.peak.by_category()
    for kind, category in (("parameter", "PARAMETER"), ("buffer", "BUFFER"), ("activation", "ACTIVATION")):
        assert by_kind[kind] == by_category[category] > 0
    before = [group for group in device.peak.groups if group.is_before_recording]
    assert {group.site.frame for group in before} == {"before recording"}
    # Tensors of other tests may be there, too, such as optimizers' states of more than one kind of program.
    own = [group.kind.words for group in before if group.kind in (Kind.PARAMETER, Kind.BUFFER)]
    assert len(own) == len(set(own)) == 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_snapshot_of_ours_gives_the_same_bytes_by_kind(
    name: str, recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """Whoever reads it back is told what peak.json says, of every workload, to the byte."""
    cycle = recorded(name).cycles[0]
    labels = labels_of(cycle.recording, cycle.attribution, cycle.blocks)
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels), path)
    (device,) = explain_snapshot(load_snapshot(path)).devices
    assert dict(device.peak.by_category) == cycle.peak.by_category()


def test_no_rule_of_the_reader_goes_against_a_label_that_says_only_since_when(
    recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """What the profiler found nothing out about has the sizes of parameters here, and is not taken for one."""
    cycle = recorded("lbfgs").cycles[0]
    labels = labels_of(cycle.recording, cycle.attribution, cycle.blocks)
    is_parameter = cycle.blocks.kind == Kind.PARAMETER
    unknown = [
        {**frame, "filename": f"<explained as {Kind.BEFORE_RECORDING.name.lower()}>"} if taken else frame
        for frame, taken in zip(labels.frame, is_parameter.tolist(), strict=True)
    ]
    category = [
        "unknown" if taken else word for word, taken in zip(labels.category, is_parameter.tolist(), strict=True)
    ]
    path = tmp_path / "memory_snapshot.pkl"
    snapshot = snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=Labels(category, unknown, labels.line))
    write_memory_snapshot(snapshot, path)
    (device,) = explain_snapshot(load_snapshot(path)).devices
    expected = cycle.peak.by_category()
    parameters_bytes = expected.pop("PARAMETER")
    expected["BEFORE_RECORDING"] = expected.get("BEFORE_RECORDING", 0) + parameters_bytes
    assert dict(device.peak.by_category) == expected


def test_what_was_made_unseen_is_in_the_snapshot_from_where_it_counts(tmp_path: Path) -> None:
    recording = with_flow(with_steps(recording_of(events(8), KEYS), 0, 35), (12, 1), (22, 1), (28, 0), (52, 1), (62, 0))
    lifetimes = follow_blocks(recording, WALK, 0)
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(recording, lifetimes), path)
    (device,) = explain_snapshot(load_snapshot(path)).devices
    assert device.peak.requested_bytes == max(levels_of(lifetimes))
