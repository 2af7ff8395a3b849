from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.allocator.recorded import Program
from tests.snapshot.dumps import REAL_DATA, REAL_FILES, Row, block, entry, frame, freed, segment, snapshot, write
from tests.snapshot.explained import explain_snapshot
from tracer.analysis.kinds import Kind
from tracer.analysis.peak_diff import PeakDiff
from tracer.analysis.snapshots.diff import diff_snapshots
from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding, explain_replayed, replay_snapshot
from tracer.errors import SnapshotError
from tracer.exporters.diff import print_peak_diffs
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.exporters.screen.snapshot import print_snapshot
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot, snapshot_in_memory

BASE = 1 << 32
MIB = 1 << 20
TORCH = "/usr/lib/python3.11/site-packages/torch"

UNWIND = frame("torch::unwind::unwind()", "??", 0)
MALLOC = frame("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)", "??", 0)
EMPTY = frame("at::detail::empty_cuda(c10::ArrayRef<long>)", "??", 0)
MUL = frame("at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)", "??", 0)
EVAL = frame("_PyEval_EvalFrameDefault", "??", 0)
ENGINE = frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0)
NODE = frame("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0)
ACCUMULATE = frame("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??", 0)
RELEASE = frame("torch::autograd::generated::MmBackward0::release_variables()", "??", 0)
WORKSPACE = frame("at::cuda::getNewWorkspace()", "??", 0)
STEP = frame("wrapper", f"{TORCH}/optim/optimizer.py", 500)
INIT_GROUP = frame("_init_group", f"{TORCH}/optim/adamw.py", 120)
ZERO = frame("zero_grad", f"{TORCH}/optim/optimizer.py", 900)
APPLY = frame("_apply", f"{TORCH}/nn/modules/module.py", 900)
LINEAR = frame("linear", f"{TORCH}/nn/functional.py", 20)
EINSUM = frame("einsum", "/usr/lib/python3.11/site-packages/einops/einops.py", 20)
MODEL = frame("forward", "/home/me/model.py", 7)
MAIN = frame("main", "/home/me/train.py", 70)

FORWARD = [UNWIND, MALLOC, EMPTY, MUL, EVAL, LINEAR, EINSUM, MODEL, EVAL, MAIN]
BACKWARD = [UNWIND, MALLOC, EMPTY, MUL, NODE, ENGINE]
FREE_BACKWARD = [UNWIND, RELEASE, ENGINE]
IN_STEP = [UNWIND, MALLOC, MUL, STEP, MAIN]
FREE_FORWARD = [UNWIND, MODEL, MAIN]


def load(path: Path, objects: Any) -> Snapshot:
    return load_snapshot(write(path, objects), isolated=False)


def explain(path: Path, trace: list[Row], segments: list[Row] | None = None, **more: Any) -> DeviceFinding:
    (device,) = explain_snapshot(load(path, snapshot(trace, segments, **more))).devices
    return device


def check_sums(finding: SnapshotFinding) -> None:
    for device in finding.devices:
        peak = device.peak
        for parts in (peak.groups, peak.by_kind, peak.by_annotation, peak.by_stream):
            assert sum(part.bytes for part in parts) == peak.requested_bytes
        assert sum(g.bytes for g in peak.groups if g.is_before_recording) == peak.before_recording_bytes
        assert all(isinstance(group.kind, Kind) for group in peak.groups)
        for event in device.oom:
            assert sum(group.bytes for group in event.groups) == event.requested_bytes
        assert device.end_requested_bytes - device.start_requested_bytes == device.growth_bytes


def test_an_unknown_device_is_an_error_that_names_the_known(tmp_path: Path) -> None:
    loaded = load(tmp_path / "s", [segment(BASE, 512, [block(BASE, 5)], device=2)])
    assert len(explain_snapshot(loaded, device=2).devices) == 1
    with pytest.raises(SnapshotError) as caught:
        explain_snapshot(loaded, device=0)
    assert "2" in caught.value.hint


def printed(finding: SnapshotFinding, *, top: int = 10) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    print_snapshot(finding, console, file="a[red]b.pickle", top=top)
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def test_the_json_has_the_promised_keys(tmp_path: Path) -> None:
    oom = {"action": "oom", "size": 9, "device_free": 1, "stream": 0, "time_us": 2, "frames": []}
    loaded = load(
        tmp_path / "s",
        snapshot([entry("alloc", BASE, 100, frames=FORWARD), oom], [segment(BASE, 512, [block(BASE, 100)])]),
    )
    shown = json.loads(json.dumps(snapshot_json(explain_snapshot(loaded), file="s")))
    (device,) = shown["devices"]
    assert list(shown)[6:] == ["file", "notes", "pinned_bytes", "worst_device", "devices"]
    assert " ".join(device) == (
        "device entries first_time_us notes peak_entry peak_time_us peak_phase peak_requested_bytes "
        "peak_allocated_bytes reserved_at_peak_bytes before_recording_bytes start_requested_bytes "
        "end_requested_bytes growth_bytes reserved_end_bytes fragmentation_at_peak fragmentation_at_end "
        "by_kind by_annotation by_name by_stream oom groups never_freed"
    )
    (group,) = device["groups"]
    assert list(group)[:3] == ["bytes", "count", "kind"]
    assert list(group)[3:] == ["evidence", "is_before_recording", "frame", "file", "line", "stack", "callers"]
    assert (group["bytes"], group["frame"], group["file"], group["line"]) == (100, "forward", "/home/me/model.py", 7)
    assert (device["peak_requested_bytes"], device["peak_allocated_bytes"]) == (100, 512)
    assert device["oom"][0]["asked_bytes"] == 9


@pytest.mark.parametrize("objects", [[], snapshot([]), snapshot([entry("alloc", BASE, 1)]), [segment(BASE, 512, [])]])
def test_anything_can_be_printed(tmp_path: Path, objects: Any) -> None:
    finding = explain_snapshot(load(tmp_path / "s", objects))
    assert "a[red]b.pickle" in printed(finding)
    check_sums(finding)
    json.loads(json.dumps(snapshot_json(finding, file="s")))


def test_markup_and_rest_in_the_text(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 512 * i, 100 - i, frames=[frame(f"[bold]f{i}")]) for i in range(30)]
    blocks = [block(BASE + 512 * i, 100 - i) for i in range(30)]
    text = printed(explain_snapshot(load(tmp_path / "s", snapshot(trace, [segment(BASE, 1 << 15, blocks)]))), top=3)
    assert "[bold]f2" in text and "[bold]f3" not in text
    assert "27 more" in text


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.stem)
def test_real_recordings_sum_and_print(path: Path) -> None:
    finding = explain_snapshot(load_snapshot(path, isolated=False))
    check_sums(finding)
    assert printed(finding)
    shown = json.loads(json.dumps(snapshot_json(finding, file="s")))
    for device in shown["devices"]:
        assert sum(group["bytes"] for group in device["groups"]) == device["peak_requested_bytes"]


