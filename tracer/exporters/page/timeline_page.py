"""memory_timeline.html of a profiled run: findings of memory and of time in the shape that the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from tracer.analysis.operators.run_times import RunTimes
from tracer.analysis.profiles.caveats import (
    asleep_sentences,
    compiled_sentences,
    counted,
    eager_sentences,
    graph_sentences,
    growth_sentences,
    left_out,
    not_recorded,
    unseen,
)
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks
from tracer.analysis.profiles.counted_blocks import CountedBlocks, counted_blocks
from tracer.analysis.profiles.findings import CycleFindings, Findings
from tracer.analysis.profiles.line_memory import line_memory
from tracer.analysis.profiles.peak import LOOP_OWNER, PeakReport, group_rows
from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.snapshots.timeline import Band, BandKind
from tracer.arrays import Int, PerBlock, totals_by
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording
from tracer.capture.torch_names import STEP_PREFIX, step_words
from tracer.exporters.annotated_source import AnnotatedFile, annotated_files
from tracer.exporters.page.blocks import page_space
from tracer.exporters.page.data import headline
from tracer.exporters.page.history_sections import (
    first_changes_sections,
    host_sections,
    much_saved,
    oom_section,
    oom_sentences,
    reserved_table,
)
from tracer.exporters.page.model import (
    Cell,
    Curve,
    FileCell,
    KindBytes,
    Mark,
    Page,
    PageAdvice,
    PageBlocks,
    PageLane,
    PageLostTrack,
    PagePeak,
    PageSpace,
    Section,
    Series,
    SlowModule,
    StepTiming,
    Table,
)
from tracer.exporters.python_stacks import PythonStacks
from tracer.exporters.screen.paths import source_place
from tracer.units import format_bytes, ms, some

if TYPE_CHECKING:
    from tracer.analysis.aligned_curves import MemoryCurve
    from tracer.analysis.peak_diff import PeakChange, PeakDiff
    from tracer.analysis.profiles.failed_allocation import FailedAllocation
    from tracer.analysis.snapshots.causes.pinned_memory import PinnedLine
    from tracer.analysis.snapshots.first_changes import FirstChanges
    from tracer.analysis.times.findings import TraceTimes
    from tracer.analysis.times.step_times import StepTimes
    from tracer.capture.device.host_peak import HostPeak
    from tracer.changes.recommendation import AdviceReport, UnneededMemory


# Below this part of the peak, a thousandth, a row says nothing.
_LEAST_SHARE = 1000
_BANDS: dict[str, BandKind] = {"forward": "forward", "backward": "backward", "optimizer": "optimizer"}


def timeline_page(
    findings: Findings,
    *,
    run: Mapping[str, str | int | float],
    caveat: str = "",
    notes: tuple[str, ...] = (),
    slow_modules: tuple[SlowModule, ...] = (),
    failed: FailedAllocation | None = None,
    first: FirstChanges | None = None,
    pinned: Sequence[PinnedLine] = (),
    host: HostPeak | None = None,
    known: KnownStorages | None = None,
    against_eager: PeakDiff | None = None,
    advice: AdviceReport | None = None,
    unneeded: tuple[UnneededMemory, ...] = (),
    device_times: TraceTimes | None = None,
    verdict: str = "",
    source_of: Callable[[str], str | None] | None = None,
) -> Page:
    """The page of one device of a run, for the cycle with its largest peak."""
    cycle = findings.worst
    recording, lifetimes, peak = cycle.recording, cycle.lifetimes, cycle.peak
    times, counted = recording.allocations.time_ns[lifetimes.events], counted_blocks(cycle)
    page = Page(
        title=_title(device_times, verdict),
        device=peak.device,
        caveat=caveat,
        subtitle=f"{some(len(times), 'event')} in {some(len(cycle.attribution.step_names), 'recorded step')}",
        times=times,
        series=tuple(Series(kind.name, level[1:]) for kind, level in counted.by_kind.items()),
        lines=_reserved(cycle),
        counted_bytes=lifetimes.allocator_bytes,
        blocks=_blocks(cycle, counted, known),
        space=_space(cycle),
        marks=_marks(cycle),
        bands=_bands(cycle),
        lanes=() if device_times is None else time_lanes(device_times),
        peak=_page_peak(cycle),
        advice=(*map(_found, unneeded), *_advice(advice)),
        lost_track=_lost_track(cycle),
        timings=_timings(cycle),
        clock="the host's clock, in the profiled steps",
        slow_modules=slow_modules,
        run=run,
        sources=_sources(cycle, known, source_of),
        alarm=() if failed is None else oom_sentences((failed.event,), peak.device),
        headline_notes=(
            *much_saved(None if failed else first),
            *_headline_notes(peak),
            *(() if device_times is None else (_cause(device_times),)),
        ),
        notes=(
            *notes,
            *left_out(findings),
            *asleep_sentences(cycle.peak),
            *graph_sentences(findings),
            *compiled_sentences(findings),
            *unseen(recording, lifetimes),
            *growth_sentences(findings.growth),
        ),
        sections=(
            *(first_changes_sections(first) if failed is None else (_failure_section(failed, peak),)),
            *(() if against_eager is None else (_eager_section(against_eager),)),
            *_reserved_section(peak),
            *host_sections(pinned, host),
            *(() if device_times is None else (_time_section(device_times),)),
        ),
    )
    return replace(page, answer=(verdict, *headline(page))) if verdict else page


def _cause(times: TraceTimes) -> str:
    from tracer.analysis.times.findings import cause

    return f"Time on GPU {times.device}: {cause(times)}"


def _sources(
    cycle: CycleFindings, known: KnownStorages | None, source_of: Callable[[str], str | None] | None
) -> tuple[AnnotatedFile, ...]:
    if source_of is None:
        return ()
    return annotated_files(line_memory(cycle, known), source_of, cycle.peak.peak_bytes)


def curve_of_cycle(cycle: CycleFindings) -> MemoryCurve:
    """Memory of a cycle by kind, over its events."""
    from tracer.analysis.aligned_curves import MemoryCurve, positions_of

    times = np.maximum.accumulate(cycle.recording.allocations.time_ns[cycle.lifetimes.events])
    position = np.arange(len(times), dtype=np.int64)
    levels = {kind.words: level[1:] for kind, level in counted_blocks(cycle).by_kind.items()}
    return MemoryCurve(position, levels, positions_of(_bands(cycle), times, position))


def _page_peak(cycle: CycleFindings) -> PagePeak:
    peak = cycle.peak
    return PagePeak(
        bytes=peak.peak_bytes,
        time=peak.time_ns,
        step=peak.step,
        phase=peak.phase,
        breakdown=tuple(KindBytes(name, size_bytes) for name, size_bytes in peak.by_category().items()),
        rows=peak.rows,
        row=cycle.peak.position,
    )


def _failure_section(failed: FailedAllocation, peak: PeakReport) -> Section:
    at_peak = failed.event.groups if failed.is_at(peak) else ()
    return oom_section((failed.event,), failed.first, at_peak=at_peak)


def _title(device_times: TraceTimes | None, verdict: str) -> str:
    if verdict:
        return "Predicted memory of a training step"
    return "Memory of a training run" if device_times is None else "Memory and time of a trace"


def _advice(report: AdviceReport | None) -> tuple[PageAdvice, ...]:
    if report is None:
        return ()
    rows = [*report.rows, *([report.together] if report.together is not None else [])]
    return tuple(
        PageAdvice(f"{row.change} ({row.results})", row.gain_bytes, row.cost, _HOW[row.how_found]) for row in rows
    )


def _found(unneeded: UnneededMemory) -> PageAdvice:
    where = f" at {source_place(unneeded.file, unneeded.line)}" if unneeded.file is not None else ""
    holder = f", held by {unneeded.held_by}" if unneeded.held_by else ""
    how = "looking at the recording" if unneeded.saves_bytes is None else "rehearsal"
    return PageAdvice(f"of {unneeded.what}{where}{holder}: {unneeded.change}", unneeded.bytes, "", how)


_HOW = {"rehearsed": "rehearsal", "replayed": "replay", "measured": "measuring"}


def _eager_section(diff: PeakDiff) -> Section:
    sizes = ("change", "without compilation", "compiled")

    def table(title: str, names: tuple[str, ...], changes: Sequence[PeakChange]) -> Table:
        rows: list[tuple[Cell, ...]] = [
            (change.bytes, change.before_bytes, change.after_bytes, *change.name) for change in changes
        ]
        return Table(title, (*sizes, *names), tuple(rows))

    return Section(
        "Compiled, and the same without compilation",
        eager_sentences(diff),
        (
            table("By category", ("category",), diff.changes["category"]),
            table("By module", ("module",), diff.changes["module"]),
            table("By line", ("category", "module", "operator or kernel", "line"), diff.changes["line"]),
        ),
    )


def _blocks(cycle: CycleFindings, counted: CountedBlocks, known: KnownStorages | None) -> PageBlocks:
    """Every block of the cycle; at the peak these are the peak's rows."""
    blocks = counted.blocks
    groups, group = group_rows(cycle, known, blocks, history=cycle.history, by_step=False)
    stacks = _stacks(cycle.recording, blocks, group, len(groups))
    address = blocks.address if cycle.history is not None else None
    return PageBlocks(groups, group, blocks.size_bytes, counted.made_at, counted.freed_at, stacks, address=address)


