"""Memory of CUDA graphs, worked out by hand on other memory; captures are in tests/on_null_gpu/test_graphs.py."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from tests.training_steps import record
from tracer.analysis.profiles.caveats import graph_sentences
from tracer.analysis.profiles.findings import Findings, GraphPool, find_in_cycle, put_together
from tracer.analysis.profiles.graph_pools import graph_pools
from tracer.capture.device.device_blocks import PoolBytes
from tracer.capture.graph_captures import Capture, LivePool
from tracer.capture.profiler.event_tree import read_recording

KIB, MIB = 1 << 10, 1 << 20
POOL = GraphPool(1, 4 * MIB, MIB, 0, True, 3 * MIB, ())


def made(size_kib: int) -> torch.Tensor:
    return torch.empty(size_kib * KIB, dtype=torch.uint8)


def captured() -> tuple[Findings, list[Capture]]:
    """Two captures in one recording: 100 and 200 KiB at once, of which 100 stay; then 400, freed before 250."""
    marks: list[int] = []
    kept: list[torch.Tensor] = []

    def work() -> None:  # which is called more than once
        marks.clear()
        kept.clear()
        before = made(1000)
        marks.append(time.time_ns())
        kept.append(made(100))
        freed = made(200)
        del freed
        marks.append(time.time_ns())
        kept.append(made(50))
        marks.append(time.time_ns())
        freed = made(400)
        del freed
        kept.append(made(250))
        marks.append(time.time_ns())
        del before

    (results,) = record(work)
    begins = [Capture(0, marks[0], marks[1], (1, 0)), Capture(0, marks[2], marks[3], (1, 0))]
    begins[1].in_use = frozenset({kept[0].data_ptr()})
    return put_together([find_in_cycle(read_recording(results))]), begins


def explained(findings: Findings, *captures: Capture) -> GraphPool:
    pools = [LivePool(captures, PoolBytes(900 * KIB, 350 * KIB))]
    (pool,) = graph_pools(pools, findings, known=None, module_names={})
    assert pool.peak_bytes == sum(row.bytes for row in pool.rows)
    return pool


def test_a_capture_is_what_it_allocated_at_its_own_peak() -> None:
    findings, (first, second) = captured()
    assert explained(findings, first).peak_bytes == 300 * KIB
    assert explained(findings, second).peak_bytes == 400 * KIB
    assert explained(findings, first).uncounted_bytes == 550 * KIB


def test_of_a_shared_pool_counts_what_an_earlier_capture_had_left() -> None:
    findings, captures = captured()
    pool = explained(findings, *captures)
    assert (pool.num_graphs, pool.peak_bytes) == (2, 500 * KIB)


def test_a_capture_that_nobody_recorded_may_have_a_backward() -> None:
    findings, (first, _) = captured()
    assert not explained(findings, first).has_backward
    elsewhere = Capture(0, 1, 2, (1, 0))
    unknown = explained(findings, elsewhere)
    assert unknown.has_backward and unknown.rows == ()


def test_memory_that_was_there_at_the_peak_is_beside_it() -> None:
    findings, (first, second) = captured()
    peak_ns = findings.worst.peak.time_ns
    assert second.began_ns <= peak_ns <= second.ended_ns
    assert explained(findings, first).first_cycle == 0
    assert explained(findings, second).first_cycle == 1
    beside = replace(findings, graph_pools=(POOL,))
    assert beside.graph_bytes == 3 * MIB
    assert replace(findings, graph_pools=(replace(POOL, first_cycle=1),)).graph_bytes == 0


@pytest.mark.parametrize(
    ("first_cycle", "words"), [(0, "With it the step takes"), (1, "The recorded steps' peaks came before that.")]
)
def test_a_sentence_says_how_much_and_whether_the_peak_is_without_it(first_cycle: int, words: str) -> None:
    findings, _ = captured()
    assert graph_sentences(findings) == ()
    (sentence,) = graph_sentences(replace(findings, graph_pools=(replace(POOL, first_cycle=first_cycle),)))
    assert sentence.startswith("1 CUDA graph works in 3.00 MiB of private pools: ") and words in sentence
