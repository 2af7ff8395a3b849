from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.snapshot.dumps import REAL_DATA, Row, block, entry, frame, freed, segment, snapshot, write
from tracer.analysis.snapshots.classify_blocks import KINDS
from tracer.analysis.snapshots.diff import DeviceDiff, diff_snapshots, parse_threshold
from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding, explain_snapshot
from tracer.analysis.snapshots.sites import Site, Sites
from tracer.errors import SnapshotError, TracerError
from tracer.exporters.snapshot_json import snapshot_json
from tracer.exporters.snapshot_screen import place, print_diff, print_snapshot
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot

BASE = 1 << 32
MIB = 1 << 20
TORCH = "/usr/lib/python3.11/site-packages/torch"
REAL_FILES = sorted(p for p in REAL_DATA.glob("*") if p.suffix in (".pickle", ".pkl")) if REAL_DATA.is_dir() else []

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
        for parts in (peak.groups, peak.by_kind, peak.by_annotation):
            assert sum(part.bytes for part in parts) == peak.requested_bytes
        assert sum(g.bytes for g in peak.groups if g.is_before_recording) == peak.before_recording_bytes
        assert {group.kind for group in peak.groups} <= set(KINDS)
        for event in device.oom:
            assert sum(group.bytes for group in event.groups) == event.requested_bytes
        assert device.end_requested_bytes - device.start_requested_bytes == device.growth_bytes


class TestSites:
    def site(self, tmp_path: Path, frames: list[Row]) -> Site:
        loaded = load(tmp_path / "s", snapshot([entry("alloc", BASE, 1, frames=frames)]))
        return Sites(loaded.stacks).site(int(loaded.devices[0].trace.stack[0]))

    def test_the_users_line_decides(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, FORWARD) == Site("forward", "/home/me/model.py", 7)

    def test_without_a_users_line_torchs_own_decides(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, [UNWIND, MALLOC, LINEAR]) == Site("linear", LINEAR["filename"], 20)

    def test_without_python_the_node_decides(self, tmp_path: Path) -> None:
        site = self.site(tmp_path, BACKWARD)
        assert site == Site("MmBackward0")
        assert place(site) == "MmBackward0  (no Python frame)"

    def test_without_a_node_the_operation_decides(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, [UNWIND, MALLOC, EMPTY, MUL, ENGINE]) == Site("mul_Tensor")

    def test_no_stack_is_said(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, []) == Site("no stack recorded")

    def test_a_folder_called_torch_is_not_torch(self, tmp_path: Path) -> None:
        own = frame("go", "/home/me/torch/train.py", 3)
        assert self.site(tmp_path, [UNWIND, own, MAIN]) == Site("go", "/home/me/torch/train.py", 3)

    def test_windows_paths(self, tmp_path: Path) -> None:
        theirs = frame("linear", "C:\\py\\Lib\\site-packages\\torch\\nn\\functional.py", 5)
        own = frame("go", "D:\\work\\train.py", 3)
        assert self.site(tmp_path, [UNWIND, theirs, own]) == Site("go", "D:\\work\\train.py", 3)


