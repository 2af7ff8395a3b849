"""A watched run at one moment: its growth, the holders of what stays, its failure, and the answer of all that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.answers.answer import Answer, failure_words
from tracer.answers.answer_tables import blocks_table
from tracer.answers.failure import without_gpu
from tracer.answers.history_sections import failure_section, first_changes_sections, place
from tracer.answers.null_run import values_lines
from tracer.answers.paths import behind, source_place
from tracer.answers.rows import Row
from tracer.answers.step_findings import GrowthOverSteps, StepFindings
from tracer.answers.tables import Section, Table, columns
from tracer.arrays import totals_by
from tracer.blocks.from_snapshot.sites import NO_FRAMES
from tracer.capture.objects.at_failure import Holder
from tracer.capture.run_facts import ValuesRead
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.step_columns import StepColumns
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation

OUT_OF_MEMORY: Final = "out of memory"
END_OF_RUN: Final = "the end of the run"  # The event of a run that has ended by itself
LET_GO: Final = (
    "Let go of what each step leaves, see above: without it this request would have fit. No setting of the allocator "
    "helps for long."
)
_MAX_KEPT: Final = 5
_MAX_KINDS: Final = 6
_NUM_STEPS: Final = 20  # Rows of the table of steps, evenly spread
_NUM_SAID: Final = 2
"""Lines on growth before a failure: that it grows, and the largest part."""


@dataclass(frozen=True, slots=True)
class HolderName:
    """A variable that keeps memory alive, in words."""

    holder: Holder
    # Where the tensor was made whose graph keeps it; None where it is held itself, or nobody knows.
    graph_line: SourceLine | None = None

    @property
    def words(self) -> str:
        """`trainer.history[...] -> graph of the tensor, train.py:81 (local variable of main(), train.py:12)`."""
        line = f", {source_place(*self.graph_line)}" if self.graph_line is not None else ""
        variable = f" ({self.holder.variable})" if self.holder.variable else ""
        return f"{self.holder.path}{line}{variable}" + "".join(f" and {path}" for path in self.holder.also)


@dataclass(frozen=True, slots=True)
class OutlivedMemory:
    """Memory that outlived the step after its own."""

    what: str  # Its kind, or what its tensors look like where no allocator has a history
    frame: str  # The function that made it; empty where nobody knows
    line: SourceLine | None  # The line; None where nobody knows
    bytes: int
    count: int  # Number of blocks or tensors
    bytes_per_step: int  # How much more each step leaves, as far as was recorded
    holders: tuple[HolderName, ...]  # Holders of those that were looked at

    @property
    def words(self) -> str:
        """Its size, line and holders."""
        is_known = self.frame and (self.line is not None or self.frame != NO_FRAMES)
        parts = [f"{format_bytes(self.bytes)} in {some(self.count, 'block')} of kind {self.what}"]
        parts += [f"made in {self.frame}{behind(self.line)}"] if is_known else []
        parts += [f"held by {' and '.join(name.words for name in self.holders[:2])}"] if self.holders else []
        return f"{', '.join(parts)}."


@dataclass(frozen=True, slots=True)
class Event:
    """Something that made a watched run speak."""

    what: str  # Such as `out of memory`, `asked for by signal`
    step: int  # Steps that had ended
    time_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class WatchReport:
    """A watched run at one moment."""

    device: str  # The device that is watched, as `str(torch.device)` writes it
    events: tuple[Event, ...]  # All so far; the last one is the reason
    error: str  # What ended the run, in its own words; empty if nothing did
    error_line: SourceLine | None  # Line of the user's own code where the error arose
    columns: StepColumns
    steps: StepFindings
    limit_bytes: int | None  # What there is for this process; None where nobody says
    allocated_bytes: int | None  # Bytes in use by the allocator at that moment; None without a caching allocator
    reserved_bytes: int | None  # Held from the driver at that moment; likewise
    # The allocation that failed, explained; None if none did, or there is no history.
    failed: FailedAllocation | None
    groups: tuple[Row, ...]  # What was in use then, by line and kind; of the allocator's history
    outlived: tuple[OutlivedMemory, ...]  # What outlived the step after its own and is of no kind that stays
    notes: tuple[str, ...]  # What is missing or could not be read, in sentences
    settings: Mapping[str, object]  # What to remember of the run
    # The latest report with growth or holders before this one, where this one has no holders
    found_before: WatchReport | None = None
    caveat: str = ""  # What has to be said before anything else; empty for a run like any other
    values_read: ValuesRead | None = None  # What the program read of a device that computes nothing; None on any other

    @property
    def event(self) -> Event:
        """The reason of this report."""
        return self.events[-1]

    @property
    def has_growth(self) -> bool:
        """True if memory grows from step to step, or outlives its step."""
        return bool(self.outlived) or self.steps.growth is not None

    @property
    def most_bytes(self) -> int:
        """The most that was in use: by the allocator's own peak, or as it was seen; 0 where nothing was."""
        column = self.columns.peak_bytes if self.allocated_bytes is not None else self.columns.resident_bytes
        return int(np.max(column, initial=0))

    @property
    def per_step_bytes(self) -> int:
        """Bytes that each step leaves, by what outlived its step."""
        return sum(group.bytes_per_step for group in self.outlived if group.bytes_per_step > 0)

    def by_kind(self) -> dict[str, int]:
        """Bytes in use by kind, the largest first; they sum to the groups'."""
        by_words = sorted(self.groups, key=lambda group: group.kind.words)
        return {words: size for words, (size, _) in totals_by(by_words, lambda group: group.kind.words).items()}


