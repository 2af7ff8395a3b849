"""The worst moment of a recording, and what it never gave back: by hand."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import BACKWARD, BASE, FORWARD, explain
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment


def test_the_first_of_equal_peaks(tmp_path: Path) -> None:
    # 700 B, freed, 700 B again: the peak is at entry 0, and at the end nothing is left.
    trace = [entry("alloc", BASE, 700, time_us=5), *freed(BASE, 700), entry("alloc", BASE, 700), *freed(BASE, 700)]
    peak = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])]).peak
    assert (peak.entry, peak.time_us, peak.requested_bytes, peak.fragmentation.allocated_bytes) == (0, 5, 700, 1024)
    assert peak.fragmentation.reserved_bytes == 2048 and peak.before_recording_bytes == 0


def test_a_peak_at_the_start(tmp_path: Path) -> None:
    peak = explain(tmp_path / "s", freed(BASE, 700), [segment(BASE, 2048, [])]).peak
    assert (peak.entry, peak.time_us, peak.phase, peak.before_recording_bytes) == (-1, -1, "", 700)


def test_its_phase(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 700, frames=FORWARD), entry("alloc", BASE + 1024, 1, frames=BACKWARD)]
    assert explain(tmp_path / "s", trace).peak.phase in ("", "backward")
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