def _stacks(
    recording: Recording, blocks: ClassifiedBlocks, group: PerBlock[Int], num_groups: int
) -> tuple[tuple[str, ...], ...]:
    """Return the stack of each group's largest block; empty if no Python code was running, as in backward."""
    order = np.lexsort((-blocks.size_bytes, group))
    _, first = np.unique(group[order], return_index=True)
    largest = np.full(num_groups, -1, np.int64)
    largest[group[order[first]]] = blocks.allocation[order[first]]
    frames = PythonStacks(recording)
    return tuple(frames.words_of(allocation) for allocation in largest.tolist())


def _space(cycle: CycleFindings) -> PageSpace | None:
    if (history := cycle.history) is None:
        return None
    from tracer.analysis.profiles.allocator_join import reserved_ranges

    ranges = reserved_ranges(history, cycle.lifetimes)
    return None if ranges is None else page_space(ranges, history.texts.__getitem__)


def _lost_track(cycle: CycleFindings) -> tuple[PageLostTrack, ...]:
    """Lines at which torch's categories stopped; those below a thousandth of the peak share one row."""
    losses = [
        PageLostTrack(
            place.op or "a tensor from before the recording", lost.bytes, place.module, place.file, place.line
        )
        for lost in cycle.lost_track
        for place in [lost.place]
    ]
    large = [lost for lost in losses if lost.bytes * _LEAST_SHARE >= cycle.peak.peak_bytes]
    small = [lost for lost in losses if lost.bytes * _LEAST_SHARE < cycle.peak.peak_bytes]
    if len(small) > 1:
        small = [PageLostTrack(f"{len(small)} others, each less", sum(lost.bytes for lost in small))]
    return (*large, *small) if large else ()


