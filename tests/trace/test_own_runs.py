"""A trace of a run of our own says what the run's recording says: every allocation, operator, owner and line.

What a trace cannot have is known: what operators used, which tensors were there before, and on the CPU what these
held, so that the blocks that the profiler saw being made are compared; and the lines of operators that make no call,
such as `a + b`, which need the source.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.training_steps import record_workload
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.profiler.trace_store import TraceStore
from tracer.capture.recording import Recording
from tracer.capture.sources.source_files import whole_path
from tracer.trace.load import load_trace

NAMES = ["convnet", "lstm", "checkpointing", "checkpointing_reentrant", "custom_function", "adamw_foreach", "lbfgs"]
WITH_INLINE_OPERATORS = ["fno_2d_new_zeros", "functional_model"]


# What was a tensor, what backward used, and which gradients an operator took are not in a trace.
KNOWN_TO_DIFFER = {
    ("HELD", "UNKNOWN"),
    ("AUTOGRAD_DETAIL", "TEMPORARY"),
    ("ACTIVATION", "TEMPORARY"),
    ("WORKSPACE", "TEMPORARY"),
}


# A gradient without evidence in the trace: neither zero_grad nor a later step of the optimizer's is in it.
WITHOUT_EVIDENCE = {"lbfgs": {("GRADIENT", "AUTOGRAD_DETAIL")}}
# Nested backward: the run was not told that AccumulateGrad took them, the trace has `zero_grad` let go of them.
KNOWN_BETTER = {"checkpointing_reentrant": {("AUTOGRAD_DETAIL", "GRADIENT")}}


@cache
def both(name: str) -> tuple[CycleFindings, CycleFindings]:
    """Of the run, and of its trace."""
    results = record_workload(name, n_cycles=1).results[0]
    store = TraceStore()
    store.add(results)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(b"".join(store.trace(0).chunks()))
        trace = load_trace(path)
    assert trace.remarks == ()
    return find_in_cycle(read_recording(results)), find_in_cycle(trace.recording)


def operators(recording: Recording) -> Counter[tuple[object, ...]]:
    ops = recording.ops
    columns = (ops.name, ops.kind, ops.start_ns, ops.end_ns, ops.sequence_number)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return Counter((recording.strings[name], *rest) for name, *rest in rows)


def rows_at(cycle: CycleFindings, position: int, *, with_lines: bool) -> Counter[tuple[object, ...]]:
    """Bytes by owner of what the profiler saw being made and was alive."""
    recording, blocks = cycle.recording, cycle.blocks
    alive = cycle.lifetimes.alive_at(position)
    found: Counter[tuple[object, ...]] = Counter()
    for block in alive[cycle.lifetimes.allocation[alive] >= 0].tolist():
        frame, op, module = (int(column[block]) for column in (blocks.frame, blocks.op, blocks.module))
        file = whole_path(recording.strings[recording.frames.file[frame]]) if frame >= 0 else None
        owner = (
            int(blocks.phase[block]),
            cycle.attribution.modules[module] if module >= 0 else None,
            recording.strings[recording.ops.name[op]] if op >= 0 else None,
            file,
            int(recording.frames.line[frame]) if frame >= 0 and with_lines else None,
        )
        found[owner] += int(blocks.size_bytes[block])
    return found


@pytest.mark.parametrize("name", [*NAMES, *WITH_INLINE_OPERATORS])
def test_a_trace_of_a_run_says_what_the_run_says(name: str) -> None:
    run, trace = both(name)
    events = [cycle.recording.allocations.size_bytes[cycle.lifetimes.events] for cycle in (run, trace)]
    assert np.array_equal(events[0], events[1])
    counted = trace.lifetimes.count.counter_bytes
    assert np.array_equal(run.lifetimes.count.counter_bytes, counted)
    assert operators(run.recording) == operators(trace.recording)
    assert len(run.recording.calls.kind) == len(trace.recording.calls.kind)
    peak = int(counted.argmax())
    rows = [rows_at(cycle, peak, with_lines=name in NAMES) for cycle in (run, trace)]
    assert rows[0] == rows[1] and sum(rows[0].values()) > 0
    assert [(span.phase, span.step) for span in run.step_phases] == [
        (span.phase, span.step) for span in trace.step_phases
    ]


@pytest.mark.parametrize("name", NAMES)
def test_kinds_of_a_trace_are_the_runs_or_need_what_operators_used(name: str) -> None:
    run, trace = both(name)
    kinds = []
    for cycle in (run, trace):
        made = cycle.lifetimes.allocation >= 0
        kinds.append(cycle.blocks.kind[made][np.argsort(cycle.lifetimes.made_at[made], kind="stable")])
    differs = kinds[0] != kinds[1]
    size = run.lifetimes.size_bytes[run.lifetimes.allocation >= 0]
    pairs = {(Kind(a).name, Kind(b).name) for a, b in zip(kinds[0][differs], kinds[1][differs], strict=True)}
    known = KNOWN_TO_DIFFER | WITHOUT_EVIDENCE.get(name, set()) | KNOWN_BETTER.get(name, set())
    assert pairs <= known, (pairs - known, size[differs].sum(), size.sum())