class TestKinds:
    """Each rule once where it holds, and its evidence taken away once."""

    def kind(self, tmp_path: Path, trace: list[Row], segments: list[Row] | None = None, **more: Any) -> str:
        """The kind of the block at BASE, which is the only one that is large."""
        (largest, *_) = explain(tmp_path / "s", trace, segments, **more).peak.groups
        return largest.kind

    def test_activation(self, tmp_path: Path) -> None:
        made = entry("alloc", BASE, MIB, frames=FORWARD)
        assert self.kind(tmp_path, [made, *freed(BASE, MIB, frames=FREE_BACKWARD)]) == "activation"
        # context="alloc" repeats the allocation's stack at the free: then nothing is known of who freed it, and an
        # entry of the backward lies between.
        ran = entry("alloc", BASE + MIB, 1, frames=BACKWARD)
        assert self.kind(tmp_path, [made, ran, *freed(BASE, MIB, frames=FORWARD)]) == "not known"

    def test_still_held_at_the_end_is_not_known(self, tmp_path: Path) -> None:
        end = [segment(BASE, MIB, [block(BASE, MIB)])]
        assert self.kind(tmp_path, [entry("alloc", BASE, MIB, frames=FORWARD)], end) == "not known"

    def test_freed_before_any_backward_is_temporary(self, tmp_path: Path) -> None:
        made = entry("alloc", BASE, MIB, frames=FORWARD)
        gone = freed(BASE, MIB, frames=FREE_FORWARD)
        assert self.kind(tmp_path, [made, *gone]) == "temporary"
        silent = entry("alloc", BASE + MIB, 1)  # an entry without a stack may be the engine's
        assert self.kind(tmp_path, [made, silent, *gone]) == "not known"

    def test_made_and_freed_by_backward_is_temporary(self, tmp_path: Path) -> None:
        trace = [entry("alloc", BASE, MIB, frames=BACKWARD), *freed(BASE, MIB, frames=FREE_BACKWARD)]
        assert self.kind(tmp_path, trace) == "temporary"

    def test_a_free_that_repeats_the_allocations_stack_proves_nothing(self, tmp_path: Path) -> None:
        trace = [entry("alloc", BASE, MIB, frames=BACKWARD), *freed(BASE, MIB, frames=BACKWARD)]
        assert self.kind(tmp_path, trace) == "not known"

    def test_gradients(self, tmp_path: Path) -> None:
        end = [segment(BASE, MIB, [block(BASE, MIB)])]
        node = [UNWIND, MALLOC, ACCUMULATE, ENGINE]
        assert self.kind(tmp_path, [entry("alloc", BASE, MIB, frames=node)], end) == "gradient"
        made = entry("alloc", BASE, MIB, frames=BACKWARD)
        assert self.kind(tmp_path, [made], end) == "not known"
        step = entry("alloc", BASE + MIB, 1, frames=IN_STEP)
        assert self.kind(tmp_path, [made, step], end) == "gradient"
        assert self.kind(tmp_path, [made, *freed(BASE, MIB, frames=[UNWIND, ZERO, MAIN])]) == "gradient"

    def test_zero_grad_proves_gradients_of_before_the_recording(self, tmp_path: Path) -> None:
        assert self.kind(tmp_path, freed(BASE, MIB, frames=[UNWIND, ZERO, MAIN])) == "gradient"
        assert self.kind(tmp_path, freed(BASE, MIB, frames=[UNWIND, MAIN])) == "not known"

    def test_optimizer_state(self, tmp_path: Path) -> None:
        end = [segment(BASE, 2 * MIB, [block(BASE, MIB)])]
        made = [entry("alloc", BASE, MIB, frames=[UNWIND, MALLOC, INIT_GROUP, STEP, MAIN])]
        assert self.kind(tmp_path, made, end) == "optimizer state"
        made = [entry("alloc", BASE, MIB, frames=IN_STEP)]
        assert self.kind(tmp_path, made, end) == "not known"  # the step may still be running
        later = [entry("alloc", BASE + MIB, 1, frames=FORWARD)]
        assert self.kind(tmp_path, made + later, end) == "optimizer state"

    def test_made_and_freed_in_a_step_is_temporary(self, tmp_path: Path) -> None:
        trace = [entry("alloc", BASE, MIB, frames=IN_STEP), *freed(BASE, MIB, frames=IN_STEP[1:])]
        assert self.kind(tmp_path, trace) == "temporary"
        later = entry("alloc", BASE + MIB, 1, frames=FORWARD)
        assert self.kind(tmp_path, [*trace, later]) == "temporary"

    def test_annotations_delimit_a_step(self, tmp_path: Path) -> None:
        own = [UNWIND, MALLOC, MUL, frame("update", "/home/me/optimizer.py", 3), MAIN]
        trace = [
            entry("alloc", BASE, MIB, time_us=20, frames=own),
            entry("alloc", BASE + MIB, 1, time_us=40, frames=FORWARD),
        ]
        end = [segment(BASE, 2 * MIB, [block(BASE, MIB)])]
        region = [
            {"name": "Optimizer.step#Mine.step", "stage": stage, "device": 0, "time_us": time}
            for stage, time in (("START", 10), ("END", 30))
        ]
        assert self.kind(tmp_path, trace, end) == "not known"
        assert self.kind(tmp_path, trace, end, external_annotations=region) == "optimizer state"
        assert self.kind(tmp_path, trace, end, external_annotations=region[:1]) == "not known"

    def test_workspace_and_parameter(self, tmp_path: Path) -> None:
        end = [segment(BASE, MIB, [block(BASE, MIB)])]
        assert self.kind(tmp_path, [entry("alloc", BASE, MIB, frames=[UNWIND, WORKSPACE, MODEL])], end) == "workspace"
        moved = [UNWIND, MALLOC, APPLY, MAIN]
        assert self.kind(tmp_path, [entry("alloc", BASE, MIB, frames=moved)], end) == "parameter"
        # freed again: not a parameter that stays
        trace = [entry("alloc", BASE, MIB, frames=moved), entry("alloc", BASE + MIB, 1), *freed(BASE, MIB)]
        assert self.kind(tmp_path, trace) == "not known"

    @pytest.mark.parametrize(
        ("word", "kind"),
        [
            ("PARAMETER", "parameter"),
            ("autograd_detail", "autograd detail"),
            ("INPUT", "input"),
            ("unknown", "not known"),
        ],
    )
    def test_what_the_recording_says_counts_first(self, tmp_path: Path, word: str, kind: str) -> None:
        end = [segment(BASE, MIB, [block(BASE, MIB)])]
        assert self.kind(tmp_path, [{**entry("alloc", BASE, MIB), "category": word}], end) == kind