def _reserved_section(peak: PeakReport) -> tuple[Section, ...]:
    """Bytes requested, allocated and reserved; only the allocator's history tells the first."""
    reserved = peak.allocator
    if reserved is None:
        return ()
    size = format_bytes(reserved.pending_bytes)
    pending = f" {size} were freed and still used by a stream." * bool(reserved.pending_bytes)
    sentence = (
        f"At the peak {format_bytes(reserved.requested_bytes)} were requested, which the allocator rounded up, block "
        f"by block, to {format_bytes(peak.peak_bytes)}.{pending}"
    )
    row = ("at the peak", reserved.reserved_bytes, peak.peak_bytes, reserved.free_bytes, reserved.largest_free_bytes)
    return (Section("Reserved memory", (sentence,), (reserved_table([row]),)),)


def _reserved(cycle: CycleFindings) -> tuple[Curve, ...]:
    events = cycle.lifetimes.events
    reserved = cycle.recording.allocations.total_reserved_bytes[events]
    if cycle.peak.device == "cpu" or not reserved.any():
        return ()
    times = cycle.recording.allocations.time_ns[events]
    return (Curve("allocated", times, cycle.lifetimes.allocator_bytes), Curve("reserved", times, reserved))


def _marks(cycle: CycleFindings) -> tuple[Mark, ...]:
    peak, breakdown = cycle.peak, cycle.breakdown
    shown = Mark("peak", "peak", peak.time_ns, peak.peak_bytes, peak.position)
    # Where torch's categories hold all but a hundredth, or nothing, their peak says nothing more.
    if breakdown.tagged_peak_bytes * 100 >= peak.peak_bytes * 99 or not breakdown.tagged_peak_bytes:
        return (shown,)
    return (
        shown,
        Mark("tagged", "peak of torch's categories", breakdown.tagged_peak_ns, breakdown.tagged_peak_bytes),
    )


def _bands(cycle: CycleFindings) -> tuple[Band, ...]:
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