def printed_diff(diffs: tuple[PeakDiff, ...]) -> str:
    out = io.StringIO()
    print_peak_diffs(diffs, Console(file=out, width=120), before="before", after="after")
    return out.getvalue()


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
def test_a_longer_context_is_explained_by_its_activations() -> None:
    short, long = (load_snapshot(REAL_DATA / f"train_423M_ctx{n}.pickle", isolated=False) for n in (128, 512))
    diffs = diff_snapshots(short, long)
    (diff,) = diffs
    assert {sum(change.bytes for change in changes) for changes in diff.changes.values()} == {diff.bytes}
    assert diff.changes["kind"][0].name == ("activation",) and diff.changes["kind"][0].bytes > diff.bytes
    assert (diff.before.phase, diff.after.phase) == ("optimizer", "backward")
    assert "The peak was in the optimizer and is now in backward" in printed_diff(diffs)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["alloc", "free", "oom", "segment_alloc", "segment_free", "segment_map"]),
            st.integers(0, 5),
            st.integers(0, 3000),
            st.sampled_from(
                [FORWARD, BACKWARD, IN_STEP, FREE_BACKWARD, FREE_FORWARD, [ZERO, MAIN], [], [MALLOC, ACCUMULATE]]
            ),
        ),
        max_size=40,
    )
)
def test_any_history_sums(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int, list[Row]]]
) -> None:
    trace: list[Row] = []
    for action, slot, size, frames in rows:
        at = BASE + 4096 * slot
        trace += freed(at, size, frames=frames) if action == "free" else [entry(action, at, size, frames=frames)]
    finding = explain_snapshot(load(tmp_path_factory.mktemp("any") / "s", snapshot(trace)))
    check_sums(finding)
    printed(finding)


def test_a_recording_that_contradicts_itself_says_so(tmp_path: Path) -> None:
    # 1 MiB at BASE, whose free is lost; then 1 MiB in the middle of it, which cannot be.
    trace = [entry("alloc", BASE, MIB), entry("alloc", BASE + 512, MIB)]
    end = [segment(BASE, 4 * MIB, [block(BASE, MIB), block(BASE + 512, MIB)])]
    assert any(
        "contradicts itself: at the peak 1 block lies" in note for note in explain(tmp_path / "s", trace, end).notes
    )
    apart = [segment(BASE, 4 * MIB, [block(BASE, MIB), block(BASE + MIB, MIB)])]
    fine = [entry("alloc", BASE, MIB), entry("alloc", BASE + MIB, MIB)]
    assert explain(tmp_path / "t", fine, apart).notes == ()


