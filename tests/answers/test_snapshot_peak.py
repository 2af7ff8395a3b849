"""A snapshot's peak: rows, callers and reserved memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.answers.test_snapshot_findings import (
    BACKWARD,
    BASE,
    FORWARD,
    MALLOC,
    MIB,
    TORCH,
    UNWIND,
    explain,
    load,
    printed,
)
from tests.blocks.from_snapshot.autograd_recorder import record
from tests.snapshot.dumps import Row, block, each_real_file, entry, frame, freed, segment, snapshot, write
from tests.snapshot.explained import explain_snapshot
from tracer.allocator.fragmentation import AddressRanges, address_ranges
from tracer.answers.findings import SnapshotFindings
from tracer.answers.rows import CallerShare
from tracer.answers.rows import Row as PeakRow
from tracer.exporters.json_documents.header import record_values
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay


# ---- The worst moment of a recording, and what it never gave back: by hand.
def test_the_first_of_equal_peaks(tmp_path: Path) -> None:
    # 700 B, freed, 700 B again: the peak is at entry 0, and at the end nothing is left.
    trace = [entry("alloc", BASE, 700, time_us=5), *freed(BASE, 700), entry("alloc", BASE, 700), *freed(BASE, 700)]
    peak = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])]).peak
    assert (peak.position, peak.time_us, peak.peak_bytes, peak.fragmentation.allocated_bytes) == (0, 5, 700, 1024)
    assert peak.fragmentation.reserved_bytes == 2048 and peak.before_recording_bytes == 0


def test_a_peak_at_the_start(tmp_path: Path) -> None:
    peak = explain(tmp_path / "s", freed(BASE, 700), [segment(BASE, 2048, [])]).peak
    assert (peak.position, peak.time_us, peak.phase, peak.before_recording_bytes) == (-1, -1, None, 700)


def test_its_phase(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 700, frames=FORWARD), entry("alloc", BASE + 1024, 1, frames=BACKWARD)]
    assert explain(tmp_path / "s", trace).peak.phase in (None, "backward")
    blocks = [block(BASE, 700), block(BASE + 1024, 1)]
    assert explain(tmp_path / "t", trace, [segment(BASE, 4096, blocks)]).peak.phase == "backward"


def test_parts_by_kind_sum_and_are_largest_first(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 1024 * i, 100 * (i + 1), frames=FORWARD) for i in range(3)]
    blocks = [block(BASE + 1024 * i, 100 * (i + 1)) for i in range(3)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 4096, [*blocks, block(BASE + 3072, 50)])])
    found = [(share.name, share.bytes, share.count) for share in device.peak.by_kind]
    assert found == [("not known", 600, 3), ("before recording", 50, 1)]
    assert [share.name for share in device.peak.by_annotation] == ["no annotation", "before recording"]
    assert sum(group.bytes for group in device.never_freed) == 600


def test_by_stream_and_pool(tmp_path: Path) -> None:
    # Made on stream 7; made in a private pool of stream 0; there before, in a segment of stream 3; and freed.
    trace = [
        entry("alloc", BASE, 100) | {"stream": 7},
        entry("alloc", BASE + 1024, 200) | {"pool_id": (0, 5)},
        *freed(BASE + (1 << 30), 400),
    ]
    others = segment(BASE + 4096, 4096, [block(BASE + 4096, 300)]) | {"stream": 3}
    blocks = [block(BASE, 100), block(BASE + 1024, 200)]
    peak = explain(tmp_path / "s", [*trace[2:], *trace[:2]], [segment(BASE, 4096, blocks), others]).peak
    assert {share.name: share.bytes for share in peak.by_stream} == {"stream 0": 400, "stream 3": 300}
    peak = explain(tmp_path / "t", trace[:2], [segment(BASE, 4096, blocks), others]).peak
    shares = {share.name: share.bytes for share in peak.by_stream}
    assert shares == {"stream 7": 100, "stream 0, private pool 0,5": 200, "stream 3": 300}


def test_by_the_name_that_the_program_gave(tmp_path: Path) -> None:
    # Named when it was made; named later, twice, and once more behind the peak; another block's note at its address.
    named = {"user_metadata": "weights of the actor"}
    trace = [
        entry("alloc", BASE + 1024, 60),
        entry("annotate", BASE + 1024, 60) | {"user_metadata": "gone"},
        *freed(BASE + 1024, 60),
        entry("alloc", BASE, 100) | named,
        entry("alloc", BASE + 1024, 200) | {"user_metadata": ""},
        entry("annotate", BASE + 1024, 200) | {"user_metadata": "cache"},
        entry("annotate", BASE + 1024, 200) | {"user_metadata": "kv cache"},
        entry("alloc", BASE + 2048, 400) | {"user_metadata": ""},
        entry("annotate", BASE + 2048, 400) | {"user_metadata": "too late"},
    ]
    blocks = [block(BASE, 100), block(BASE + 1024, 200), block(BASE + 2048, 400), block(BASE + 3072, 800)]
    peak = explain(tmp_path / "s", trace, [segment(BASE, 4096, blocks)]).peak
    shares = {share.name: share.bytes for share in peak.by_name}
    assert shares == {"weights of the actor": 100, "kv cache": 200, "no name": 400, "before recording": 800}
    assert peak.has_names and not explain(tmp_path / "t", trace[-2:-1], [segment(BASE, 4096, blocks)]).peak.has_names


def test_the_pools_of_cuda_graphs_are_named(tmp_path: Path) -> None:
    """By their number, which a graph's own pool has in the first place, or by what recorded into them."""
    capture = frame("_record", "/py/site-packages/torch/_inductor/cudagraph_trees.py", 5)
    pools: dict[tuple[int, int], list[Row]] = {(2, 0): [], (0, 5): [capture, *FORWARD], (0, 6): FORWARD}
    segments, trace = [], []
    for number, (pool, frames) in enumerate(pools.items()):
        at = BASE + 4096 * number
        made = [block(at, 100 << number, frames=frames), block(at + 2048, 1 << number)]
        segments.append(segment(at, 4096, made) | {"segment_pool_id": pool})
        trace.append(entry("alloc", at, 100 << number, frames=frames))
    expected = {
        "stream 0, private pool 2,0 of a CUDA graph": 101,
        "stream 0, private pool 0,5 of CUDA graphs": 202,
        "stream 0, private pool 0,6": 404,
    }
    # Before torch 2.12 an entry does not name its pool, and its segment does.
    for entries in (trace, [one | {"pool_id": pool} for one, pool in zip(trace, pools, strict=True)]):
        peak = explain(tmp_path / "s", entries, segments).peak
        assert {share.name: share.bytes for share in peak.by_stream} == expected


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


