"""Kinds of a snapshot's blocks, program by program."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.snapshot_kinds import MAX_WRONG, MIN_MEAN, MIN_RIGHT, MIN_WITHOUT_CPP, TRUTH, Verdict, find, judge, mean
from tests.answers.test_snapshot_findings import (
    ACCUMULATE,
    APPLY,
    BACKWARD,
    BASE,
    ENGINE,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    IN_STEP,
    INIT_GROUP,
    MAIN,
    MALLOC,
    MIB,
    MODEL,
    MUL,
    STEP,
    TORCH,
    UNWIND,
    WORKSPACE,
    ZERO,
    explain,
    load,
)
from tests.snapshot.cutting import cut
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment
from tests.snapshot.explained import explain_snapshot
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.blocks.kinds import Kind
from tracer.snapshot.load import load_snapshot

# ---- Kinds of whole recordings: each rule once where it holds, and its evidence taken away once.
FROM_BEFORE = "before recording"


def made(frames: list[Row], **more: Any) -> Row:
    """The block at BASE."""
    return {**entry("alloc", BASE, MIB, frames=frames), **more}


def gone(frames: list[Row]) -> list[Row]:
    return freed(BASE, MIB, frames=frames)


AT_THE_END = [segment(BASE, 2 * MIB, [block(BASE, MIB)])]
SILENT = entry("alloc", BASE + MIB, 1)
BACKWARD_RAN, FORWARD_RAN, STEP_RAN = (
    entry("alloc", BASE + MIB, 1, frames=frames) for frames in (BACKWARD, FORWARD, IN_STEP)
)
MOVED, SET_DATA = [UNWIND, MALLOC, APPLY, MAIN], frame("THPVariable_set_data(THPVariable*, _object*, void*)", "??", 0)
# What happened, whether the block is there at the end, and its kind.
ROWS: list[tuple[list[Row], bool, str]] = [
    ([made(FORWARD), *gone(FREE_BACKWARD)], False, "activation"),
    # context="alloc" repeats the allocation's stack at the free: who freed it is not known, and backward lies between.
    ([made(FORWARD), BACKWARD_RAN, *gone(FORWARD)], False, "not known"),
    ([made(FORWARD)], True, "not known"),
    ([made(FORWARD), *gone(FREE_FORWARD)], False, "temporary"),
    ([made(FORWARD), SILENT, *gone(FREE_FORWARD)], False, "not known"),  # without a stack it may be the engine's
    ([made(BACKWARD), *gone(FREE_BACKWARD)], False, "temporary"),
    ([made(BACKWARD), *gone(BACKWARD)], False, "not known"),
    ([made([UNWIND, MALLOC, ACCUMULATE, ENGINE])], True, "gradient"),
    ([made(BACKWARD)], True, "not known"),
    ([made(BACKWARD), STEP_RAN], True, "gradient"),
    ([made(BACKWARD), *gone([UNWIND, ZERO, MAIN])], False, "gradient"),
    (gone([UNWIND, ZERO, MAIN]), False, "gradient"),
    (gone([UNWIND, MAIN]), False, FROM_BEFORE),
    ([made([UNWIND, MALLOC, INIT_GROUP, STEP, MAIN])], True, "optimizer state"),
    ([made(IN_STEP)], True, "not known"),  # the step may still be running
    ([made(IN_STEP), FORWARD_RAN], True, "optimizer state"),
    ([made(IN_STEP), *gone(IN_STEP[1:])], False, "temporary"),
    ([made(IN_STEP), *gone(IN_STEP[1:]), FORWARD_RAN], False, "temporary"),
    ([made([UNWIND, WORKSPACE, MODEL])], True, "workspace"),
    ([made(MOVED)], True, "parameter"),
    ([made(MOVED), SILENT, *gone([])], False, "not known"),  # not a parameter that stays
    (gone([UNWIND, SET_DATA, MAIN]), False, "parameter"),
    # What the recording says counts first.
    ([made([], category="PARAMETER")], True, "parameter"),
    ([made([], category="autograd_detail")], True, "autograd detail"),
    ([made([], category="INPUT")], True, "input"),
    ([made([], category="unknown")], True, "not known"),
]


class TestKinds:
    """Each rule once where it holds, and its evidence taken away once."""

    def kind(self, tmp_path: Path, trace: list[Row], segments: list[Row] | None = None, **more: Any) -> str:
        """The kind of the block at BASE, which is the only one that is large."""
        (largest, *_) = explain(tmp_path / "s", trace, segments, **more).peak.rows
        return largest.kind.words

    @pytest.mark.parametrize(("trace", "is_at_end", "kind"), ROWS)
    def test_each_rule_holds_and_fails_without_its_evidence(
        self, tmp_path: Path, trace: list[Row], is_at_end: bool, kind: str
    ) -> None:
        assert self.kind(tmp_path, trace, AT_THE_END if is_at_end else None) == kind

    def test_what_backward_left_behind_at_an_out_of_memory(self, tmp_path: Path) -> None:
        """One stack makes gradients of results, which backward frees, and of parameters, which nobody does.

        The parameters are known by them: three of 3 MiB, one of 9 MiB. A size that forward makes too proves nothing.
        """
        call = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
        at = [BASE + 16 * MIB * number for number in range(9)]
        trace = [
            entry("alloc", at[0], 5 * MIB, frames=[UNWIND, MALLOC, MODEL, call, MAIN]),
            entry("alloc", at[1], 7 * MIB, frames=BACKWARD),
            *freed(at[1], 7 * MIB, frames=FREE_BACKWARD),
            entry("alloc", at[2], 9 * MIB, frames=BACKWARD),
            entry("alloc", at[3], 3 * MIB, frames=BACKWARD),
            entry("alloc", at[4], 5 * MIB, frames=BACKWARD),
        ]
        before = [block(address, size * MIB) for address, size in zip(at[5:], (9, 3, 3, 3), strict=True)]
        made = [block(address, size * MIB) for address, size in ((at[0], 5), (at[2], 9), (at[3], 3), (at[4], 5))]
        segments = [segment(BASE, 256 * MIB, [*made, *before])]
        device = replay_snapshot(load(tmp_path / "s", {"segments": segments, "device_traces": [trace]})).devices[0]
        lives = device.replay.lives
        kinds = [Kind(kind).words for kind in device.blocks.kind]
        found = dict(zip(((lives.addr - BASE) // (16 * MIB)).tolist(), kinds, strict=True))
        assert [found[number] for number in (2, 3)] == ["gradient"] * 2
        assert [found[number] for number in (5, 6, 7, 8)] == ["parameter"] * 4
        assert (found[1], found[4]) == ("temporary", "temporary")

    def test_what_outlives_backward_is_not_temporary_as_its_stack_is(self, tmp_path: Path) -> None:
        trace = [
            entry("alloc", BASE + 8 * MIB, 5 * MIB, frames=BACKWARD),
            *freed(BASE + 8 * MIB, 5 * MIB, frames=FREE_BACKWARD),
            entry("alloc", BASE, 9 * MIB, frames=BACKWARD),
        ]
        end = [segment(BASE, 64 * MIB, [block(BASE, 9 * MIB), block(BASE + 32 * MIB, 1)])]
        assert self.kind(tmp_path, trace, end) == "temporary"  # backward still runs
        over = entry("alloc", BASE + 32 * MIB, 1, frames=FORWARD)
        assert self.kind(tmp_path, [*trace, over], end) == "not known"

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

    @pytest.mark.parametrize("is_annotated", [False, True])
    def test_what_a_step_has_its_closure_make_is_not_the_steps(self, tmp_path: Path, is_annotated: bool) -> None:
        """Forward and backward in a closure: an activation, a gradient, then state; backward's thread has no line."""
        wrapper = frame("wrapper", f"{TORCH}/optim/optimizer.py", 480)
        step = [frame("step", f"{TORCH}/optim/adamw.py", 220), wrapper, MAIN]
        closure = [frame("closure", "/home/me/train.py", 30), *step]
        trace = [
            entry("alloc", BASE, 5 * MIB, time_us=20, frames=[UNWIND, MALLOC, MODEL, *closure]),
            entry("alloc", BASE + 8 * MIB, 3 * MIB, time_us=21, frames=BACKWARD),
            *freed(BASE, 5 * MIB, time_us=22, frames=FREE_BACKWARD),
            entry("alloc", BASE + 16 * MIB, 7 * MIB, time_us=23, frames=[UNWIND, MALLOC, *step]),
            entry("alloc", BASE + 32 * MIB, 1, time_us=40, frames=FORWARD),
        ]
        blocks = [block(BASE + at * MIB, size) for at, size in ((8, 3 * MIB), (16, 7 * MIB), (32, 1))]
        notes = [
            {"name": "Optimizer.step#AdamW.step", "stage": stage, "device": 0, "time_us": time}
            for stage, time in (("START", 10), ("END", 30))
        ]
        more = {"external_annotations": notes} if is_annotated else {}
        objects = {"segments": [segment(BASE, 64 * MIB, blocks)], "device_traces": [trace], **more}
        device = replay_snapshot(load(tmp_path / "s", objects)).devices[0]
        kinds = device.blocks.kind
        sizes = device.replay.lives.requested_bytes.tolist()
        found = {size // MIB: Kind(kind).words for size, kind in zip(sizes, kinds, strict=True) if size >= MIB}
        assert found == {5: "activation", 3: "gradient", 7: "optimizer state"}

    def test_what_takes_a_parameters_place_is_one(self, tmp_path: Path) -> None:
        """`p.data = p.data - u` in a step: the new one is made, the old one is let go of; state is made elsewhere."""
        set_data = frame("THPVariable_set_data(THPVariable*, _object*, void*)", "??", 0)
        line = frame("step", "/home/me/optimizer.py", 64)
        trace = [
            entry("alloc", BASE + 8 * MIB, 2 * MIB, frames=[MALLOC, frame("step", "/home/me/optimizer.py", 51), STEP]),
            entry("alloc", BASE, 2 * MIB, frames=[UNWIND, MALLOC, line, STEP, MAIN]),
            *freed(BASE + 4 * MIB, 2 * MIB, frames=[set_data, line, STEP, MAIN]),
            entry("alloc", BASE + 16 * MIB, 1, frames=FORWARD),
        ]
        end = [
            segment(BASE, 32 * MIB, [block(BASE, 2 * MIB), block(BASE + 8 * MIB, 2 * MIB), block(BASE + 16 * MIB, 1)])
        ]
        kinds = {group.site.line: group.kind.words for group in explain(tmp_path / "s", trace, end).peak.rows}
        assert kinds == {51: "optimizer state", 64: "parameter", None: "parameter"}

    def test_parameters_have_the_sizes_of_gradients(self, tmp_path: Path) -> None:
        # Two of 1 MiB were there; two gradients of 1 MiB came. With a third and fourth, state may be among them.
        at = [BASE + 2 * MIB * number for number in range(8)]
        node = [UNWIND, MALLOC, ACCUMULATE, ENGINE]
        grads = [entry("alloc", address, MIB, frames=node) for address in at[4:6]]
        for num_before, kind in ((2, "parameter"), (3, "parameter"), (4, FROM_BEFORE)):
            blocks = [block(address, MIB) for address in [*at[:num_before], *at[4:6]]]
            device = explain(tmp_path / "s", grads, [segment(BASE, 16 * MIB, blocks)])
            assert {group.kind.words for group in device.peak.rows if group.is_before_recording} == {kind}

    @pytest.mark.parametrize(
        ("copies", "lines", "is_over", "kind"),
        [(1, 5, True, "parameter"), (2, 5, True, FROM_BEFORE), (1, 0, True, FROM_BEFORE), (1, 5, False, FROM_BEFORE)],
    )
    def test_frozen_weights_have_no_gradients(
        self, tmp_path: Path, copies: int, lines: int, is_over: bool, kind: str
    ) -> None:
        """Of five layers, beside adapters that are trained; with a copy of each it may be state, and who knows."""
        at = iter(range(BASE, BASE + 999 * MIB, MIB))
        weights = [block(next(at), size) for size in [MIB - 512] * 3 * copies + [MIB - 1024] * 2 * copies]
        adapters = [block(next(at), 128 << 10) for _ in range(8)]
        layer = frame("forward", f"{TORCH}/nn/modules/linear.py", 130)
        trace = [
            entry(
                "alloc", next(at), 8192, frames=[UNWIND, MALLOC, layer, frame("forward", "/home/me/net.py", line), MAIN]
            )
            for line in range(lines)
        ]
        grads = [entry("alloc", next(at), 128 << 10, frames=[UNWIND, MALLOC, ACCUMULATE, ENGINE]) for _ in range(8)]
        over = [entry("alloc", next(at), 1, frames=IN_STEP)] if is_over else []
        live = [*weights, *adapters, *(block(row["addr"], row["size"]) for row in (*trace, *grads, *over))]
        device = explain(tmp_path / "s", [*trace, *grads, *over], [segment(BASE, 999 * MIB, live)])
        large = [group for group in device.peak.rows if group.bytes % MIB and group.bytes > MIB / 2]
        assert {group.kind.words for group in large} == {kind}

    def test_freed_in_a_step_is_state(self, tmp_path: Path) -> None:
        gone = freed(BASE, MIB, frames=[UNWIND, frame("step", "/home/me/o.py", 5), STEP, MAIN])
        assert self.kind(tmp_path, gone) == "optimizer state"
        bare = freed(BASE, MIB, frames=[frame("step", "/home/me/o.py", 5), STEP, MAIN])
        assert self.kind(tmp_path, bare) == FROM_BEFORE  # of Python's frames alone: it may be a parameter replaced
        stays = [segment(BASE, 4 * MIB, [block(BASE + 2 * MIB, MIB)])]
        kinds = {group.kind.words for group in explain(tmp_path / "s", bare, stays).peak.rows}
        assert kinds == {"optimizer state", FROM_BEFORE}

    def test_alive_at_the_end_of_a_forward(self, tmp_path: Path) -> None:
        call = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
        end = [segment(BASE, 2 * MIB, [block(BASE, MIB)])]
        made = entry("alloc", BASE, MIB, frames=[UNWIND, MALLOC, MODEL, call, MAIN])
        places = [BASE + 2 * number * MIB for number in range(5)]
        five = [{**made, "addr": place} for place in places]
        all_five = [segment(BASE, 16 * MIB, [block(place, MIB) for place in places])]
        assert self.kind(tmp_path, five, all_five) == "activation"
        assert self.kind(tmp_path, five[:4], all_five) == "not known", "of so few who knows what inference keeps"
        ran = entry("alloc", BASE + MIB, 1, frames=BACKWARD)
        output, two = {**made, "addr": BASE + 3 * MIB}, [block(BASE, MIB), block(BASE + 3 * MIB, MIB)]
        device = explain(tmp_path / "s", [made, output, ran], [segment(BASE, 4 * MIB, two)])
        assert {group.kind.words for group in device.peak.rows if group.bytes == MIB} == {"activation", "not known"}
        assert self.kind(tmp_path, [made, ran], end) == "not known", "the last that a call leaves may be its output"
        steps = [entry("alloc", BASE + MIB, 1, frames=frames) for frames in (BACKWARD, IN_STEP, FORWARD, IN_STEP)]
        assert self.kind(tmp_path, [made, *steps], end) == "not known"  # two steps long: a cache, not an activation

    def test_the_same_stack_proves_on_another_device_too(self, tmp_path: Path) -> None:
        made = [entry("alloc", BASE, MIB, frames=FORWARD), *freed(BASE, MIB, frames=FREE_BACKWARD)]
        alive = [entry("alloc", BASE, MIB, frames=FORWARD)]
        objects = {"segments": [segment(BASE, MIB, [block(BASE, MIB)], device=1)], "device_traces": [made, alive]}
        devices = explain_snapshot(load(tmp_path / "s", objects)).parts
        assert [device.peak.rows[0].kind.words for device in devices] == ["activation"] * 2
        assert devices[1].peak.rows[0].evidence.startswith("likely")
        (alone,) = explain_snapshot(load(tmp_path / "t", objects), device=1).parts
        assert alone.peak.rows[0].kind.words == "not known"

    def test_backward_of_before_the_recording_made_gradients(self, tmp_path: Path) -> None:
        held = [segment(BASE, 4 * MIB, [block(BASE, MIB, frames=BACKWARD)])]
        assert self.kind(tmp_path, [entry("alloc", BASE + 2 * MIB, 1, frames=FORWARD)], held) == "gradient"
        held = [segment(BASE, 4 * MIB, [block(BASE, MIB, frames=IN_STEP)])]
        assert self.kind(tmp_path, [entry("alloc", BASE + 2 * MIB, 1, frames=FORWARD)], held) == "optimizer state"


PYTHON_FORWARD = [MODEL, MAIN]
PYTHON_STEP = [frame("step", f"{TORCH}/optim/sgd.py", 50), MAIN]


class TestPythonAlone:
    """Stacks of Python frames: what autograd does on its threads has none."""

    def kinds(self, path: Path, trace: list[Row], segments: list[Row] | None = None) -> dict[int, str]:
        device = explain(path, trace, segments)
        return {group.bytes: group.kind.words for group in device.peak.rows}

    def test_activation_gradient_and_temporary(self, tmp_path: Path) -> None:
        # Of 3 MiB, which a parameter has: made by Python, freed in silence. Made in silence and alive in the step.
        trace = [
            entry("alloc", BASE, 5 * MIB, frames=PYTHON_FORWARD),
            entry("alloc", BASE + 8 * MIB, 3 * MIB),
            entry("alloc", BASE + 16 * MIB, 7 * MIB),
            *freed(BASE, 5 * MIB),
            *freed(BASE + 16 * MIB, 7 * MIB),
            entry("alloc", BASE + 24 * MIB, 1, frames=PYTHON_STEP),
            *freed(BASE + 24 * MIB, 1, frames=PYTHON_STEP[1:]),
        ]
        blocks = [block(BASE + 8 * MIB, 3 * MIB), block(BASE + 32 * MIB, 3 * MIB + 0)]
        kinds = explain(tmp_path / "s", trace, [segment(BASE, 64 * MIB, blocks)]).peak.rows
        found = sorted((group.bytes // MIB, group.kind.words, group.is_before_recording) for group in kinds)
        assert found == [
            (3, "gradient", False), (3, "parameter", True), (5, "activation", False), (7, "temporary", False),
        ]  # fmt: skip

    def test_cublas_workspaces_of_before(self, tmp_path: Path) -> None:
        """One for each thread that called cuBLAS; no stack tells. They do not count among a model's sizes either."""
        sizes = (8_519_680, 8_519_680, 8_519_680, MIB, MIB)
        pieces = [block(BASE + 16 * number * MIB, size) for number, size in enumerate(sizes)]
        forward = [MODEL, frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500), MAIN]
        trace = [entry("alloc", BASE + 99 * MIB, 1, frames=forward), *freed(BASE + 99 * MIB, 1, frames=[MAIN])]
        found = self.kinds(tmp_path / "s", trace, [segment(BASE, 128 * MIB, pieces)])
        assert found == {3 * 8_519_680: "workspace", 2 * MIB: FROM_BEFORE, 1: "temporary"}

    def test_an_optimizer_whose_constructor_makes_its_state(self, tmp_path: Path) -> None:
        constructor = [frame("__init__", f"{TORCH}/optim/adagrad.py", 80), MAIN]
        trace = [entry("alloc", BASE, MIB, frames=constructor)]
        assert self.kinds(tmp_path / "s", trace, [segment(BASE, MIB, [block(BASE, MIB)])])[MIB] == "optimizer state"

    def test_without_a_training_silence_means_nothing(self, tmp_path: Path) -> None:
        trace = [entry("alloc", BASE, 5 * MIB, frames=PYTHON_FORWARD), *freed(BASE, 5 * MIB)]
        assert self.kinds(tmp_path / "s", trace) == {5 * MIB: "not known"}

    def test_a_step_replaces_what_the_first_constructor_made(self, tmp_path: Path) -> None:
        """The optimizer's own constructor makes state of the same size after the model's."""
        model = [frame("__init__", "/home/me/linear.py", 9), frame("__init__", "/home/me/model.py", 3), MAIN]
        optimizer = [frame("__init__", "/home/me/adam.py", 9), MAIN]
        step = [frame("step", "/home/me/optimizer.py", 63), *PYTHON_STEP]
        trace = [
            entry("alloc", BASE, 3 * MIB, frames=model),
            entry("alloc", BASE + 8 * MIB, 3 * MIB, frames=optimizer),
            entry("alloc", BASE + 16 * MIB, 3 * MIB),
            entry("alloc", BASE + 24 * MIB, 3 * MIB, frames=step),
            *freed(BASE, 3 * MIB, frames=step),
            *freed(BASE + 16 * MIB, 3 * MIB, frames=[ZERO, MAIN]),
            entry("alloc", BASE + 32 * MIB, 7 * MIB, frames=PYTHON_FORWARD),
        ]
        blocks = [block(BASE + at * MIB, size * MIB) for at, size in ((8, 3), (24, 3), (32, 7))]
        groups = explain(tmp_path / "s", trace, [segment(BASE, 64 * MIB, blocks)]).peak.rows
        kinds = {group.site.file: group.kind.words for group in groups}
        assert (kinds["/home/me/optimizer.py"], kinds["/home/me/adam.py"]) == ("parameter", "not known")

    def test_a_parameter_that_is_assigned_twice_in_a_step(self, tmp_path: Path) -> None:
        """First the update, then the decay: the new one of the first line is the old one of the second."""

        def line(number: int) -> list[Row]:
            return [frame("step", "/home/me/optimizer.py", number), *PYTHON_STEP]

        trace = [
            entry("alloc", BASE, 3 * MIB, frames=[APPLY, MAIN]),
            entry("alloc", BASE + 8 * MIB, 3 * MIB, frames=line(63)),
            *freed(BASE, 3 * MIB, frames=line(63)),
            entry("alloc", BASE + 16 * MIB, 3 * MIB, frames=line(64)),
            *freed(BASE + 8 * MIB, 3 * MIB, frames=line(64)),
            entry("alloc", BASE + 24 * MIB, 3 * MIB, frames=line(70)),
            entry("alloc", BASE + 32 * MIB, 7 * MIB, frames=PYTHON_FORWARD),
        ]
        blocks = [block(BASE + at * MIB, size * MIB) for at, size in ((16, 3), (24, 3), (32, 7))]
        groups = explain(tmp_path / "s", trace, [segment(BASE, 64 * MIB, blocks)]).peak.rows
        kinds = {group.site.line: group.kind.words for group in groups}
        assert (kinds[64], kinds[70]) == ("parameter", "optimizer state")

    @pytest.mark.parametrize("num_assignments", [1, 4, 5])
    def test_all_assignments_in_a_step_are_followed(self, tmp_path: Path, num_assignments: int) -> None:
        """Each makes the new one and lets go of the one before; the last stays."""
        trace: list[Row] = [entry("alloc", BASE, 3 * MIB, frames=[APPLY, MAIN])]
        for number in range(num_assignments):
            frames = [frame("step", "/home/me/optimizer.py", 60 + number), *PYTHON_STEP]
            trace.append(entry("alloc", BASE + 8 * MIB * (number + 1), 3 * MIB, frames=frames))
            trace += freed(BASE + 8 * MIB * number, 3 * MIB, frames=frames)
        trace.append(entry("alloc", BASE + 56 * MIB, 7 * MIB, frames=PYTHON_FORWARD))
        blocks = [block(BASE + 8 * MIB * num_assignments, 3 * MIB), block(BASE + 56 * MIB, 7 * MIB)]
        groups = explain(tmp_path / "s", trace, [segment(BASE, 64 * MIB, blocks)]).peak.rows
        assert {group.site.line: group.kind.words for group in groups}[59 + num_assignments] == "parameter"


CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
COMPILED_FORWARD = frame("forward", f"{TORCH}/_functorch/_aot_autograd/runtime_wrappers.py", 1585)
TORCHS_STEP = [frame("step", f"{TORCH}/optim/adam.py", 220), STEP, MAIN]
CLOSURE = [frame("closure", "/home/me/train.py", 30), *TORCHS_STEP]


class TestCut:
    """Recordings that end anywhere, and steps that call the program back."""

    def kinds(self, path: Path, trace: list[Row], blocks: list[Row], **more: Any) -> dict[int, str]:
        device = explain(path, trace, [segment(BASE, 64 * MIB, blocks)], **more)
        return {group.bytes // MIB: group.kind.words for group in device.peak.rows}

    @pytest.mark.parametrize("is_annotated", [False, True])
    def test_a_closure_in_a_step_is_no_step(self, tmp_path: Path, is_annotated: bool) -> None:
        trace = [
            entry("alloc", BASE + 16 * MIB, MIB, time_us=11, frames=TORCHS_STEP),
            entry("alloc", BASE + 48 * MIB, 7 * MIB, time_us=11, frames=[MALLOC, *TORCHS_STEP]),
            entry("alloc", BASE, 5 * MIB, time_us=12, frames=[UNWIND, MALLOC, MUL, MODEL, CALL, *CLOSURE]),
            entry("alloc", BASE + 32 * MIB, 2 * MIB, time_us=13, frames=[UNWIND, MALLOC, MUL, *CLOSURE]),
            entry("alloc", BASE + 8 * MIB, 3 * MIB, time_us=14, frames=BACKWARD),
            *freed(BASE, 5 * MIB, time_us=15, frames=FREE_BACKWARD),
            *freed(BASE + 32 * MIB, 2 * MIB, time_us=15, frames=FREE_BACKWARD),
            entry("alloc", BASE + 24 * MIB, MIB, time_us=16, frames=TORCHS_STEP),
            *freed(BASE + 48 * MIB, 7 * MIB, time_us=17, frames=TORCHS_STEP),
            entry("alloc", BASE + 40 * MIB, 1, time_us=20, frames=FORWARD),
        ]
        region = [
            {"name": "Optimizer.step#Adam.step", "stage": stage, "device": 0, "time_us": time}
            for stage, time in (("START", 10), ("END", 18))
        ]
        blocks = [block(BASE + at * MIB, size) for at, size in ((8, 3 * MIB), (16, MIB), (24, MIB), (40, 1))]
        more = {"external_annotations": region} if is_annotated else {}
        kinds = self.kinds(tmp_path / "s", trace, blocks, **more)
        assert kinds == {
            1: "optimizer state", 5: "activation", 2: "activation", 3: "gradient", 7: "temporary",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("inside", "kind"),
        [
            ([CALL], "activation"),
            ([frame("backward", f"{TORCH}/_tensor.py", 600)], "activation"),
            # Of a class of tensors: its operators are its own, and no call of the program's.
            ([frame("__torch_dispatch__", "/home/me/quantised.py", 5)], "optimizer state"),
        ],
    )
    def test_what_other_optimizers_call_is_told_by_its_frames(
        self, tmp_path: Path, inside: list[Row], kind: str
    ) -> None:
        step = [frame("step", "/home/me/optimizer.py", 9), STEP, MAIN]
        trace = [
            entry("alloc", BASE, MIB, frames=[UNWIND, MALLOC, MUL, *inside, *step]),
            *freed(BASE, MIB, frames=FREE_BACKWARD),
            entry("alloc", BASE + 8 * MIB, 1, frames=FORWARD),
        ]
        assert self.kinds(tmp_path / "s", trace, [block(BASE + 8 * MIB, 1)])[1] == kind

    def test_a_variable_holds_it_over_the_step(self, tmp_path: Path) -> None:
        """The others of its stack are temporary; this one is let go of when the variable is set again."""
        trace = [
            entry("alloc", BASE, MIB, frames=FORWARD),
            *freed(BASE, MIB, frames=FREE_FORWARD),
            entry("alloc", BASE + 8 * MIB, 5 * MIB, frames=FORWARD),
            entry("alloc", BASE + 16 * MIB, 1, frames=BACKWARD),
            entry("alloc", BASE + 24 * MIB, 1, frames=IN_STEP),
            *freed(BASE + 8 * MIB, 5 * MIB, frames=FREE_FORWARD),
        ]
        assert self.kinds(tmp_path / "s", trace, [])[5] == "held"

    def test_alive_at_the_end_where_its_stack_made_temporaries(self, tmp_path: Path) -> None:
        """As in an inference that is cut within a layer: who knows whether it will be freed as the others were."""
        inside = [UNWIND, MALLOC, MODEL, CALL, MAIN]
        before = [entry("alloc", BASE, MIB, frames=inside), *freed(BASE, MIB, frames=FREE_FORWARD)]
        places = [BASE + 8 * number * MIB for number in range(5)]
        made = [entry("alloc", place, 5 * MIB, frames=inside) for place in places]
        blocks = [block(place, 5 * MIB) for place in places]
        assert self.kinds(tmp_path / "s", [*before, *made], blocks)[25] == "not known"
        assert self.kinds(tmp_path / "t", made, blocks)[25] == "activation"

    @pytest.mark.parametrize(
        ("num_freed", "num_kept", "around", "kind"),
        [
            (8, 4, [], "activation"),
            (9, 4, [], "not known"),
            (6, 5, [], "not known"),
            (9, 4, [COMPILED_FORWARD], "activation"),
            (6, 5, [COMPILED_FORWARD], "not known"),
        ],
    )
    def test_a_forward_that_keeps_a_third_of_what_it_makes_trains(
        self, tmp_path: Path, num_freed: int, num_kept: int, around: list[Row], kind: str
    ) -> None:
        """Of a dozen early blocks, and four late ones that nothing is said of; each of the freed has its line.

        Of fewer, those in use may be a cache of keys and values; workspaces are none of them. Of a compiled forward
        that is to be differentiated a third is not needed.
        """
        trace = []
        for line in range(num_freed):
            inside = [UNWIND, MALLOC, frame("forward", "/home/me/model.py", 100 + line), CALL, MAIN]
            trace += [entry("alloc", BASE, MIB, frames=inside), *freed(BASE, MIB, frames=FREE_FORWARD)]
            works = [UNWIND, MALLOC, frame("at::cuda::getNewWorkspace()", "??", 0), *inside[2:]]
            trace += [entry("alloc", BASE, MIB, frames=works), *freed(BASE, MIB, frames=FREE_FORWARD)]
        places = [BASE + 8 * number * MIB for number in range(num_kept + 4)]
        made = [(place, 5 * MIB if number < num_kept else MIB) for number, place in enumerate(places)]
        for line, (place, size) in enumerate(made):
            inside = [UNWIND, MALLOC, frame("forward", "/home/me/model.py", line), *around, CALL, MAIN]
            trace.append(entry("alloc", place, size, frames=inside))
        found = explain(tmp_path / "s", trace, [segment(BASE, 128 * MIB, [block(*parts) for parts in made])])
        assert {(group.bytes // MIB, group.kind.words) for group in found.peak.rows} == {(5, kind), (1, "not known")}


# ---- Kinds at the peaks of real recordings, against what their programs' sources say.
pytestmark = pytest.mark.skipif(not TRUTH.is_file(), reason="the recordings and their truth are not here")


@pytest.fixture(scope="module")
def verdicts() -> dict[bool, list[Verdict]]:
    truths = json.loads(TRUTH.read_text("utf-8"))
    return {
        bare: [judge(find(name), truth, without_cpp=bare) for name, truth in truths.items()] for bare in (False, True)
    }


@pytest.mark.slow  # as benchmarks.snapshot_kinds
def test_three_quarters_are_right_and_next_to_nothing_is_wrong(verdicts: dict[bool, list[Verdict]]) -> None:
    assert mean(verdicts[False]) >= MIN_MEAN
    for one in verdicts[False]:
        assert one.percent(one.right) >= MIN_RIGHT and one.percent(one.wrong) < MAX_WRONG, one.name


@pytest.mark.parametrize(("percent", "min_named"), [(55, 0.4), (85, 0.9)])
def test_what_an_out_of_memory_in_backward_leaves_is_what_the_whole_says(percent: int, min_named: float) -> None:
    """Cut in its backward, at the moment of the cut: nothing of weight is another kind than in the whole."""
    snapshot = load_snapshot(find("train_full_step_50GiB.pickle"))
    (whole,) = replay_snapshot(snapshot).devices
    entry = len(whole.state.trace) * percent // 100
    (part,) = replay_snapshot(cut(snapshot, entry)).devices
    sizes: Counter[bool | None] = Counter()
    of_whole, of_part = (
        dict(zip(device.replay.lives.addr[rows].tolist(), device.blocks.kind[rows].tolist(), strict=True))
        for device in (whole, part)
        for rows in [device.replay.lives.alive_after(entry - 1)]
    )
    rows = whole.replay.lives.alive_after(entry - 1)
    for address, size in zip(
        whole.replay.lives.addr[rows].tolist(), whole.replay.lives.requested_bytes[rows].tolist(), strict=True
    ):
        kind = of_part[address]
        sizes[None if kind in (Kind.UNKNOWN, Kind.BEFORE_RECORDING) else kind == of_whole[address]] += size
    total = sizes.total()
    assert sizes[False] < 0.005 * total and sizes[True] > min_named * total


@pytest.mark.slow  # as benchmarks.snapshot_kinds
def test_without_cpp_frames_no_more_than_a_third_is_lost(verdicts: dict[bool, list[Verdict]]) -> None:
    for bare, whole in zip(verdicts[True], verdicts[False], strict=True):
        assert bare.percent(bare.right) >= MIN_WITHOUT_CPP * whole.percent(whole.right), bare.name
        assert bare.percent(bare.wrong) < MAX_WRONG, bare.name