def answer_of_watch(report: WatchReport) -> Answer:
    """Return the answer of a watched run: the failure or the peak, the growth and its holders, and all tables."""
    failed = failure_in_words(report)
    why, change = failure_words(failed.event, failed.first) if failed is not None else (growth_sentences(report), ())
    return Answer(
        happened=tuple(_happened(report)),
        why=why,
        change=change,
        remarks=(*_earlier_sentences(report.found_before), *other_sentences(report), *report.notes),
        in_use=(blocks_table(report.groups),) if report.groups else (),
        sections=tuple(_sections(report)),
        caveat=report.caveat,
        is_alarming=failed is not None,
    )


def failure_in_words(report: WatchReport) -> FailedAllocation | None:
    """The failure that a watched run ended in, with what grew until then; None if memory did not run out."""
    failed = report.failed
    if failed is None:
        return None
    event = failed.event
    is_counted = report.steps.growth is not None
    growth = growth_sentences(report)[:_NUM_SAID] if is_counted or report.per_step_bytes else ()
    if failed.first is not None and failed.first.decisive is not None and failed.first.decisive.grows:
        growth = growth[:1] if is_counted else ()  # the cause has line and holder
    if report.per_step_bytes >= event.asked_bytes and not event.decisive:
        return replace(failed, event=replace(event, why=growth, change=LET_GO), first=None)
    why = (*event.why, *growth) if event.decisive else (*growth, *event.why)
    return replace(failed, event=replace(event, why=why))


def growth_sentences(report: WatchReport) -> tuple[str, ...]:
    """Return sentences on memory that grows from step to step and on its holders; empty without growth."""
    growth, per_step_bytes, first = report.steps.growth, report.per_step_bytes, ""
    if growth is not None:
        unit = "In-use memory" if report.allocated_bytes is not None else "Resident memory"
        first = _growth_sentence(growth, unit, has_ended=report.failed is not None)
    elif per_step_bytes:
        first = f"Each step leaves {format_bytes(per_step_bytes)} more in use than the one before:"
    return (*([first] if first else []), *_kept_sentences(report))


def _growth_sentence(growth: GrowthOverSteps, unit: str, *, has_ended: bool) -> str:
    trend = growth.trend
    sentence = (
        f"{unit} grows by {format_bytes(trend.bytes_per_step)} a step (steps {trend.first_step:,} to "
        f"{trend.last_step:,})"
    )
    if growth.end_step is None or growth.limit_bytes is None or has_ended:
        return f"{sentence}."
    latest = ", at the latest" if growth.is_at_latest else ""
    return f"{sentence}; at this rate {format_bytes(growth.limit_bytes)} are full in step {growth.end_step:,}{latest}."


