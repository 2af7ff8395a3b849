"""Which blocks nobody uses any more at the peak: by hand, and beside a plain loop over all that a program does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.programs import Node, Program, Storage, programs
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.analysis.profiles.idle_blocks import IdleBlocks, last_peak
from tracer.analysis.profiles.peak import peak_position
from tracer.errors import RecordingError

LASTING = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE, Kind.WORKSPACE, Kind.GRADIENT)


def idle_sizes(cycle: CycleFindings, blocks: IdleBlocks) -> list[int]:
    return sorted(cycle.blocks.size_bytes[blocks.block[blocks.is_idle]].tolist())


def test_what_is_used_behind_the_peak_or_made_by_it_is_not_idle() -> None:
    """At the peak of 600 bytes 100 are used before it alone, 200 behind it, and 300 make it."""
    program = Program(
        [Storage(0, 100), Storage(1, 200), Storage(2, 300)],
        [Node(allocates={0, 1}), Node(reads={0, 1}), Node(allocates={2}), Node(reads={1, 2}), Node(frees={1, 2})],
    )
    cycle = find_in_cycle(program.recording())
    assert cycle.peak.peak_bytes == 600
    assert idle_sizes(cycle, IdleBlocks(cycle)) == [100]


def test_in_a_cycle_that_was_cut_nothing_of_its_last_step_is_idle() -> None:
    program = Program([Storage(0, 100), Storage(1, 300)], [Node(allocates={0}), Node(reads={0}), Node(allocates={1})])
    whole, cut = (find_in_cycle(program.recording(), is_whole=is_whole) for is_whole in (True, False))
    assert idle_sizes(whole, IdleBlocks(whole)) == [100]
    assert idle_sizes(cut, IdleBlocks(cut)) == []


@settings(max_examples=60, deadline=None)
@given(programs(blocks=False))
def test_idle_is_what_a_loop_over_all_reads_leaves(program: Program) -> None:
    try:
        cycle = find_in_cycle(program.recording())
    except RecordingError:  # nothing was allocated
        return
    blocks, recording = IdleBlocks(cycle), cycle.recording
    assert last_peak(cycle) == peak_position(cycle.lifetimes)
    assert len(blocks) == len(cycle.lifetimes.alive_at(last_peak(cycle)))
    edges = recording.flow
    for at, row in enumerate(blocks.block.tolist()):
        made, key = int(cycle.lifetimes.allocation[row]), int(cycle.lifetimes.key[row])
        kind = int(cycle.blocks.kind[row])
        times = [
            int(edges.node_time_ns[node])
            for node, which, makes, frees in zip(
                edges.edge_node.tolist(),
                edges.edge_key.tolist(),
                edges.edge_allocated.tolist(),
                edges.edge_freed.tolist(),
                strict=True,
            )
            if which == key and not makes and not frees
        ]
        made_ns = int(recording.allocations.time_ns[made]) if made >= 0 else -1
        expected = kind not in LASTING and made_ns < blocks.peak_ns and all(time < blocks.peak_ns for time in times)
        if not times and kind == Kind.INPUT and made >= 0:
            expected = False
        assert bool(blocks.is_idle[at]) == expected
    assert not np.any(blocks.is_idle & blocks.is_idle_gradient)