# ---- Blocks gathered by line and kind.
def test_groups_keep_what_was_there_before_apart(tmp_path: Path) -> None:
    # 300 B without a stack and 200 B with one were there; 100 B come.
    blocks = [block(BASE, 300), block(BASE + 512, 200, frames=FORWARD), block(BASE + 1024, 100)]
    trace = [entry("alloc", BASE + 1024, 100, frames=FORWARD)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 2048, blocks)])
    shown = [(g.bytes, g.site.frame, g.is_before_recording) for g in device.peak.rows]
    assert shown == [(300, "before recording", True), (200, "forward", True), (100, "forward", False)]
    assert device.peak.before_recording_bytes == 500
    assert device.peak.rows[1].stack == (
        "at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)",
        f"linear ({TORCH}/nn/functional.py:20)",
        "einsum (/usr/lib/python3.11/site-packages/einops/einops.py:20)",
        "forward (/home/me/model.py:7)",
        "main (/home/me/train.py:70)",
    )
    assert [(g.bytes, g.site.frame) for g in device.never_freed] == [(100, "forward")]


# ---- Blocks of one line, divided by the callers that tell them apart.
LINEAR = frame("forward", "/home/me/linear.py", 22)
WRAPPED = frame("wrapped", "/home/me/linear.py", 50)
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
MAIN = frame("main", "/home/me/train.py", 7)


def in_model(line: int) -> Row:
    return frame("forward", "/home/me/model.py", line)


def finding_of(path: Path, *stacks: list[Row]) -> SnapshotFindings:
    """Of blocks of 1, 2, 3 ... MiB that these stacks made."""
    places = [BASE + 64 * MIB * number for number in range(len(stacks))]
    trace = [
        entry("alloc", place, (number + 1) * MIB, frames=[UNWIND, MALLOC, *stack])
        for number, (place, stack) in enumerate(zip(places, stacks, strict=True))
    ]
    blocks = [block(row["addr"], row["size"]) for row in trace]
    return explain_snapshot(load(path, snapshot(trace, [segment(BASE, 64 * MIB * len(stacks), blocks)])))


def group_of(path: Path, *stacks: list[Row]) -> PeakRow:
    (group,) = finding_of(path, *stacks).parts[0].peak.rows
    return group


def shown(group: PeakRow) -> list[tuple[int | None, int, int]]:
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
    groups = explain_snapshot(loaded).parts[0].never_freed
    (group,) = (group for group in groups if group.site.frame == "backward of project")
    assert {_line(share): share.count for share in group.callers} == {line + 2: 2, line + 3: 2}


