"""Private pools by name: those of CUDA graphs are told by their number, or by what recorded into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.snapshots.test_findings import BASE, FORWARD, load
from tests.snapshot.dumps import Row, block, entry, frame, segment, snapshot
from tracer.analysis.snapshots.private_pools import pool_words, pools_of_graphs
from tracer.analysis.snapshots.sites import Sites

CAPTURE = frame("_record", "/py/site-packages/torch/_inductor/cudagraph_trees.py", 5)


@pytest.mark.parametrize(
    ("name", "is_of_graphs", "words"),
    [
        ("2,0", False, "private pool 2,0 of a CUDA graph"),
        ("0,5", True, "private pool 0,5 of CUDA graphs"),
        ("0,5", False, "private pool 0,5"),
        ("1,1", False, "private pool 1,1"),
    ],
)
def test_words(name: str, is_of_graphs: bool, words: str) -> None:
    assert pool_words(name, is_of_graphs=is_of_graphs) == words


@pytest.mark.parametrize("names_pools", [True, False])
def test_a_pool_is_of_graphs_if_one_was_recorded_in_it(tmp_path: Path, names_pools: bool) -> None:
    """By entries that name their pool, or by the blocks in its segments; the default pool is none."""
    trace: list[Row] = []
    segments: list[Row] = []
    for number, (pool, frames) in enumerate({(0, 5): [CAPTURE], (0, 6): FORWARD, (0, 0): [CAPTURE]}.items()):
        at = BASE + 4096 * number
        if names_pools:
            trace.append(entry("alloc", at, 512, frames=frames) | {"pool_id": pool})
        else:
            segments.append(segment(at, 4096, [block(at, 512, frames=frames)]) | {"segment_pool_id": pool})
    loaded = load(tmp_path / "s", snapshot(trace, segments))
    found = pools_of_graphs(loaded.devices[0], Sites(loaded.stacks))
    assert [loaded.text(number) for number in found] == ["0,5"]