def _kept_sentences(report: WatchReport) -> Iterator[str]:
    """Yield a sentence for each part of what grows or is kept, the largest first, with who holds it."""
    growing = [group for group in report.outlived if group.bytes_per_step > 0.01 * report.per_step_bytes]
    for group in growing[:_MAX_KEPT]:
        yield f"{format_bytes(group.bytes_per_step)} more in each step: {group.words}"
    staying = [group for group in report.outlived if group.bytes_per_step <= 0 and group.holders]
    for group in staying[: max(0, _MAX_KEPT - len(growing))]:
        yield f"Kept: {group.words}"


def _earlier_sentences(earlier: WatchReport | None) -> Iterator[str]:
    if earlier is not None and (sentences := growth_sentences(earlier)):
        yield f"After step {earlier.event.step:,} it was found: {' '.join(sentences)}"


def other_sentences(report: WatchReport) -> Iterator[str]:
    """Yield a sentence for each further finding of the counters."""
    steps = report.steps
    if (pieces := steps.fragmenting) is not None:
        line = next((f", most of it kept by {place(group.site)}" for group in report.groups[:1]), "")
        yield (
            f"Reserved memory grows by {format_bytes(pieces.trend.bytes_per_step)} a step to "
            f"{format_bytes(pieces.trend.last_bytes)}, while no more than {format_bytes(pieces.in_use_bytes)} are in "
            f"use{line}: the rest is free, in pieces between blocks in use. expandable_segments:True avoids that."
        )
    if steps.num_retries:
        yield f"The cache was emptied for a request {some(steps.num_retries, 'time')}: each one waits for the device."


def _happened(report: WatchReport) -> Iterator[str]:
    """The event, and the memory in use, or the peak of a run that ended by itself, whose last step leaves little."""
    at = f"Step {report.event.step + 1:,}" if report.error else f"After step {report.event.step:,}"
    error = f": {without_gpu(report.error)}" if report.error else ""
    yield f"{at}, {report.event.what}{error}{behind(report.error_line)}"
    if report.failed is not None:
        yield report.failed.event.happened(report.device)
        yield from report.failed.need
        return
    most_bytes = report.most_bytes if report.event.what == END_OF_RUN else 0
    if report.allocated_bytes is None:
        resident = int(report.columns.resident_bytes[-1]) if len(report.columns) else -1
        if most_bytes:
            yield f"Most resident memory of the process at the end of a step: {format_bytes(most_bytes)}."
        elif resident >= 0:
            yield f"Resident memory of the process: {format_bytes(resident)}."
        return
    allocated = format_bytes(report.allocated_bytes)
    of = f" of {format_bytes(report.limit_bytes)}" if report.limit_bytes is not None else ""
    reserved = f", reserved {format_bytes(report.reserved_bytes)}" if report.reserved_bytes is not None else ""
    if most_bytes:
        yield f"Peak on {report.device}: {format_bytes(most_bytes)}{of} allocated; {allocated} at the end{reserved}."
    else:
        yield f"In use on {report.device}: {allocated}{of}{reserved}."


def _sections(report: WatchReport) -> Iterator[Section]:
    if report.failed is not None:
        yield failure_section(report.failed.event, has_groups=False)
        yield from first_changes_sections(report.failed.first)
    if report.groups:
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in list(report.by_kind().items())[:_MAX_KINDS])
        yield Section("What was in use then", (f"By kind: {kinds}.",), (blocks_table(report.groups, ""),))
    if len(report.columns):
        yield Section("Step by step", (), (_table_of_steps(report),))
    if values := tuple(values_lines(report.values_read)):
        yield Section("Values read from the device", values)


def _table_of_steps(report: WatchReport) -> Table:
    columns_of = report.columns
    names = {"end_bytes": "in use at end" if report.allocated_bytes is not None else "resident"}
    if report.allocated_bytes is not None:
        names |= {"peak_bytes": "peak so far", "reserved_bytes": "reserved"}
    last = _NUM_STEPS - 1
    chosen = sorted({round(at * (len(columns_of) - 1) / last) for at in range(_NUM_STEPS)})
    values = [[None if size < 0 else size for size in getattr(columns_of, name)[chosen].tolist()] for name in names]
    rows = tuple(zip(columns_of.step[chosen].tolist(), *values, strict=True))
    return Table("", (*columns("count", "step"), *columns("bytes", *names.values())), rows, is_whole=True)