@pytest.mark.parametrize("seed", range(40))
def test_entries_that_are_lost_give_no_wrong_peak_in_silence(seed: int) -> None:
    whole = Program(seed).run(150).snapshot()
    (right,) = explain_snapshot(snapshot_in_memory(whole)).devices
    rng, trace = random.Random(seed), whole["device_traces"][0]
    for _ in range(rng.randint(1, 10)):
        del trace[rng.randrange(len(trace))]
    (found,) = explain_snapshot(snapshot_in_memory(whole)).devices
    assert found.peak.requested_bytes == right.peak.requested_bytes or found.notes


def test_what_was_odd_in_the_file_is_a_note(tmp_path: Path) -> None:
    finding = explain_snapshot(load(tmp_path / "s", snapshot([entry("alloc", BASE, 1) | {"stream": None}])))
    assert "stream" in finding.notes[0] and "Note: A stream" in printed(finding)


@pytest.mark.parametrize(
    ("peaks", "is_said"), [((9, 1), True), ((9, 4), True), ((9, 5), False), ((9,), False), ((4, 9, 4), True)]
)
def test_devices_that_hold_unlike_amounts(tmp_path: Path, peaks: tuple[int, ...], is_said: bool) -> None:
    traces = [[entry("alloc", BASE, size * MIB), *freed(BASE, size * MIB)] for size in peaks]
    finding = explain_snapshot(load(tmp_path / "s", {"segments": [], "device_traces": traces}))
    assert any("unevenly" in note for note in finding.notes) is is_said
    if is_said:
        assert f"device {peaks.index(9)} holds 9.00 MiB" in finding.notes[0]


def test_thousands_of_devices_are_not_all_printed(tmp_path: Path) -> None:
    finding = explain_snapshot(
        load(tmp_path / "s", {"segments": [], "device_traces": [[entry("alloc", BASE, 1)]] * 50})
    )
    text = printed(finding)
    assert text.count("\nDevice ") == 32 and "18 more devices" in text


def test_parameters_and_state_from_before_are_a_ratio(tmp_path: Path) -> None:
    # A gradient of 1 MiB and one of 2; of each size three blocks were there: Adam's two states and the parameter.
    node = [MALLOC, ACCUMULATE, ENGINE]
    trace = [entry("alloc", BASE, MIB, frames=node), entry("alloc", BASE + 2 * MIB, 2 * MIB, frames=node)]
    held = [block(BASE + 4 * MIB * i, size * MIB) for i, size in enumerate((1, 1, 1, 2, 2, 2), start=2)]
    blocks = [block(BASE, MIB), block(BASE + 2 * MIB, 2 * MIB), *held]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 64 * MIB, blocks)]))
    (device,) = explain_snapshot(loaded).devices
    said = "3 blocks for each gradient size, 9.00 MiB: probably the parameters (3.00 MiB) and the optimizer state (6.00"
    assert any(said in note for note in device.notes)
    assert {group.kind.words for group in device.peak.groups if group.is_before_recording} == {"before recording"}
    # Whoever recorded it knew what it held: then something does tell them apart.
    known = {each["address"]: Kind.PARAMETER if i % 3 == 0 else Kind.OPTIMIZER_STATE for i, each in enumerate(held)}
    (device,) = explain_replayed(replay_snapshot(loaded, held=known)).devices
    assert {group.kind for group in device.peak.groups if group.is_before_recording} == set(known.values())
    assert not any("gradient of their size" in note for note in device.notes)


def test_pinned_host_memory_is_summed_up(tmp_path: Path) -> None:
    blocks = [block(BASE + 4096 * at, 9) | {"size": 4096} for at in range(3)]
    finding = explain_snapshot(load(tmp_path / "s", snapshot([], host_segments=[segment(BASE, 1 << 16, blocks)])))
    assert finding.pinned_bytes == 3 * 4096
    assert "12.00 KiB of the host's memory are pinned at the end." in printed(finding)


def test_what_was_there_before_and_is_not_known_is_called_from_before(tmp_path: Path) -> None:
    end = [segment(BASE, 8 * MIB, [block(BASE, 3 * MIB), block(BASE + 4 * MIB, MIB)])]
    device = explain(tmp_path / "s", [entry("alloc", BASE + 4 * MIB, MIB, frames=FORWARD)], end)
    assert device.peak.by_category == {"BEFORE_RECORDING": 3 * MIB, "UNKNOWN": MIB}
    without_history = explain(tmp_path / "s", [], [segment(BASE, 8 * MIB, [block(BASE, 3 * MIB)])])
    assert without_history.peak.by_category == {"UNKNOWN": 3 * MIB}


@pytest.mark.parametrize(("count", "is_full"), [(1000, True), (998, False)])
def test_a_round_number_of_entries_behind_memory_in_use_is_a_full_ring(
    tmp_path: Path, count: int, is_full: bool
) -> None:
    trace = [entry(action, BASE, 512) for _ in range(count // 2) for action in ("alloc", "free_completed")]
    before = [segment(BASE, 4 * MIB, [block(BASE + MIB, MIB)])]
    notes = explain(tmp_path / "s", trace, before).notes
    assert any("exactly 1,000 entries" in note for note in notes) == is_full
