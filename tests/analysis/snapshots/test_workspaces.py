"""cuBLAS's workspaces in recordings of Python frames alone; those with C++ frames say it themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.snapshots.test_findings import BASE, MAIN, MIB, TORCH, load
from tests.analysis.snapshots.test_kind_finder import PYTHON_FORWARD, PYTHON_STEP
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.block_facts import LARGE_WORKSPACE_BYTES as LARGE
from tracer.analysis.snapshots.block_facts import LT_WORKSPACE_BYTES
from tracer.analysis.snapshots.findings import replay_snapshot

IN_LINEAR = [frame("forward", f"{TORCH}/nn/modules/linear.py", 130), *PYTHON_FORWARD]
A_STEP = [entry("alloc", BASE + 210 * MIB, 1, frames=PYTHON_STEP), *freed(BASE + 210 * MIB, 1, frames=[MAIN])]


def kinds_of(size: int, tmp_path: Path, trace: list[Row], left: Sequence[Row] = ()) -> list[str]:
    """Of the blocks of this size that were made, in their order."""
    (device,) = replay_snapshot(load(tmp_path / "s", snapshot(trace, list(left)))).devices
    lives = device.replay.lives
    rows = np.flatnonzero((lives.requested_bytes == size) & (lives.begin >= 0))
    return [Kind(found).words for found in device.kinds.of(rows[np.argsort(lives.begin[rows])])]


@pytest.mark.parametrize(
    ("size", "between", "layer", "is_common", "kind"),
    [
        (LARGE, [], False, False, "workspace"),
        (LARGE, [], True, True, "workspace"),
        (LARGE, [], False, True, "temporary"),
        (8_519_680, [], False, True, "workspace"),
        (LARGE, [entry("alloc", BASE + 40 * MIB, 1, frames=PYTHON_FORWARD)], True, False, "temporary"),
        (LARGE - 512, [], True, False, "temporary"),
    ],
)
def test_workspaces_of_one_call(
    tmp_path: Path, size: int, between: list[Row], layer: bool, is_common: bool, kind: str
) -> None:
    """As torch makes them since 2.15, in a layer and, without a stack, in its backward; others may have 32 MiB."""
    forward = IN_LINEAR if layer else PYTHON_FORWARD
    trace = []
    for frames in (forward, None):
        trace += [entry("alloc", BASE, size, frames=frames), *between, *freed(BASE, size, frames=frames and [MAIN])]
        trace += [row for made in between for row in freed(made["addr"], 1)]
    trace += A_STEP
    weight = [segment(BASE + 64 * MIB, LARGE, [block(BASE + 64 * MIB, LARGE)])] if is_common else []
    assert kinds_of(size, tmp_path, trace, weight) == [kind] * 2


@pytest.mark.parametrize(
    ("size", "layer", "has_result", "kinds"),
    [
        (LARGE, False, True, ["workspace", "workspace"]),
        (LARGE, False, False, ["temporary", "temporary"]),
        # cublasLt's, in layers alone; what backward makes of that size has no stack that tells it.
        (LT_WORKSPACE_BYTES, True, True, ["workspace", "temporary"]),
        (LT_WORKSPACE_BYTES, False, True, ["temporary", "temporary"]),
        (LT_WORKSPACE_BYTES, True, False, ["temporary", "temporary"]),
    ],
)
def test_a_workspace_is_made_right_after_the_products_result(
    tmp_path: Path, size: int, layer: bool, has_result: bool, kinds: list[str]
) -> None:
    """By the same line, where weights are of its size too; the driver's segment for it comes in between."""
    forward = IN_LINEAR if layer else PYTHON_FORWARD
    result = BASE + 40 * MIB
    trace = [entry("alloc", result, 512, frames=forward if has_result else [MAIN])]
    trace += [entry("segment_alloc", BASE, LARGE, frames=forward), entry("alloc", BASE, size, frames=forward)]
    trace += [*freed(BASE, size, frames=[MAIN]), entry("alloc", BASE, size), *freed(BASE, size)]
    trace += A_STEP
    left = [
        segment(BASE + at * MIB, length, [block(BASE + at * MIB, length)]) for at, length in ((40, 512), (64, LARGE))
    ]
    assert kinds_of(size, tmp_path, trace, left) == kinds


@pytest.mark.parametrize(("meanwhile", "kind"), [(16, "workspace"), (LARGE + 512, "temporary")])
def test_what_a_reduction_sums_in_is_no_result_of_a_workspaces_size(tmp_path: Path, meanwhile: int, kind: str) -> None:
    """Its counters come and go meanwhile, which are small; else blocks of the size may be the program's own."""
    counters = BASE + 40 * MIB
    trace = [entry("alloc", BASE, LARGE), entry("alloc", counters, meanwhile)]
    trace += [*freed(counters, meanwhile), *freed(BASE, LARGE), entry("alloc", BASE, LARGE), *freed(BASE, LARGE)]
    trace += A_STEP
    assert kinds_of(LARGE, tmp_path, trace)[1:] == [kind]


