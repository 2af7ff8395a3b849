"""What was compiled is said once, with torch's reasons; the programs themselves are in test_compiled_programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training_steps import record
from tracer.analysis.compiled.origins import CompiledOrigins, Origin
from tracer.analysis.profiles.caveats import compiled_sentences
from tracer.analysis.profiles.findings import Findings, find_in_cycle, put_together
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.sources.compiled_code import (
    CompiledCode,
    CompiledFunction,
    CompiledGraph,
    CompiledNode,
    GraphBreak,
    MemoryBudget,
    RecomputedTensor,
)
from tracer.capture.sources.source_line import SourceLine

LINE = SourceLine("/home/somebody/net.py", 7)
GRAPHS = (CompiledGraph("a", ""), CompiledGraph("b", "", is_backward=True))


def found(code: CompiledCode, *, is_compiled: bool = True) -> Findings:
    """Findings in which everything is of a compiled region of which no more is known."""
    (results,) = record(lambda: torch.zeros(1024))
    recording = read_recording(results)
    num = len(recording.allocations.op)
    origins = CompiledOrigins((Origin("region"),), np.zeros(num, np.int64), np.full(num, -1))
    cycle = find_in_cycle(recording)
    attribution = replace(cycle.attribution, origins=origins if is_compiled else None)
    blocks = replace(cycle.peak.blocks, frame=np.full(len(cycle.peak.blocks.frame), -1))
    changed = replace(cycle, attribution=attribution, peak=replace(cycle.peak, blocks=blocks))
    return put_together([changed], compiled=code)


def test_a_program_that_compiles_nothing_has_no_sentence() -> None:
    assert compiled_sentences(found(CompiledCode(), is_compiled=False)) == ()


def test_graphs_breaks_and_recompilations_are_told() -> None:
    breaks = tuple(GraphBreak(f"reason {number}", LINE if number else None) for number in range(5))
    functions = (CompiledFunction("0/0", "forward", LINE, ""), CompiledFunction("0/1", "forward", LINE, "size\nmore"))
    first, *rest = compiled_sentences(found(CompiledCode(GRAPHS, functions, breaks)), file_name=lambda _: "net.py")
    assert first.startswith(
        "Compiled code ran: 1 graph of forward and 1 of backward; 5 graph breaks and 1 recompilation "
    )
    assert rest[:4] == [
        "Graph break: reason 0.",
        "Graph break at net.py:7: reason 1.",
        "Graph break at net.py:7: reason 2.",
        "2 more graph breaks.",
    ]
    assert rest[4] == "forward (net.py:7) was compiled again: size."


def test_what_is_computed_again_is_counted() -> None:
    again, other = (CompiledNode("gelu", (), -1, "", is_recomputed=one) for one in (True, False))
    graphs = (CompiledGraph("a", "", nodes=(other,)), CompiledGraph("b", "", is_backward=True, nodes=(again, other)))
    (_, said, _) = compiled_sentences(found(CompiledCode(graphs)))
    assert said == "Compiled backward computes 1 operator of forward again; 0 B of the peak hold the results."


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (("",), "this device has none"),
        (("mutated inputs.",), "mutated inputs"),
        (tuple("abcde"), "a; b; c; 2 more reasons"),
    ],
)
def test_cuda_graphs_that_were_not_made_are_told(left_out: tuple[str, ...], words: str) -> None:
    said = compiled_sentences(found(CompiledCode(GRAPHS, cuda_graphs_left_out=left_out)))[1]
    assert said.startswith(f"CUDA graphs were asked for, as mode=reduce-overhead does, and not made: {words}. ")


def test_what_cuda_graphs_have_reserved_is_told() -> None:
    code = CompiledCode(GRAPHS, cuda_graphs_left_out=("a.",), cuda_graphs_bytes=3 << 20)
    reserved, left_out = compiled_sentences(found(code))[1:3]
    assert reserved.startswith("3.00 MiB are reserved for CUDA graphs, which nothing else may use. ")
    assert left_out.startswith("CUDA graphs were asked for, as mode=reduce-overhead does, and not made: a. ")


def test_a_memory_budget_is_told_against_the_default() -> None:
    tensors = [RecomputedTensor(1024 * size, SourceLine("net.py", size) if size else None, "a") for size in range(5)]
    budgets = (MemoryBudget(0.5, 1024, 4096, tuple(tensors[:3])), MemoryBudget(0.5, 0, 8192, tuple(tensors[2:])))
    said = compiled_sentences(found(CompiledCode(GRAPHS, budgets=budgets)))[1]
    assert said == (
        "With an activation_memory_budget of 0.5 forward keeps 1.00 KiB for backward; by default it would keep "
        "12.00 KiB. The results of these lines are recomputed instead of kept: net.py:2 (4.00 KiB), net.py:4 "
        "(4.00 KiB), net.py:3 (3.00 KiB), 2 more lines."
    )


def test_what_came_too_late_says_how_to_get_it() -> None:
    *_, last = compiled_sentences(found(CompiledCode(GRAPHS)))
    assert last.startswith("4.00 KiB of the peak were allocated by compiled code and have no line. ")
    assert "torch.compiler.reset()" in last
