"""The line in forward of what backward allocates, also of second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.answers.test_snapshot_findings import BACKWARD, BASE, ENGINE, FREE_BACKWARD, MAIN, MIB, UNWIND
from tests.blocks.from_snapshot.autograd_recorder import AutogradRecorder, record
from tests.blocks.from_snapshot.test_held_and_fed import FORWARD, HIDDEN, OTHER, RAN, STEP, gone, kinds, made
from tests.skips import by_default
from tests.snapshot.dumps import Row, block, entry, freed, segment, write
from tests.snapshot.explained import explain_snapshot
from tests.training_steps import ONE_OF_EACH, WORKLOADS, build_workload
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.blocks.from_snapshot.frames import is_python, is_users
from tracer.snapshot.columns import Frame
from tracer.snapshot.load import load_snapshot

# ---- Lines of backward's blocks, against programs whose nodes say themselves which operation of forward made them.

Line = tuple[str, int]


@dataclass(frozen=True)
class Verdict:
    """Bytes of backward, those that got a line, and the lines that are not the true ones."""

    total: int
    named: int
    wrong: list[tuple[Line, Line | None]]

    @property
    def share(self) -> float:
        return self.named / max(1, self.total)


def true_line(frames: list[Row]) -> Line | None:
    python = [Frame(row["name"], row["filename"], row["line"]) for row in frames]
    python = [frame for frame in python if is_python(frame)]
    best = next(filter(is_users, python), python[0] if python else None)
    return (best.file, best.line) if best is not None else None


def judge(recorder: AutogradRecorder, folder: Path, *, skip: int = 0) -> Verdict:
    """What is named of a recording, or of what is left of it without its first entries."""
    snapshot: dict[str, Any] = recorder.snapshot()
    snapshot["device_traces"] = [snapshot["device_traces"][0][skip:]]
    replayed = replay_snapshot(load_snapshot(write(folder / "snapshot.pickle", snapshot)))
    device = replayed.devices[0]
    lives = device.replay.lives
    truth = {entry - skip: frames for entry, frames in recorder.truth.items() if entry >= skip}
    rows = np.flatnonzero(np.isin(lives.begin, list(truth)))
    forward = device.kinds.backward_lines.forward_stacks(rows)
    wrong = []
    for row, stack in zip(rows.tolist(), forward.tolist(), strict=True):
        site = replayed.sites.site(stack) if stack >= 0 else None
        if site is not None and (site.file, site.line) != true_line(truth[int(lives.begin[row])]):
            wrong.append(((str(site.file), int(site.line or 0)), true_line(truth[int(lives.begin[row])])))
    sizes = lives.requested_bytes[rows]
    return Verdict(int(sizes.sum()), int(sizes[forward >= 0].sum()), wrong)


@pytest.mark.parametrize("name", by_default(WORKLOADS, ONE_OF_EACH[1:6]))
def test_no_line_of_a_training_step_is_wrong(name: str, tmp_path: Path) -> None:
    verdict = judge(record(build_workload(name).step), tmp_path)
    print(f"{name}: {100 * verdict.share:.0f} % of {verdict.total:,} B of backward")
    assert not verdict.wrong


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("transformer", 0.3),
        pytest.param("convnet", 0.5, marks=pytest.mark.slow),
        pytest.param("zero_grad_at_end", 0.3, marks=pytest.mark.slow),
    ],
)
def test_much_of_a_training_step_is_named(name: str, least: float, tmp_path: Path) -> None:
    assert judge(record(build_workload(name).step), tmp_path).share >= least


@pytest.mark.parametrize("name", by_default(["transformer", "zero_grad_at_end"], {"zero_grad_at_end"}))
def test_no_line_is_wrong_where_the_recording_begins_late(name: str, tmp_path: Path) -> None:
    recorder = record(build_workload(name).step, times=1)
    for skip in range(0, min(recorder.truth), 3):
        assert not judge(recorder, tmp_path, skip=skip).wrong, f"without the first {skip} entries"


def test_an_operation_before_the_recording_does_not_get_the_line_of_the_next(tmp_path: Path) -> None:
    torch.manual_seed(0)
    a, b, tokens = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8)), torch.arange(8)

    def program() -> None:
        first = F.embedding(tokens, a)
        second = F.embedding(tokens, b)
        torch.softmax(first + second, -1).pow(2).sum().backward()

    recorder = record(program, times=1)
    for skip in range(min(recorder.truth)):
        assert not judge(recorder, tmp_path, skip=skip).wrong, f"without the first {skip} entries"


def two_losses(x: Tensor, a: Tensor, b: Tensor) -> None:
    left = torch.softmax(x @ a, -1)
    right = torch.softmax(x @ b, -1)
    left.pow(2).sum().backward(retain_graph=True)
    right.pow(2).sum().backward()


def with_dead_ends(x: Tensor, a: Tensor, b: Tensor) -> None:
    hidden = torch.softmax(x @ a, -1)
    torch.softmax(hidden @ b, -1)
    with torch.no_grad():
        torch.softmax(hidden @ a, -1)
    out = torch.softmax(hidden @ b, -1)
    (out * hidden).sum().backward()


def twice_differentiated(x: Tensor, a: Tensor, b: Tensor) -> None:
    loss = torch.softmax(torch.softmax(x @ a, -1) @ b, -1).pow(2).mean()
    (gradient,) = torch.autograd.grad(loss, a, create_graph=True)
    ((gradient @ b).pow(2).sum() + loss).backward()


def in_place(x: Tensor, a: Tensor, b: Tensor) -> None:
    hidden = x @ a
    hidden.relu_()
    hidden = torch.relu(hidden) @ b
    hidden *= 2
    F.gelu(hidden).sum().backward()


def cross_attention(x: Tensor, a: Tensor, b: Tensor) -> None:
    query = x @ a
    key = x @ b
    value = query @ b
    (torch.softmax(query @ key.T, -1) @ value).sum().backward()


def rotated(x: Tensor, a: Tensor, b: Tensor) -> None:
    """Looks up twice without a gradient, among matrix products that have one, and once with one."""
    table, index = torch.randn(8, 8), torch.arange(8)
    hidden = torch.softmax(a[index[: len(x) % 8 or 8]][0] + x, -1)
    query = hidden @ a
    key = hidden @ b
    query = query * table[index][0]
    key = key * table[index][0]
    torch.softmax(query @ key.T, -1).sum().backward()


@pytest.mark.parametrize(
    "program", [two_losses, with_dead_ends, twice_differentiated, in_place, cross_attention, rotated]
)
@pytest.mark.parametrize("rows", by_default([8, 16], {16}))
def test_no_line_of_a_contrived_program_is_wrong(program: Callable[..., None], rows: int, tmp_path: Path) -> None:
    """Equal sizes throughout, so that only order and number can tell."""
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
    assert not judge(record(lambda: program(torch.randn(rows, 8), a, b)), tmp_path).wrong


def test_equal_operations_in_a_row_are_told_apart_by_their_number(tmp_path: Path) -> None:
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
    x = torch.randn(4, 8, requires_grad=True)

    def program() -> None:
        hidden = torch.softmax(x @ a, -1)
        query = hidden @ a
        key = hidden @ b
        torch.softmax(query @ key.T, -1).sum().backward()

    verdict = judge(record(program), tmp_path)
    assert not verdict.wrong
    assert verdict.share > 0.5


def test_operations_without_a_gradient_may_lie_among_them(tmp_path: Path) -> None:
    """The three products are one run of backward, and two of forward."""
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
    recorder = record(lambda: rotated(torch.randn(4, 8), a, b))
    assert judge(recorder, tmp_path).share > 0.4
    snapshot = load_snapshot(write(tmp_path / "snapshot.pickle", recorder.snapshot()))
    groups = explain_snapshot(snapshot).parts[0].never_freed
    first = rotated.__code__.co_firstlineno
    assert {first + 4, first + 5} <= {group.site.line for group in groups if group.site.frame == "backward of rotated"}


def test_nothing_is_named_across_a_recomputation(tmp_path: Path) -> None:
    for name in ("checkpointing", "checkpointing_reentrant"):
        assert judge(record(build_workload(name).step), tmp_path).named == 0


def test_the_groups_say_backward_of_the_line(tmp_path: Path) -> None:
    recorder = record(build_workload("zero_grad_at_end").step)
    snapshot = load_snapshot(write(tmp_path / "snapshot.pickle", recorder.snapshot()))
    groups = explain_snapshot(snapshot).parts[0].never_freed
    named = [group for group in groups if group.site.frame.startswith("backward of ")]
    assert named
    assert all(group.site.file is not None and group.site.file.endswith("training_steps.py") for group in named)


# ---- What a backward makes for another one: it is saved, and on its way until both are over.

SAVED, SECOND = BASE + 512 * MIB, BASE + 640 * MIB
IN_FREE = [UNWIND, ENGINE]
SIZES = {SAVED: 13 * MIB, SECOND: 3 * MIB}  # the second as large as the weight


def of(address: int, frames: list[Row]) -> Row:
    return entry("alloc", address, SIZES[address], frames=frames)


def left(*addresses: int) -> list[Row]:
    return [segment(one, SIZES[one], [block(one, SIZES[one])]) for one in addresses]


BETWEEN = made(OTHER, [UNWIND, MAIN])  # the program's own, between two runs of backward


def first_backward(saved_in: list[Row]) -> list[Row]:
    return [*FORWARD, of(SAVED, saved_in), BETWEEN, *gone(OTHER, [UNWIND, MAIN])]


@pytest.mark.parametrize(("release", "kind"), [(FREE_BACKWARD, "activation"), (IN_FREE, "temporary")])
def test_what_a_second_backward_lets_go_of_was_saved_for_it(tmp_path: Path, release: list[Row], kind: str) -> None:
    trace = [*first_backward(BACKWARD), *freed(SAVED, SIZES[SAVED], frames=release), *gone(HIDDEN, FREE_BACKWARD)]
    assert kinds(tmp_path, [*trace, *STEP])[SAVED] == [kind]


def test_what_is_let_go_of_in_the_same_backward_was_not_saved_for_another(tmp_path: Path) -> None:
    trace = [*FORWARD, of(SAVED, BACKWARD), *freed(SAVED, SIZES[SAVED], frames=FREE_BACKWARD), *RAN, *STEP]
    assert kinds(tmp_path, trace)[SAVED] == ["temporary"]


@pytest.mark.parametrize("is_second", [True, False])
def test_of_a_second_derivative_nothing_that_is_not_over_is_told(tmp_path: Path, is_second: bool) -> None:
    """Of a weight's size: its gradient, or what it gets from one of its two uses."""
    begun = [*first_backward(BACKWARD), *freed(SAVED, SIZES[SAVED], frames=FREE_BACKWARD)] if is_second else FORWARD
    found = kinds(tmp_path, [*begun, of(SECOND, BACKWARD)], more=left(SECOND))
    assert found[SECOND] == ["not known" if is_second else "gradient"]