# ---- Free memory within what is reserved, at any moment.
def test_holes_end_at_segments_and_pass_over_mapped_ranges(tmp_path: Path) -> None:
    # Segment A of 4096 with 512 in the middle: holes 1024 and 2560. Segment B follows at once, wholly free: 2048.
    a, b = segment(BASE, 4096, [block(BASE + 1024, 500)]), segment(BASE + 4096, 2048, [])
    found = explain(tmp_path / "s", [], [a, b]).source.end_memory
    assert (found.reserved_bytes, found.allocated_bytes, found.free_bytes) == (6144, 512, 5632)
    assert found.largest_free_bytes == 2560
    # An expandable segment of 4096 whose second half was mapped after the peak: before, the hole ends there.
    trace = [entry("alloc", BASE, 900), *freed(BASE, 900), entry("segment_map", BASE + 2048, 2048)]
    device = explain(tmp_path / "t", trace, [segment(BASE, 4096, [], expandable=True)])
    assert device.peak.fragmentation.largest_free_bytes == 1024
    assert device.source.end_memory.largest_free_bytes == 4096


def test_a_segment_that_was_given_back_later_was_there_at_the_peak(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 900), *freed(BASE, 900), entry("segment_free", BASE + MIB, 8192)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])])
    at_peak, at_end = device.peak.fragmentation, device.source.end_memory
    assert (at_peak.reserved_bytes, at_peak.free_bytes, at_peak.largest_free_bytes) == (10240, 9216, 8192)
    assert (at_end.reserved_bytes, at_end.free_bytes, at_end.largest_free_bytes) == (2048, 2048, 2048)


def ranges_of(loaded: Snapshot) -> AddressRanges:
    (state,) = loaded.devices
    return address_ranges(state)


def rows(found: AddressRanges) -> list[tuple[int, int, int, int]]:
    columns = (found.address - BASE, found.size_bytes, found.begin, found.end)
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in zip(*columns, strict=True)]


def test_by_hand(tmp_path: Path) -> None:
    trace = [
        entry("segment_alloc", BASE, 4 * MIB),
        entry("segment_free", BASE + 64 * MIB, 2 * MIB),
        entry("segment_free", BASE, 4 * MIB),
        entry("segment_alloc", BASE, 8 * MIB),
    ]
    loaded = load(
        tmp_path / "s",
        snapshot(
            trace,
            [
                segment(BASE, 8 * MIB, []),
                segment(BASE + 32 * MIB, 2 * MIB, []),
            ],
        ),
    )
    assert rows(ranges_of(loaded)) == [
        (0, 4 * MIB, 0, 2),
        (0, 8 * MIB, 3, 4),
        (32 * MIB, 2 * MIB, -1, 4),
        (64 * MIB, 2 * MIB, -1, 1),
    ]


def test_pages_of_an_expandable_segment_come_and_go_one_by_one(tmp_path: Path) -> None:
    trace = [
        entry("segment_map", BASE + 4 * MIB, 4 * MIB),
        # Of the two pages that were mapped together one goes, with one that was there before.
        entry("segment_unmap", BASE + 2 * MIB, 4 * MIB),
    ]
    left = segment(
        BASE + 6 * MIB,
        2 * MIB,
        [block(BASE + 6 * MIB, MIB)],
        expandable=True,
    )
    loaded = load(tmp_path / "s", snapshot(trace, [left]))
    assert rows(ranges_of(loaded)) == [
        (2 * MIB, 2 * MIB, -1, 1),
        (4 * MIB, 2 * MIB, 0, 1),
        (6 * MIB, 2 * MIB, 0, 2),
    ]


@each_real_file
def test_at_every_entry_the_ranges_sum_to_what_is_reserved(path: Path) -> None:
    loaded = load_snapshot(path, isolated=False)
    for state in loaded.devices:
        found, reserved = address_ranges(state), replay(state, loaded.settings).reserved_bytes
        level = np.zeros(len(reserved) + 1, np.int64)
        np.add.at(level, found.begin + 1, found.size_bytes)
        np.add.at(level, found.end + 1, -found.size_bytes)
        assert (np.cumsum(level)[: len(reserved)] == reserved).all()
        # No two of them overlap at any moment.
        for moment in (-1, len(state.trace) // 2, len(state.trace) - 1):
            there = np.flatnonzero((found.begin <= moment) & (found.end > moment))
            assert (found.address[there][1:] >= (found.address + found.size_bytes)[there][:-1]).all()