def test_groups_keep_what_was_there_before_apart(tmp_path: Path) -> None:
    # 300 B without a stack and 200 B with one were there; 100 B come.
    blocks = [block(BASE, 300), block(BASE + 512, 200, frames=FORWARD), block(BASE + 1024, 100)]
    trace = [entry("alloc", BASE + 1024, 100, frames=FORWARD)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 2048, blocks)])
    shown = [(g.bytes, g.site.frame, g.is_before_recording) for g in device.peak.groups]
    assert shown == [(300, "before recording", True), (200, "forward", True), (100, "forward", False)]
    assert device.peak.before_recording_bytes == 500
    assert device.peak.groups[1].stack == (
        "at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)",
        f"linear ({TORCH}/nn/functional.py:20)",
        "einsum (/usr/lib/python3.11/site-packages/einops/einops.py:20)",
        "forward (/home/me/model.py:7)",
        "main (/home/me/train.py:70)",
    )
    assert [(g.bytes, g.site.frame) for g in device.never_freed] == [(100, "forward")]


def test_regions_may_nest_tie_overlap_and_miss_their_end(tmp_path: Path) -> None:
    # outer 10..50, inner 20..30, an END without START at 35, late 40.. without END
    marks = [("outer", "START", 10), ("inner", "START", 20), ("inner", "END", 30), ("lost", "END", 35)]
    marks += [("late", "START", 40), ("outer", "END", 50)]
    notes = [{"name": n, "stage": s, "device": 0, "time_us": t} for n, s, t in marks]
    times = {5: "no annotation", 10: "outer", 25: "inner", 30: "outer", 36: "outer", 45: "late", 60: "late"}
    trace = [entry("alloc", BASE + 512 * i, 1 << i, time_us=t) for i, t in enumerate(times)]
    blocks = [block(BASE + 512 * i, 1 << i) for i in range(len(times))]
    device = explain(tmp_path / "s", trace, [segment(BASE, 8192, blocks)], external_annotations=notes)
    expected: dict[str, int] = {}
    for i, name in enumerate(times.values()):
        expected[name] = expected.get(name, 0) + (1 << i)
    assert {share.name: share.bytes for share in device.peak.by_annotation} == expected