@pytest.mark.parametrize("has_product", [True, False])
def test_a_layers_workspace_of_cublaslt_tells_what_its_backward_works_in(tmp_path: Path, has_product: bool) -> None:
    """Also where results are as large; without a product in forward, it may be one of them."""
    result, lt = BASE + 40 * MIB, BASE + 80 * MIB
    trace = [entry("alloc", result, LARGE, frames=IN_LINEAR if has_product else [MAIN])]
    trace += [entry("alloc", lt, LT_WORKSPACE_BYTES, frames=IN_LINEAR), *freed(lt, LT_WORKSPACE_BYTES, frames=[MAIN])]
    trace += [entry("alloc", BASE, LARGE), *freed(BASE, LARGE), *freed(result, LARGE)]
    trace += A_STEP
    assert kinds_of(LARGE, tmp_path, trace)[1:] == ["workspace" if has_product else "temporary"]


@pytest.mark.parametrize(("file", "kind"), [("linear", "workspace"), ("conv", "not known")])
def test_a_convolution_keeps_no_workspace(tmp_path: Path, file: str, kind: str) -> None:
    """Autocast's copy and the result have its line, as a product's result and the workspace."""
    layer = [frame("forward", f"{TORCH}/nn/modules/{file}.py", 130), *PYTHON_FORWARD]
    trace = [entry("alloc", BASE + 80 * MIB, 512, frames=layer), entry("alloc", BASE, LARGE, frames=layer)]
    trace += A_STEP
    left = [segment(at, LARGE, [block(at, size)]) for at, size in ((BASE, LARGE), (BASE + 80 * MIB, 512))]
    assert kinds_of(LARGE, tmp_path, trace, left) == [kind]


LAST = entry("alloc", BASE, LARGE, frames=PYTHON_FORWARD)
OTHER = entry("alloc", BASE + 40 * MIB, 512, frames=PYTHON_FORWARD)


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        ([LAST], "workspace"),
        ([LAST, entry("oom", 0, LARGE, frames=PYTHON_FORWARD)], "workspace"),
        ([LAST, entry("free_requested", BASE, LARGE, frames=[MAIN])], "workspace"),
        ([LAST, OTHER], "not known"),
        ([OTHER, LAST, entry("free_requested", BASE + 40 * MIB, 512, frames=[MAIN])], "not known"),
    ],
    ids=["the last entry", "out of memory", "its free is requested", "another came", "another goes"],
)
def test_the_last_one_may_be_in_use(tmp_path: Path, tail: list[Row], kind: str) -> None:
    """Where the recording ends in the call, or runs out of memory there."""
    trace = [entry("alloc", BASE, LARGE, frames=PYTHON_FORWARD), *freed(BASE, LARGE, frames=[MAIN])]
    trace += [*A_STEP, *tail]
    blocks = [block(row["addr"], row["size"]) for row in tail if row["action"] == "alloc"]
    assert kinds_of(LARGE, tmp_path, trace, [segment(BASE, 64 * MIB, blocks)])[1:] == [kind]


@pytest.mark.parametrize(
    ("size", "layer", "calls", "is_result_gone", "kinds"),
    [
        (LARGE, True, 2, True, ["workspace", "workspace"]),
        (LARGE, True, 1, False, ["workspace", "workspace"]),  # out of memory in the first forward or backward
        (LT_WORKSPACE_BYTES, True, 2, True, ["workspace", "not known"]),
        (LARGE, False, 2, True, ["workspace", "workspace"]),
        (LARGE, False, 1, True, ["not known", "not known"]),
        (8_519_680, False, 1, False, ["workspace", "workspace"]),
    ],
)
def test_a_workspace_that_is_kept_is_made_once_and_never_freed(
    tmp_path: Path, size: int, layer: bool, calls: int, is_result_gone: bool, kinds: list[str]
) -> None:
    """As torch before 2.15 keeps one for each thread that calls cuBLAS: in forward, and in backward without a stack."""
    forward = IN_LINEAR if layer else PYTHON_FORWARD
    result, others = BASE + 80 * MIB, BASE + 40 * MIB
    trace = []
    for call in range(calls):
        trace += [entry("alloc", result, 512, frames=forward)]
        trace += [entry("alloc", BASE, size, frames=forward), entry("alloc", others, size)] if call == 0 else []
        trace += freed(result, 512) if is_result_gone else []
    trace += A_STEP
    places = [(BASE, size), (others, size), *([] if is_result_gone else [(result, 512)])]
    left = [segment(at, LARGE, [block(at, length)]) for at, length in places]
    assert kinds_of(size, tmp_path, trace, left) == kinds


def test_of_several_that_backward_leaves_none_is_a_workspace(tmp_path: Path) -> None:
    """Gradients of weights of 4,096 by 4,096 numbers in 16 bits have that size."""
    places = [BASE + 40 * at * MIB for at in range(4)]
    trace = [
        entry("alloc", BASE + 200 * MIB, 512, frames=IN_LINEAR),
        entry("alloc", places[0], LARGE, frames=IN_LINEAR),
    ]
    trace += [entry("alloc", places[1], LARGE), entry("alloc", places[2], LARGE)]
    trace += A_STEP
    left = [segment(at, LARGE, [block(at, LARGE)]) for at in places[:3]]
    left += [segment(BASE + 200 * MIB, 1 << 20, [block(BASE + 200 * MIB, 512)])]
    found = kinds_of(LARGE, tmp_path, trace, left)
    assert found[0] == "workspace" and "workspace" not in found[1:]
