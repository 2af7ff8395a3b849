"""What was compiled is said once, with torch's reasons; the programs themselves are in test_compiled_programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tests.training_steps import record
from tracer.analysis.compiled.origins import CompiledOrigins, Origin
from tracer.analysis.profiles.compiled_words import compiled_sentences
from tracer.analysis.profiles.findings import Findings, find_in_cycle, put_together
from tracer.capture.compiled_code import CompiledCode, CompiledFunction, CompiledGraph, GraphBreak
from tracer.capture.event_tree import read_recording
from tracer.capture.source_line import SourceLine

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
    return put_together([replace(cycle, attribution=attribution)], compiled=code)


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


def test_what_came_too_late_says_how_to_get_it() -> None:
    *_, last = compiled_sentences(found(CompiledCode(GRAPHS)))
    assert last.startswith("4.00 KiB of the peak were allocated by compiled code and have no line. ")
    assert "torch.compiler.reset()" in last
