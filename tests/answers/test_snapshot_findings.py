"""A snapshot explained, and compared with another."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.allocator.recorded import Program
from tests.answer_screens import answer_screen
from tests.snapshot.dumps import (
    REAL_DATA,
    REAL_FILES,
    Row,
    block,
    each_real_file,
    entry,
    frame,
    freed,
    segment,
    snapshot,
    write,
)
from tests.snapshot.explained import explain_snapshot, real_replayed
from tracer.answers.answer_of_snapshot import answer_of_snapshot
from tracer.answers.difference import PeakDiff, diff_snapshots, differing, match_stacks
from tracer.answers.findings import ReplayedFindings, SnapshotFindings
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.blocks.kinds import Kind
from tracer.errors import SnapshotError
from tracer.exporters.diff import answer_of_diffs
from tracer.exporters.json_documents.snapshot import snapshot_json
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


def explain(path: Path, trace: list[Row], segments: list[Row] | None = None, **more: Any) -> ReplayedFindings:
    (device,) = explain_snapshot(load(path, snapshot(trace, segments, **more))).parts
    return device


def check_sums(finding: SnapshotFindings) -> None:
    for device in finding.parts:
        peak = device.peak
        for parts in (peak.rows, peak.by_kind, peak.by_annotation, peak.by_stream):
            assert sum(part.bytes for part in parts) == peak.peak_bytes
        assert sum(g.bytes for g in peak.rows if g.is_before_recording) == peak.before_recording_bytes
        assert all(isinstance(group.kind, Kind) for group in peak.rows)
        for event in device.failures:
            assert sum(group.bytes for group in event.groups) == event.requested_bytes
        level, blocks = device.source.replay.requested_bytes, device.blocks
        gone = blocks.size_bytes[(blocks.made_at < 0) & (blocks.freed_at < device.source.num_events)].sum()
        assert level[-1] - level[0] == sum(row.bytes for row in device.never_freed) - gone


def test_an_unknown_device_is_an_error_that_names_the_known(tmp_path: Path) -> None:
    loaded = load(tmp_path / "s", [segment(BASE, 512, [block(BASE, 5)], device=2)])
    assert len(explain_snapshot(loaded, device=2).parts) == 1
    with pytest.raises(SnapshotError) as caught:
        explain_snapshot(loaded, device=0)
    assert "2" in caught.value.hint


def printed(finding: SnapshotFindings, *, top: int = 10) -> str:
    return answer_screen(answer_of_snapshot(finding, file="a[red]b.pickle"), width=160, top=top)


def test_the_json_has_the_promised_keys(tmp_path: Path) -> None:
    oom = {"action": "oom", "size": 9, "device_free": 1, "stream": 0, "time_us": 2, "frames": []}
    loaded = load(
        tmp_path / "s",
        snapshot([entry("alloc", BASE, 100, frames=FORWARD), oom], [segment(BASE, 512, [block(BASE, 100)])]),
    )
    shown = json.loads(json.dumps(snapshot_json(explain_snapshot(loaded), file="s")))
    (device,) = shown["devices"]
    assert list(shown)[6:] == ["file", "answer", "notes", "pinned_bytes", "worst_device", "devices"]
    assert " ".join(device) == (
        "device entries first_time_us notes peak_entry peak_time_us peak_phase peak_requested_bytes "
        "peak_allocated_bytes reserved_at_peak_bytes before_recording_bytes start_requested_bytes "
        "end_requested_bytes growth_bytes reserved_end_bytes fragmentation_at_peak fragmentation_at_end "
        "by_kind by_annotation by_name by_stream oom groups never_freed steps"
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
    assert ("a[red]b.pickle" in printed(finding)) is (not finding.parts)
    check_sums(finding)
    json.loads(json.dumps(snapshot_json(finding, file="s")))


def test_markup_and_rest_in_the_text(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 512 * i, 100 - i, frames=[frame(f"[bold]f{i}")]) for i in range(30)]
    blocks = [block(BASE + 512 * i, 100 - i) for i in range(30)]
    text = printed(explain_snapshot(load(tmp_path / "s", snapshot(trace, [segment(BASE, 1 << 15, blocks)]))), top=3)
    assert "[bold]f2" in text and "[bold]f3" not in text
    assert "27 more" in text


@each_real_file
def test_real_recordings_sum_and_print(path: Path) -> None:
    finding = explain_replayed(real_replayed(path))
    check_sums(finding)
    assert printed(finding)
    shown = json.loads(json.dumps(snapshot_json(finding, file="s")))
    for device in shown["devices"]:
        assert sum(group["bytes"] for group in device["groups"]) == device["peak_requested_bytes"]


def printed_diff(diffs: tuple[PeakDiff, ...]) -> str:
    return answer_screen(answer_of_diffs(diffs, before="before", after="after"))


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
def test_a_longer_context_is_explained_by_its_activations() -> None:
    short, long = (load_snapshot(REAL_DATA / f"train_423M_ctx{n}.pickle", isolated=False) for n in (128, 512))
    diffs = diff_snapshots(short, long)
    (diff,) = diffs
    assert {sum(change.bytes for change in changes) for changes in diff.changes.values()} == {diff.bytes}
    assert diff.changes["kind"][0].name == ("activation",) and diff.changes["kind"][0].bytes > diff.bytes
    assert (diff.before.phase, diff.after.phase) == ("optimizer", "backward")
    assert "The peak was in the optimizer and is now in backward" in printed_diff(diffs)


@settings(max_examples=30, deadline=None)
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
    (right,) = explain_snapshot(snapshot_in_memory(whole)).parts
    rng, trace = random.Random(seed), whole["device_traces"][0]
    for _ in range(rng.randint(1, 10)):
        del trace[rng.randrange(len(trace))]
    (found,) = explain_snapshot(snapshot_in_memory(whole)).parts
    assert found.peak.peak_bytes == right.peak.peak_bytes or found.notes


def test_times_that_go_back_are_a_note(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 1, time_us=5), *freed(BASE, 1, time_us=3)]
    finding = explain_snapshot(load(tmp_path / "s", snapshot(trace)))
    assert "go back" in finding.notes[0] and "Note: Of device 0, 2 times are missing or go back" in printed(finding)


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
    (device,) = explain_snapshot(loaded).parts
    said = "3 blocks for each gradient size, 9.00 MiB: probably the parameters (3.00 MiB) and the optimizer state (6.00"
    assert any(said in note for note in device.notes)
    assert {group.kind.words for group in device.peak.rows if group.is_before_recording} == {"before recording"}
    # Whoever recorded it knew what it held: then something does tell them apart.
    known = {each["address"]: Kind.PARAMETER if i % 3 == 0 else Kind.OPTIMIZER_STATE for i, each in enumerate(held)}
    (device,) = explain_replayed(replay_snapshot(loaded, held=known)).parts
    assert {group.kind for group in device.peak.rows if group.is_before_recording} == set(known.values())
    assert not any("gradient of their size" in note for note in device.notes)


def test_pinned_host_memory_is_summed_up(tmp_path: Path) -> None:
    blocks = [block(BASE + 4096 * at, 9) | {"size": 4096} for at in range(3)]
    finding = explain_snapshot(load(tmp_path / "s", snapshot([], host_segments=[segment(BASE, 1 << 16, blocks)])))
    assert finding.pinned_bytes == 3 * 4096
    assert "12.00 KiB of the host's memory are pinned at the end." in printed(finding)


def test_what_was_there_before_and_is_not_known_is_called_from_before(tmp_path: Path) -> None:
    end = [segment(BASE, 8 * MIB, [block(BASE, 3 * MIB), block(BASE + 4 * MIB, MIB)])]
    device = explain(tmp_path / "s", [entry("alloc", BASE + 4 * MIB, MIB, frames=FORWARD)], end)
    assert device.peak.by_category() == {"BEFORE_RECORDING": 3 * MIB, "UNKNOWN": MIB}
    without_history = explain(tmp_path / "s", [], [segment(BASE, 8 * MIB, [block(BASE, 3 * MIB)])])
    assert without_history.peak.by_category() == {"UNKNOWN": 3 * MIB}


@pytest.mark.parametrize(("count", "is_full"), [(1000, True), (998, False)])
def test_a_round_number_of_entries_behind_memory_in_use_is_a_full_ring(
    tmp_path: Path, count: int, is_full: bool
) -> None:
    trace = [entry(action, BASE, 512) for _ in range(count // 2) for action in ("alloc", "free_completed")]
    before = [segment(BASE, 4 * MIB, [block(BASE + MIB, MIB)])]
    notes = explain(tmp_path / "s", trace, before).notes
    assert any("exactly 1,000 entries" in note for note in notes) == is_full


# ---- Two peaks compared: by hand, to the byte, and where the program between them was edited.
class TestDiff:
    def side(self, path: Path, sizes: dict[str, int], *, shift: int = 0, folder: str = "/home/me") -> Snapshot:
        trace, blocks = [], []
        for i, (name, size) in enumerate(sizes.items()):
            where = [UNWIND, MALLOC, frame(name, f"{folder}/model.py", 10 + i + shift)]
            trace.append(entry("alloc", BASE + MIB * i, size, frames=where))
            blocks.append(block(BASE + MIB * i, size))
        return load(path, snapshot(trace, [segment(BASE, 64 * MIB, blocks)]))

    def test_moved_lines_are_no_change(self, tmp_path: Path) -> None:
        a = self.side(tmp_path / "a", {"f": 10, "g": 20})
        b = self.side(tmp_path / "b", {"f": 10, "g": 20}, shift=100)
        (diff,) = diff_snapshots(a, b)
        assert diff.bytes == 0
        assert [change.bytes for change in diff.changes["stack"]] == [0, 0]

    def test_sizes_of_both_sides_by_change(self, tmp_path: Path) -> None:
        a = self.side(tmp_path / "a", {"grows": 10, "stays": 50, "goes": 7})
        b = self.side(tmp_path / "b", {"grows": 100, "stays": 50, "comes": 3}, shift=2)
        (diff,) = diff_snapshots(a, b)
        shown = [(c.name[1].split()[0], c.before_bytes, c.after_bytes) for c in diff.changes["stack"]]
        assert shown == [("grows", 10, 100), ("goes", 7, 0), ("comes", 0, 3), ("stays", 50, 50)]
        assert {sum(c.bytes for c in changes) for changes in diff.changes.values()} == {diff.bytes} == {86}

    def test_the_phases_of_both_peaks(self, tmp_path: Path) -> None:
        sides = [
            load(tmp_path / str(i), snapshot([entry("alloc", BASE, 10, frames=frames), *freed(BASE, 10)]))
            for i, frames in enumerate([FORWARD, BACKWARD])
        ]
        (diff,) = diff_snapshots(*sides)
        assert (diff.before.phase, diff.after.phase) == (None, "backward")
        assert "was in no phase that the recording shows and is now in backward" in printed_diff((diff,))
        assert "The peak was" not in printed_diff(diff_snapshots(sides[0], sides[0]))

    def test_a_device_on_one_side_only(self, tmp_path: Path) -> None:
        a = load(tmp_path / "a", [segment(BASE, 512, [block(BASE, 5)], device=0)])
        b = load(tmp_path / "b", [segment(BASE, 512, [block(BASE, 7)], device=1)])
        found = [(diff.after.device, diff.before.bytes, diff.after.bytes) for diff in diff_snapshots(a, b)]
        assert found == [("device 0", 5, 0), ("device 1", 0, 7)]


OUTER, LOOP = frame("main", "/home/me/train.py", 70), frame("loop", "/home/me/train.py", 50)


def side(path: Path, *stacks: list[Row], size: int = MIB) -> Snapshot:
    """A snapshot in which each stack holds this many bytes, and one more for each after the first."""
    trace, blocks = [], []
    for i, stack in enumerate(stacks):
        trace.append(entry("alloc", BASE + 64 * MIB * i, size + i, frames=[UNWIND, MALLOC, *stack]))
        blocks.append(block(BASE + 64 * MIB * i, size + i))
    return load(path, snapshot(trace, [segment(BASE, 64 * MIB * len(stacks), blocks)]))


def in_file(name: str, file: str, line: int = 3) -> Row:
    return frame(name, f"/home/me/{file}", line)


@pytest.mark.parametrize(
    ("before", "after", "was", "became"),
    [
        ([in_file("f", "m.py"), LOOP, OUTER], [in_file("f", "m.py", 90), LOOP, OUTER], "", ""),
        # One outer frame more.
        ([in_file("f", "m.py"), LOOP], [in_file("f", "m.py"), LOOP, OUTER], "", "main (me/train.py)"),
        # The file has another name.
        ([in_file("f", "m.py"), LOOP], [in_file("f", "new.py"), LOOP], "f (me/m.py)", "f (me/new.py)"),
        # A wrapper in the middle, and one that is gone.
        (
            [in_file("f", "m.py"), in_file("g", "m.py"), LOOP, OUTER],
            [in_file("f", "m.py"), in_file("g", "m.py"), in_file("wrapped", "w.py"), LOOP, OUTER],
            "loop (me/train.py)",
            "wrapped (me/w.py)",
        ),
    ],
    ids=["moved lines", "an outer frame", "a renamed file", "a frame between"],
)
def test_an_edited_program_is_the_same_code(
    tmp_path: Path, before: list[Row], after: list[Row], was: str, became: str
) -> None:
    (diff,) = diff_snapshots(side(tmp_path / "a", before), side(tmp_path / "b", after, size=3 * MIB))
    (change,) = diff.changes["stack"]
    assert (change.before_bytes, change.after_bytes) == (MIB, 3 * MIB)
    assert (change.was, change.became) == (was, became)
    assert ("a frame differs" in printed_diff((diff,))) == bool(was or became)


def test_other_code_is_no_counterpart(tmp_path: Path) -> None:
    one, other = [in_file("f", "m.py"), LOOP, OUTER], [in_file("g", "m.py"), LOOP, OUTER]
    (diff,) = diff_snapshots(side(tmp_path / "a", one), side(tmp_path / "b", other))
    assert sorted(change.bytes for change in diff.changes["stack"]) == [-MIB, MIB]


def test_what_is_equal_is_not_given_to_another(tmp_path: Path) -> None:
    short, long = [in_file("f", "m.py"), LOOP], [in_file("f", "m.py"), LOOP, OUTER]
    (diff,) = diff_snapshots(side(tmp_path / "a", short, long), side(tmp_path / "b", long, short))
    assert [(change.was, change.became) for change in diff.changes["stack"]] == [("", "")] * 2
    assert sorted(change.bytes for change in diff.changes["stack"]) == [-1, 1]


def test_the_start_is_a_phase_with_a_name(tmp_path: Path) -> None:
    held = load(tmp_path / "a", snapshot(freed(BASE, 9), []))
    in_backward = load(tmp_path / "b", snapshot([entry("alloc", BASE, 10, frames=BACKWARD), *freed(BASE, 10)]))
    (diff,) = diff_snapshots(held, in_backward)
    assert "was at the start of the recording and is now in backward" in printed_diff((diff,))


class TestGrowth:
    """How each kind and stack grew: by the most that it had in use at once, because two peaks are at other moments."""

    def step(self, path: Path, size: int, *, weight: int = MIB) -> Snapshot:
        """Activations of four blocks of this size, two at a time; at the largest moment there is only the weight."""
        activation, parameter = (
            [UNWIND, MALLOC, frame(name, "/home/me/model.py", 1)] for name in ("softmax", "make_weight")
        )
        trace: list[Row] = []
        for _ in range(2):
            trace += [entry("alloc", BASE + i * 64 * MIB, size, frames=activation) for i in range(2)]
            trace += [row for i in range(2) for row in freed(BASE + i * 64 * MIB, size)]
        trace.append(entry("alloc", BASE + 512 * MIB, weight, frames=parameter))
        return load(path, snapshot(trace, [segment(BASE, 1024 * MIB, [block(BASE + 512 * MIB, weight)])]))

    def test_of_what_is_at_one_peak_alone(self, tmp_path: Path) -> None:
        before, after = self.step(tmp_path / "a", MIB, weight=4 * MIB), self.step(tmp_path / "b", 4 * MIB)
        for sides, growth, sizes in (((before, after), 4, (0, 8 * MIB)), ((after, before), 1 / 4, (8 * MIB, 0))):
            (diff,) = diff_snapshots(*sides)
            softmax = next(change for change in diff.changes["stack"] if change.name[1].startswith("softmax"))
            assert ((softmax.before_bytes, softmax.after_bytes), softmax.growth) == (sizes, growth)
            assert sum(change.bytes for change in diff.changes["stack"]) == diff.bytes
        text = printed_diff(diff_snapshots(before, after))
        assert "8.00 MiB  x4 " in text and "Growth compares the most that each row had in use at once" in text

    def test_of_a_kind_and_not_the_sum_of_its_stacks(self, tmp_path: Path) -> None:
        """Two stacks of one kind, one after the other, and then both at once."""

        def one_kind(path: Path, *, together: bool) -> Snapshot:
            frames = [[UNWIND, MALLOC, frame(name, "/home/me/model.py", 1)] for name in "fg"]
            made = [entry("alloc", BASE + i * MIB, MIB, frames=stack) for i, stack in enumerate(frames)]
            gone = [freed(BASE + i * MIB, MIB) for i in range(2)]
            trace = [*made, *gone[0], *gone[1]] if together else [made[0], *gone[0], made[1], *gone[1]]
            return load(path, snapshot(trace, []))

        (diff,) = diff_snapshots(one_kind(tmp_path / "a", together=False), one_kind(tmp_path / "b", together=True))
        assert [change.own_peaks for change in diff.changes["kind"]] == [(MIB, 2 * MIB)]
        assert {change.growth for change in diff.changes["stack"]} == {1}

    def test_of_next_to_nothing_is_none(self, tmp_path: Path) -> None:
        few, enough = 65535, 65536
        sizes = ((few, MIB), (MIB, few), (enough, enough))
        found = []
        for number, (was, now) in enumerate(sizes):
            sides = side(tmp_path / f"a{number}", [LOOP], size=was), side(tmp_path / f"b{number}", [LOOP], size=now)
            found += [change.growth for change in diff_snapshots(*sides)[0].changes["stack"]]
        assert found == [None, None, 1]

    def test_a_renamed_file_is_found_at_other_moments_too(self, tmp_path: Path) -> None:
        """At one peak, in a file that has another name; before, it was in use at another moment."""

        def run(path: Path, file: str, first: int, last: int) -> Snapshot:
            f, g = ([UNWIND, MALLOC, in_file(name, file)] for name in "fg")
            trace = [entry("alloc", BASE, first, frames=f), *freed(BASE, first), entry("alloc", BASE, last, frames=g)]
            return load(path, snapshot([*trace, *freed(BASE, last)], []))

        (diff,) = diff_snapshots(run(tmp_path / "a", "m.py", MIB, 2 * MIB), run(tmp_path / "b", "n.py", 3 * MIB, MIB))
        assert {change.name[1]: change.growth for change in diff.changes["stack"]} == {
            "f (me/n.py)": 3,
            "g (me/n.py)": 1 / 2,
        }


A, B, C, D = "f (a.py)", "g (a.py)", "h (a.py)", "main (t.py)"


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ((A, B), (A, B), True),
        ((A, B), (A, B, D), True),  # an outer frame more
        ((A, B, C, D), (A, B), True),  # two fewer
        ((A, B), ("f (b.py)", "g (b.py)"), True),  # another file
        ((A, B, C, D), (A, D), True),  # half of the shorter one
        ((A, B, C, D), (A, C, B, D), False),  # a quarter
        ((A, B), (B, A), False),
        ((A,), (B,), False),
    ],
)
def test_what_counts_as_the_same_code(before: tuple[str, ...], after: tuple[str, ...], is_same: bool) -> None:
    found = match_stacks([("k", before)], [("k", after)])
    assert found == ({("k", before): ("k", after)} if is_same else {})


def test_another_kind_is_no_counterpart() -> None:
    assert match_stacks([("k", (A, B))], [("l", (A, B))]) == {}


def test_the_longest_inner_part_comes_first() -> None:
    after = [("k", (A, C, D)), ("k", (A, B, D))]
    assert match_stacks([("k", (A, B, C))], after) == {("k", (A, B, C)): ("k", (A, B, D))}


def test_the_frame_that_differs() -> None:
    assert differing((A, B), (A, C)) == (B, C)
    assert differing((A,), (A, D)) == ("", D)
    assert differing((A,), (A,)) == ("", "")


KEYS = st.lists(
    st.tuples(st.sampled_from("kl"), st.lists(st.sampled_from(["f (a)", "f (b)", "g (a)", "h (c)"]), max_size=4)),
    max_size=12,
)


@given(before=KEYS, after=KEYS)
def test_pairs_are_of_one_kind_and_each_is_in_one(
    before: list[tuple[str, list[str]]], after: list[tuple[str, list[str]]]
) -> None:
    lefts, rights = ([(kind, tuple(stack)) for kind, stack in side] for side in (before, after))
    pairs = match_stacks(lefts, rights)
    assert len(set(pairs.values())) == len(pairs)
    assert set(pairs) <= set(lefts) and set(pairs.values()) <= set(rights)
    assert all(old[0] == new[0] for old, new in pairs.items())
    assert all(pairs[key] == key for key in lefts if key in rights)
