"""memory_timeline.html of a profiled run: findings of memory and of time in the shape that the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import numpy as np

from tracer.answers.answer import Answer
from tracer.answers.answer_of_findings import answer_of_findings
from tracer.answers.findings import CycleFindings, RunFindings
from tracer.answers.labels import PythonStacks
from tracer.answers.line_memory import line_memory
from tracer.answers.operators.run_times import RunTimeRow
from tracer.answers.peak import Peak
from tracer.answers.recording_findings import counted_blocks
from tracer.answers.rows import Row, group_rows
from tracer.answers.tables import Cell, Section, Table, columns
from tracer.arrays import Int, PerBlock, totals_by
from tracer.blocks.from_recording.blocks import LOOP_OWNER
from tracer.blocks.from_recording.cycle import Cycle
from tracer.blocks.from_snapshot.timeline import Band, BandKind
from tracer.blocks.table import Blocks
from tracer.capture.recording import Recording
from tracer.capture.torch_names import STEP_PREFIX, step_words
from tracer.exporters.annotated_source import annotated_files
from tracer.exporters.page.blocks import page_space
from tracer.exporters.page.model import (
    Curve,
    Mark,
    Page,
    PageSpace,
)
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation


_BANDS: dict[str, BandKind] = {"forward": "forward", "backward": "backward", "optimizer": "optimizer"}


def timeline_page(
    findings: RunFindings,
    answer: Answer | None = None,
    *,
    run: Mapping[str, str | int | float],
    title: str = "Memory of a training run",
    run_times: Sequence[RunTimeRow] | None = None,
    failed: FailedAllocation | None = None,
    source_of: Callable[[str], str | None] | None = None,
) -> Page:
    """The page of one device of a run, for the cycle in which memory ran out, else that with its largest peak.

    Args:
        answer: The answer of the run; by default what the findings alone say.
    """
    shown = _shown_cycle(findings, failed)
    cycle, peak, counted = shown.source, shown.peak, counted_blocks(shown)
    recording, lifetimes = cycle.recording, cycle.lifetimes
    times = recording.allocations.time_ns[lifetimes.events]
    groups, group = group_rows(counted, merged=("step",))
    return Page(
        title=title,
        device=peak.device,
        answer=answer or answer_of_findings(findings),
        subtitle=f"{some(len(times), 'event')} in {some(len(cycle.attribution.step_names), 'recorded step')}",
        times=times,
        series={kind.name: level[1:] for kind, level in counted.levels(len(times)).items()},
        lines=_reserved(cycle),
        counted_bytes=lifetimes.allocator_bytes,
        blocks=counted,
        groups=_with_stacks(groups, cycle.recording, counted, group),
        group=group,
        has_addresses=cycle.history is not None,
        space=_space(cycle),
        marks=(*_marks(shown), *_failure_marks(cycle, failed)),
        bands=_bands(cycle),
        breakdown=peak.by_category(),
        peak_row=peak.position,
        run=run,
        sources=() if source_of is None else annotated_files(line_memory(shown), source_of, peak.peak_bytes),
        sections=() if run_times is None else (_time_section(shown, run_times),),
    )


def _shown_cycle(findings: RunFindings, failed: FailedAllocation | None) -> CycleFindings:
    if failed is None or failed.in_use is None:
        return findings.worst
    return next((cycle for cycle in findings.parts if cycle.at_failure is failed.in_use), findings.worst)


def _with_stacks(groups: Sequence[Row], recording: Recording, blocks: Blocks, group: PerBlock[Int]) -> tuple[Row, ...]:
    """The rows with the stack of the largest block of each; an empty one where no Python code was running."""
    order = np.lexsort((-blocks.size_bytes, group))
    _, first = np.unique(group[order], return_index=True)
    frames, largest = PythonStacks(recording), blocks.row[order[first]].tolist()
    return tuple(replace(row, stack=frames.words_of(made)) for row, made in zip(groups, largest, strict=True))


def _space(cycle: Cycle) -> PageSpace | None:
    if (history := cycle.history) is None:
        return None
    from tracer.blocks.from_recording.allocator_join import reserved_ranges

    ranges = reserved_ranges(history, cycle.lifetimes)
    return None if ranges is None else page_space(ranges, history.texts.__getitem__)


def _reserved(cycle: Cycle) -> tuple[Curve, ...]:
    events = cycle.lifetimes.events
    reserved = cycle.recording.allocations.total_reserved_bytes[events]
    if cycle.recording.devices[cycle.lifetimes.device] == "cpu" or not reserved.any():
        return ()
    times = cycle.recording.allocations.time_ns[events]
    return (Curve("allocated", times, cycle.lifetimes.allocator_bytes), Curve("reserved", times, reserved))


def _marks(cycle: CycleFindings) -> tuple[Mark, ...]:
    peak, breakdown = cycle.peak, cycle.source.breakdown
    shown = Mark("peak", "peak", peak.time_ns, peak.peak_bytes, peak.position)
    # Where torch's categories hold all but a hundredth, or nothing, their peak says nothing more.
    if breakdown.tagged_peak_bytes * 100 >= peak.peak_bytes * 99 or not breakdown.tagged_peak_bytes:
        return (shown,)
    return (
        shown,
        Mark("tagged", "peak of torch's categories", breakdown.tagged_peak_ns, breakdown.tagged_peak_bytes),
    )


def _failure_marks(cycle: Cycle, failed: FailedAllocation | None) -> tuple[Mark, ...]:
    """The failed request: in the recorded steps where it was, behind them at their end, whose scale it leaves."""
    if failed is None:
        return ()
    asked = f"asked for {format_bytes(failed.event.asked_bytes)}"
    if (at := failed.in_use) is not None:
        return (Mark("oom", f"out of memory, {asked} at", at.time_ns, at.peak_bytes, at.position),)
    lifetimes, end = cycle.lifetimes, len(cycle.lifetimes.events) - 1
    time_ns = int(cycle.recording.allocations.time_ns[lifetimes.events[end]])
    in_use = format_bytes(failed.event.allocated_bytes)
    label = f"out of memory after these steps, {asked} with {in_use} in use; at their end"
    return (Mark("oom", label, time_ns, int(lifetimes.allocator_bytes[end]), end),)


def _bands(cycle: Cycle) -> tuple[Band, ...]:
    recording, spans = cycle.recording, cycle.recording.spans
    steps = [
        Band("step", recording.strings[spans.name[row]], int(spans.start_ns[row]), int(spans.end_ns[row]))
        for row in recording.spans_named(STEP_PREFIX).tolist()
    ]
    phases = [
        Band(_BANDS[phase.phase], phase.phase, start, end)
        for phase in cycle.step_phases
        for start, end in phase.stretches_ns
    ]
    return (*steps, *phases)


def _time_section(cycle: CycleFindings, times: Sequence[RunTimeRow]) -> Section:
    """Time of each step, and the slowest modules beside their memory."""
    rows: list[tuple[Cell, ...]] = []
    for name in cycle.source.attribution.step_names:
        mine = {phase.phase: phase.duration_ns for phase in cycle.source.step_phases if phase.step == name}
        rows.append((*(mine.get(phase) for phase in _BANDS), sum(mine.values()) if mine else None, step_words(name)))
    heads = (*columns("duration", *_BANDS, "all"), *columns("text", "step"))
    steps = Table("Each step, in ms, by the host's clock in the profiled steps", heads, tuple(rows))
    return Section("Time", (), (steps, slow_modules(times, cycle.peak)))


def slow_modules(times: Sequence[RunTimeRow], peak: Peak) -> Table:
    """Time of each module's own operators in a step beside what it held at the peak, slowest first.

    An operator that some steps lack counts by its share of them.
    """
    num_steps = max((row.num_steps for row in times), default=0)
    bytes_of = {module: size for module, (size, _) in totals_by(peak.rows, attrgetter("module")).items()}
    totals: dict[str, tuple[float, float, int]] = {}
    for invocation in times:
        module = invocation.module or LOOP_OWNER
        forward_ns, backward_ns, calls = totals.get(module, (0.0, 0.0, 0))
        share = invocation.num_steps / num_steps
        backward_ns += (invocation.backward_ns or 0.0) * share
        totals[module] = forward_ns + invocation.forward_ns * share, backward_ns, calls + 1
    rows = (
        (forward_ns + backward_ns, forward_ns, backward_ns, calls, bytes_of.get(module), module)
        for module, (forward_ns, backward_ns, calls) in totals.items()
    )
    heads = (
        *columns("duration", "time", "forward", "backward"),
        *columns("count", "operators"),
        *columns("bytes", "at the peak"),
        *columns("text", "module"),
    )
    return Table(
        "The slowest modules, in ms, and their memory", heads, tuple(sorted(rows, key=itemgetter(0), reverse=True))
    )
