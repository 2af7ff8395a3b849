"""Blocks of one line, divided by the callers that tell them apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.analysis.snapshots.autograd_recorder import record
from tests.analysis.snapshots.test_findings import BASE, MALLOC, MIB, TORCH, UNWIND, load, printed
from tests.snapshot.dumps import Row, block, entry, frame, segment, snapshot, write
from tests.snapshot.explained import explain_snapshot
from tracer.analysis.snapshots.findings import SnapshotFinding
from tracer.analysis.snapshots.peak import CallerShare, SnapshotRow
from tracer.exporters.json_documents.header import record_values
from tracer.snapshot.load import load_snapshot

LINEAR = frame("forward", "/home/me/linear.py", 22)
WRAPPED = frame("wrapped", "/home/me/linear.py", 50)
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
MAIN = frame("main", "/home/me/train.py", 7)


def in_model(line: int) -> Row:
    return frame("forward", "/home/me/model.py", line)


def finding_of(path: Path, *stacks: list[Row]) -> SnapshotFinding:
    """Of blocks of 1, 2, 3 ... MiB that these stacks made."""
    places = [BASE + 64 * MIB * number for number in range(len(stacks))]
    trace = [
        entry("alloc", place, (number + 1) * MIB, frames=[UNWIND, MALLOC, *stack])
        for number, (place, stack) in enumerate(zip(places, stacks, strict=True))
    ]
    blocks = [block(row["addr"], row["size"]) for row in trace]
    return explain_snapshot(load(path, snapshot(trace, [segment(BASE, 64 * MIB * len(stacks), blocks)])))


def group_of(path: Path, *stacks: list[Row]) -> SnapshotRow:
    (group,) = finding_of(path, *stacks).devices[0].peak.groups
    return group


def shown(group: SnapshotRow) -> list[tuple[int | None, int, int]]:
    return [(_line(share), share.bytes // MIB, share.count) for share in group.callers]


def _line(share: CallerShare) -> int | None:
    return None if share.site is None else share.site.line


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        # Frames of torch between them do not count, and neither do those further out.
        (
            [
                [LINEAR, CALL, in_model(76), CALL, MAIN],
                [LINEAR, CALL, in_model(80), MAIN],
                [LINEAR, in_model(76), frame("other", "/home/me/train.py", 9)],
            ],
            [(76, 4, 2), (80, 2, 1)],
        ),
        # The first frame above it is the same: the next one tells.
        ([[LINEAR, WRAPPED, in_model(3)], [LINEAR, WRAPPED, in_model(4)]], [(4, 2, 1), (3, 1, 1)]),
        # One has a caller, the other has none.
        ([[LINEAR], [LINEAR, in_model(4)]], [(4, 2, 1), (None, 1, 1)]),
        # No frame of the program's differs.
        ([[LINEAR, in_model(4), CALL], [LINEAR, CALL, in_model(4)]], []),
        ([[LINEAR, in_model(4)]], []),
    ],
)
def test_the_first_frame_that_differs(
    tmp_path: Path, stacks: list[list[Row]], expected: list[tuple[int | None, int, int]]
) -> None:
    group = group_of(tmp_path / "s", *stacks)
    assert shown(group) == expected
    assert sum(share.bytes for share in group.callers) in (0, group.bytes)


def test_the_screen_has_the_largest(tmp_path: Path) -> None:
    text = printed(finding_of(tmp_path / "s", *([LINEAR, in_model(line)] for line in range(1, 8))))
    assert "7.00 MiB in 1 block from forward  ~/model.py:7" in text
    assert "model.py:4" in text and "model.py:3" not in text
    assert "6.00 MiB from 3 more lines" in text
    small = printed(finding_of(tmp_path / "t", [LINEAR, in_model(1)], [LINEAR, in_model(2)], *[[MAIN]] * 11))
    assert "model.py" not in small, "less than a twentieth of all"


def test_the_document_has_them(tmp_path: Path) -> None:
    nothing = {"frame": None, "file": None, "line": None}
    assert record_values(group_of(tmp_path / "s", [LINEAR], [LINEAR, in_model(4)]))["callers"] == [
        {"bytes": 2 * MIB, "count": 1, "frame": "forward", "file": "/home/me/model.py", "line": 4},
        {"bytes": MIB, "count": 1, **nothing},
    ]


def project(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def test_gradients_have_the_callers_of_forward(tmp_path: Path) -> None:
    """Autograd's threads have no Python frame, and all gradients are of one line."""
    a, b, c = (nn.Parameter(torch.randn(8, 8)) for _ in range(3))

    def program() -> None:
        first = torch.softmax(project(torch.randn(8, 8), a), -1)
        second = torch.softmax(project(first, b), -1)
        torch.softmax(project(second, c), -1).pow(2).sum().backward()

    line = program.__code__.co_firstlineno
    loaded = load_snapshot(write(tmp_path / "snapshot.pickle", record(program, times=1).snapshot()))
    groups = explain_snapshot(loaded).devices[0].never_freed
    (group,) = (group for group in groups if group.site.frame == "backward of project")
    assert {_line(share): share.count for share in group.callers} == {line + 2: 2, line + 3: 2}