@pytest.mark.parametrize(("size", "kind"), [(13 * MIB, "not known"), (3 * MIB, "gradient")])
def test_what_a_backward_leaves_that_is_no_gradient_may_be_for_a_second_one(
    tmp_path: Path, size: int, kind: str
) -> None:
    """It is as large as the weight where it is its gradient, and another loss's backward follows."""
    trace = [*FORWARD, entry("alloc", SAVED, size, frames=BACKWARD), BETWEEN, of(SECOND, BACKWARD)]
    whole = segment(SAVED, size, [block(SAVED, size)])
    found = kinds(tmp_path, trace, HIDDEN, OTHER, more=[*left(SECOND), whole])
    assert found[SECOND] == [kind]


@pytest.mark.parametrize(("size", "kind"), [(SIZES[SECOND], "temporary"), (4 * MIB, "gradient")])
def test_what_has_stack_and_size_of_temporaries_is_no_gradient(tmp_path: Path, size: int, kind: str) -> None:
    """The first part of a gradient waits for the second one, and is never free where the recording ends."""
    sum_of_parts = [entry("alloc", SAVED, size, frames=BACKWARD), *freed(SAVED, size, frames=IN_FREE)]
    trace = [*FORWARD, *sum_of_parts, of(SECOND, BACKWARD)]
    assert kinds(tmp_path, trace, more=left(SECOND))[SECOND] == [kind]


def test_a_graph_that_a_variable_keeps_over_a_step_is_no_gradient(tmp_path: Path) -> None:
    for frames, kind in (([UNWIND, MAIN], "not known"), (None, "gradient")):
        trace = [*first_backward(BACKWARD), *gone(HIDDEN, FREE_BACKWARD), *STEP]
        assert kinds(tmp_path, [*trace, *freed(SAVED, SIZES[SAVED], frames=frames)])[SAVED] == [kind]