def test_holes_end_at_segments_and_pass_over_mapped_ranges(tmp_path: Path) -> None:
    # Segment A of 4096 with 512 in the middle: holes 1024 and 2560. Segment B follows at once, wholly free: 2048.
    a, b = segment(BASE, 4096, [block(BASE + 1024, 500)]), segment(BASE + 4096, 2048, [])
    found = explain(tmp_path / "s", [], [a, b]).end_fragmentation
    assert (found.reserved_bytes, found.allocated_bytes, found.free_bytes) == (6144, 512, 5632)
    assert found.largest_free_bytes == 2560
    # An expandable segment of 4096 whose second half was mapped after the peak: before, the hole ends there.
    trace = [entry("alloc", BASE, 900), *freed(BASE, 900), entry("segment_map", BASE + 2048, 2048)]
    device = explain(tmp_path / "t", trace, [segment(BASE, 4096, [], expandable=True)])
    assert device.peak.fragmentation.largest_free_bytes == 1024
    assert device.end_fragmentation.largest_free_bytes == 4096


def test_a_segment_that_was_given_back_later_was_there_at_the_peak(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 900), *freed(BASE, 900), entry("segment_free", BASE + MIB, 8192)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])])
    at_peak, at_end = device.peak.fragmentation, device.end_fragmentation
    assert (at_peak.reserved_bytes, at_peak.free_bytes, at_peak.largest_free_bytes) == (10240, 9216, 8192)
    assert (at_end.reserved_bytes, at_end.free_bytes, at_end.largest_free_bytes) == (2048, 2048, 2048)