def _timings(cycle: CycleFindings) -> tuple[StepTiming, ...]:
    rows = []
    for name in cycle.attribution.step_names:
        mine = {phase.phase: phase for phase in cycle.step_phases if phase.step == name}
        rows.append(
            StepTiming(
                name,
                **{f"{phase}_ns": float(mine[phase].duration_ns) if phase in mine else None for phase in _BANDS},
                total_ns=float(sum(phase.duration_ns for phase in mine.values())) if mine else None,
            )
        )
    return tuple(rows)


def _headline_notes(peak: PeakReport) -> tuple[str, ...]:
    missed = not_recorded(peak)
    unexplained = (counted(peak),) if peak.unexplained_bytes else ()
    return (*(() if missed is None else (missed,)), *unexplained)


def slow_modules(times: RunTimes, peak: PeakReport) -> tuple[SlowModule, ...]:
    """Time of each module's own operators in a step beside what it held at the peak, slowest first.

    An operator that some steps lack counts by its share of them.
    """
    num_steps = max((row.num_steps for row in times.rows), default=0)
    bytes_of = {module: size for module, (size, _) in totals_by(peak.rows, attrgetter("module")).items()}
    totals: dict[str, list[float]] = {}
    for invocation in times.rows:
        total = totals.setdefault(invocation.module or LOOP_OWNER, [0.0, 0.0, 0.0])
        share = invocation.num_steps / num_steps
        total[0] += invocation.forward_ns * share
        total[1] += (invocation.backward_ns or 0.0) * share
        total[2] += 1
    modules = [
        SlowModule(module, forward_ns, backward_ns, bytes_of.get(module), int(num_ops))
        for module, (forward_ns, backward_ns, num_ops) in totals.items()
    ]
    return tuple(sorted(modules, key=lambda module: -((module.forward_ns or 0) + (module.backward_ns or 0))))


_MOST_STEPS, _MOST_ROWS = 50, 100


def time_lanes(times: TraceTimes) -> tuple[PageLane, ...]:
    """A lane for each stream."""
    words = {stream.stream: stream.words for stream in times.streams}
    return tuple(PageLane(f"GPU {times.device}, {words[lane.stream]}", lane) for lane in times.lanes)


def _time_section(times: TraceTimes) -> Section:
    return Section(f"Time on GPU {times.device}", (), (_steps(times), _launchers(times), _kernels(times)))


def _steps(times: TraceTimes) -> Table:
    loads = times.total.loading_ns > 0
    columns = ("step", "computes", "collectives", "copies", "waits for the host", "waits, launched", "together")
    of_loading = ("host loads data", "while the GPU waits") if loads else ()
    total = [("all", times.total)] if len(times.steps) > 1 else []
    shown = [(step_words(step.name), step) for step in times.steps[:_MOST_STEPS]]
    return Table(
        "Where the time went",
        (*columns, *of_loading),
        tuple((name, *_parts(step, loads)) for name, step in (*total, *shown)),
    )


def _parts(step: StepTimes, loads: bool) -> tuple[str, ...]:
    parts = (step.compute_ns, step.communication_ns, step.copies_ns, step.host_wait_ns, step.launched_wait_ns)
    loading = (step.loading_ns, step.loading_wait_ns) if loads else ()
    return tuple(_ms(value) for value in (*parts, step.wall_ns, *loading))


def _launchers(times: TraceTimes) -> Table:
    rows = tuple(
        (
            *map(_ms, (row.forward_ns, row.backward_ns, row.other_ns, row.host_wait_ns)),
            f"{row.count:,}",
            *_place(row.launcher),
        )
        for row in times.rows[:_MOST_ROWS]
    )
    columns = ("forward", "backward", "other", "waited for", "kernels", "operator and line", "module")
    return Table("Work by who launched it, and how long the GPU waited for that", columns, rows)


def _kernels(times: TraceTimes) -> Table:
    rows = tuple(
        (
            _ms(kernel.total_ns),
            _ms(kernel.longest_ns),
            f"{kernel.count:,}",
            kernel.name,
            *_place(kernel.launcher),
        )
        for kernel in times.kernels[:_MOST_ROWS]
    )
    columns = ("together", "longest", "times", "kernel", "operator and line", "module")
    return Table("The longest kernels, by who launched them", columns, rows)


def _place(launcher: PlaceInCode) -> tuple[Cell, ...]:
    words = launcher.op or "no operator"
    place: Cell = FileCell(words, launcher.file, launcher.line) if launcher.file else words
    return place, launcher.module or ""


def _ms(duration_ns: int) -> str:
    return f"{ms(duration_ns):,.3f} ms"