class TestOutOfMemory:
    def event(self, asked: int, device_free: int) -> Row:
        return {
            "action": "oom",
            "size": asked,
            "device_free": device_free,
            "stream": 0,
            "time_us": 9,
            "frames": FORWARD,
        }

    def explain(self, tmp_path: Path, asked: int, free: int, **more: Any) -> DeviceFinding:
        # Two segments of 4 MiB with 3 MiB in use in each: 2 MiB unallocated, the largest hole 1 MiB.
        segments = [
            segment(BASE + 8 * MIB * i, 4 * MIB, [block(BASE + 8 * MIB * i, 3 * MIB, frames=FORWARD)], **more)
            for i in range(2)
        ]
        return explain(tmp_path / "s", [self.event(asked, free)], segments)

    def test_fragmentation_is_the_cause(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=2 * MIB, free=0).oom
        assert (found.asked_bytes, found.device_free_bytes) == (2 * MIB, 0)
        assert (found.allocated_bytes, found.reserved_bytes) == (6 * MIB, 8 * MIB)
        assert (found.unallocated_bytes, found.largest_free_bytes) == (2 * MIB, MIB)
        assert found.fits_without_fragmentation
        assert "expandable_segments:True" in found.advice
        assert found.site.file == "/home/me/model.py"
        assert sum(group.bytes for group in found.groups) == found.requested_bytes == 6 * MIB

    def test_expandable_segments_are_not_advised_twice(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=2 * MIB, free=0, expandable=True).oom
        assert found.fits_without_fragmentation
        assert "expandable_segments:True" not in found.advice

    def test_there_is_too_little_in_any_case(self, tmp_path: Path) -> None:
        # One byte more than the two holes of 1 MiB.
        (found,) = self.explain(tmp_path, asked=2 * MIB + 1, free=0).oom
        assert not found.fits_without_fragmentation
        assert "1 B would still be missing" in found.advice
        assert "/home/me/model.py:7" in found.advice

    def test_what_holds_most_has_a_remedy_of_its_own(self, tmp_path: Path) -> None:
        seen = [entry("alloc", BASE, 6 * MIB, frames=FORWARD), entry("alloc", BASE + 8 * MIB, MIB, frames=BACKWARD)]
        end = [*freed(BASE, 6 * MIB, frames=FREE_BACKWARD), *freed(BASE + 8 * MIB, MIB, frames=FREE_BACKWARD)]
        (found,) = explain(tmp_path / "s", [*seen, self.event(99 * MIB, 0), *end]).oom
        assert "86 % of what was in use is activation" in found.advice
        assert "torch.utils.checkpoint" in found.advice

    def test_memory_without_a_stack_is_no_line_to_look_at(self, tmp_path: Path) -> None:
        (found,) = explain(
            tmp_path / "s", [self.event(99 * MIB, 0)], [segment(BASE, 4 * MIB, [block(BASE, 3 * MIB)])]
        ).oom
        assert "Look first" not in found.advice
        assert "100 % of what was in use is from before the recording" in found.advice

    def test_alone_and_too_large(self, tmp_path: Path) -> None:
        (found,) = explain(tmp_path / "s", [self.event(99 * MIB, 0)]).oom
        assert "the request alone is too large" in found.advice

    def test_free_on_the_device_counts(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=3 * MIB, free=MIB).oom
        assert found.fits_without_fragmentation

    def test_a_block_that_is_large_enough_belongs_to_somebody_else(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=MIB, free=0).oom
        assert found.largest_free_bytes == found.asked_bytes
        assert "another stream" in found.advice and "expandable" not in found.advice

    @pytest.mark.parametrize(
        ("asked", "reserved"),
        [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB, 10 * MIB), (10 * MIB + 512, 12 * MIB)],
    )
    def test_a_limit_of_the_process(self, tmp_path: Path, asked: int, reserved: int) -> None:
        """Only where the device had room for the whole segment that the request needs."""
        (limited,) = explain(tmp_path / "s", [self.event(asked, reserved)]).oom
        assert "set_per_process_memory_fraction" in limited.advice
        (short,) = explain(tmp_path / "s", [self.event(asked, reserved - 1)]).oom
        assert "set_per_process_memory_fraction" not in short.advice

    def test_each_line_is_shown_once_and_before_the_peak(self, tmp_path: Path) -> None:
        finding = explain_snapshot(load(tmp_path / "s", snapshot([self.event(99 * MIB, 1)] * 3)))
        text = printed(finding)
        assert text.count("Out of memory, entry") == 1
        assert "2 more failures" in text
        assert text.index("Out of memory") < text.index("What filled it")

    def test_the_moment_counts_and_not_the_end(self, tmp_path: Path) -> None:
        trace = [entry("alloc", BASE, 700, frames=FORWARD), self.event(99, 1), *freed(BASE, 700, frames=FREE_FORWARD)]
        (found,) = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])]).oom
        assert (found.requested_bytes, found.allocated_bytes, found.largest_free_bytes) == (700, 1024, 1024)

    def test_a_program_that_tries_forever(self, tmp_path: Path) -> None:
        device = explain(tmp_path / "s", [self.event(9, 1)] * 60)
        assert len(device.oom) == 50
        assert any("60 out-of-memory events" in note for note in device.notes)


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
        assert [change.bytes for change in diff.by_stack] == [0, 0]

    def test_sizes_of_both_sides_by_change(self, tmp_path: Path) -> None:
        a = self.side(tmp_path / "a", {"grows": 10, "stays": 50, "goes": 7})
        b = self.side(tmp_path / "b", {"grows": 100, "stays": 50, "comes": 3}, shift=2)
        (diff,) = diff_snapshots(a, b)
        shown = [(c.stack[0].split()[0], c.before_bytes, c.after_bytes) for c in diff.by_stack]
        assert shown == [("grows", 10, 100), ("goes", 7, 0), ("comes", 0, 3), ("stays", 50, 50)]
        assert sum(c.bytes for c in diff.by_stack) == sum(c.bytes for c in diff.by_kind) == diff.bytes == 86

    def test_the_phases_of_both_peaks(self, tmp_path: Path) -> None:
        sides = [
            load(tmp_path / str(i), snapshot([entry("alloc", BASE, 10, frames=frames), *freed(BASE, 10)]))
            for i, frames in enumerate([FORWARD, BACKWARD])
        ]
        (diff,) = diff_snapshots(*sides)
        assert (diff.before_phase, diff.after_phase) == ("", "backward")
        assert "was in an unknown phase and is in backward now" in printed_diff((diff,))
        assert "The peak was" not in printed_diff(diff_snapshots(sides[0], sides[0]))

    def test_a_device_on_one_side_only(self, tmp_path: Path) -> None:
        a = load(tmp_path / "a", [segment(BASE, 512, [block(BASE, 5)], device=0)])
        b = load(tmp_path / "b", [segment(BASE, 512, [block(BASE, 7)], device=1)])
        assert [(d.device, d.before_bytes, d.after_bytes) for d in diff_snapshots(a, b)] == [(0, 5, 0), (1, 0, 7)]

    @pytest.mark.parametrize(
        ("text", "after", "exceeded"),
        [
            ("5%", 105, False),
            ("5%", 106, True),
            ("5B", 106, True),
            ("6", 106, False),
            ("1MiB", 106, False),
            ("0", 101, True),
        ],
    )
    def test_thresholds(self, tmp_path: Path, text: str, after: int, exceeded: bool) -> None:
        a, b = self.side(tmp_path / "a", {"f": 100}), self.side(tmp_path / "b", {"f": after})
        (diff,) = diff_snapshots(a, b)
        assert parse_threshold(text).is_exceeded_by(diff) is exceeded

    @pytest.mark.parametrize("text", ["", "much", "-5%", "5 %%", "1e9", "5TiB"])
    def test_what_is_no_threshold(self, text: str) -> None:
        with pytest.raises(TracerError) as caught:
            parse_threshold(text)
        assert caught.value.hint


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
    shown = json.loads(snapshot_json(explain_snapshot(loaded), file="s"))
    (device,) = shown["devices"]
    assert list(shown) == ["file", "devices"]
    assert list(device) == [
        "device",
        "entries",
        "peak_requested_bytes",
        "peak_allocated_bytes",
        "reserved_at_peak_bytes",
        "start_requested_bytes",
        "end_requested_bytes",
        "reserved_end_bytes",
        "oom",
        "groups",
    ]
    (group,) = device["groups"]
    assert list(group) == ["bytes", "count", "kind", "frame", "file", "line", "stack"]
    assert (group["bytes"], group["frame"], group["file"], group["line"]) == (100, "forward", "/home/me/model.py", 7)
    assert (device["peak_requested_bytes"], device["peak_allocated_bytes"]) == (100, 512)
    assert device["oom"][0]["asked_bytes"] == 9


@pytest.mark.parametrize("objects", [[], snapshot([]), snapshot([entry("alloc", BASE, 1)]), [segment(BASE, 512, [])]])
def test_anything_can_be_printed(tmp_path: Path, objects: Any) -> None:
    finding = explain_snapshot(load(tmp_path / "s", objects))
    assert "a[red]b.pickle" in printed(finding)
    check_sums(finding)
    json.loads(snapshot_json(finding, file="s"))


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
    shown = json.loads(snapshot_json(finding, file="s"))
    for device in shown["devices"]:
        assert sum(group["bytes"] for group in device["groups"]) == device["peak_requested_bytes"]


def printed_diff(diffs: tuple[DeviceDiff, ...]) -> str:
    out = io.StringIO()
    print_diff(diffs, Console(file=out, width=120), before="before", after="after")
    return out.getvalue()


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
def test_a_longer_context_is_explained_by_its_activations() -> None:
    short, long = (load_snapshot(REAL_DATA / f"train_423M_ctx{n}.pickle", isolated=False) for n in (128, 512))
    diffs = diff_snapshots(short, long)
    (diff,) = diffs
    assert sum(change.bytes for change in diff.by_stack) == sum(change.bytes for change in diff.by_kind) == diff.bytes
    assert diff.by_kind[0].kind == "activation" and diff.by_kind[0].bytes > diff.bytes
    assert (diff.before_phase, diff.after_phase) == ("optimizer", "backward")
    assert "The peak was in optimizer and is in backward now" in printed_diff(diffs)


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
