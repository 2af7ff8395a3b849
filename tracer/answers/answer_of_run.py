"""The answer of a run: a failure or the peak, its cause and change, and all that was found, in one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracer.answers.answer import Answer, cause_and_change, failure_words
from tracer.answers.answer_tables import (
    blocks_table,
    categories_table,
    in_use_tables,
    parts_tables,
    phases_tables,
    timings_table,
)
from tracer.answers.caveats import (
    asleep_sentences,
    compiled_sentences,
    counted,
    graph_sentences,
    growth_sentences,
    left_out,
    not_recorded,
    share_sentence,
    unseen,
)
from tracer.answers.history_sections import failure_section, first_changes_sections, host_sections
from tracer.answers.parallelism import parallelism_sentences
from tracer.answers.rows import moment_words
from tracer.answers.tables import Section, Table
from tracer.answers.values_read import values_listed, values_sentences
from tracer.blocks.kinds import words_of
from tracer.capture.torch_names import step_words
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.peak import AllocatorPeak, Peak
    from tracer.answers.recording_findings import Findings
    from tracer.answers.run_results import RunResults

_MORE_POOLS: Final = 3  # Of CUDA graphs that get tables of their own
_NUM_NAMED: Final = 8


def answer_of_run(results: RunResults, *, num_steps: int | None = None, notes: tuple[str, ...] = ()) -> Answer:
    """Return the answer of a run.

    Args:
        num_steps: How many steps the program made; None if that is not known.
        notes: Further sentences on what changes how a number is read.
    """
    failed, findings = results.failed_allocation, results.findings
    first = results.first_changes if failed is None else failed.first
    why, change = cause_and_change(first)
    if failed is not None:
        why, change = failure_words(failed.event, failed.first)
    return Answer(
        happened=tuple(_happened(results, num_steps)),
        why=why,
        change=change,
        remarks=(*notes, *_remarks(results)),
        in_use=tuple(_in_use(failed, findings)),
        sections=tuple(_sections(results)),
        caveat=results.origin.caveat,
        is_alarming=failed is not None,
    )


def _happened(results: RunResults, num_steps: int | None) -> Iterator[str]:
    failed, findings = results.failed_allocation, results.findings
    if failed is not None:
        yield failed.event.happened(results.device)
    if findings is None:
        if failed is None:
            yield "Nothing was recorded."
    elif failed is None or failed.in_use is None:  # a failure in recorded steps has its own sizes
        yield headline(findings, num_steps, of="" if failed is None else " of the recorded steps")
    if findings is not None and failed is None:
        yield from share_sentence(findings.worst.peak, results.origin.device_bytes)
        yield from growth_sentences(findings.growth)


def headline(findings: Findings, num_steps: int | None = None, *, of: str = "") -> str:
    """Return the peak in one sentence.

    Args:
        of: Words behind "Peak", where the program had another one: ` of the recorded steps`.
    """
    peak, graph_bytes = findings.worst.peak, findings.graph_bytes
    if not peak.rows:
        return f"The recorded steps allocated nothing on {peak.device}. Where they train elsewhere, name it: --device."
    largest, size_bytes = next(iter(peak.by_category().items()))
    when = moment_words(peak.phase, step_words(peak.step, num_steps) if peak.step else "")
    graphs = f", beside {format_bytes(graph_bytes)} of CUDA graphs" if graph_bytes else ""
    return (
        f"Peak{of}: {format_bytes(peak.peak_bytes)} on {peak.device} {when}{graphs}; "
        f"{100 * size_bytes / peak.peak_bytes:.0f} % of it {words_of(largest)}."
    )


def _remarks(results: RunResults) -> Iterator[str]:
    findings = results.findings
    if findings is not None:
        yield from finding_sentences(findings)
    if results.values_read is not None:
        yield from values_sentences(results.values_read)
    if results.unused_parameters:
        yield unused_sentence(results.unused_parameters)
    yield from results.notes


def finding_sentences(findings: Findings) -> Iterator[str]:
    """Yield what a reader of the peak has to know beside it."""
    cycle, peak = findings.worst, findings.worst.peak
    if (missed := not_recorded(peak)) is not None:
        yield missed
    if peak.unexplained_bytes:
        yield counted(peak)
    yield from left_out(findings)
    yield from asleep_sentences(peak)
    yield from graph_sentences(findings)
    yield from parallelism_sentences(cycle)
    yield from compiled_sentences(findings)
    yield from unseen(cycle.recording, cycle.lifetimes)


def _in_use(failed: FailedAllocation | None, findings: Findings | None) -> Iterator[Table]:
    if failed is not None:
        yield blocks_table(failed.in_use.rows if failed.in_use is not None else failed.event.groups)
    elif findings is not None and findings.worst.peak.rows:
        yield from in_use_tables(findings.worst.peak)


def _sections(results: RunResults) -> Iterator[Section]:
    """Yield everything else that was found; what the page draws itself is marked."""
    failed, findings = results.failed_allocation, results.findings
    is_peak = failed is not None and findings is not None and failed.is_at(findings.worst.peak)
    first = results.first_changes if failed is None else failed.first
    if failed is not None:
        in_use = failed.in_use
        yield failure_section(failed.event, has_groups=in_use is None)
        if in_use is not None:
            yield Section("What was in use then", (), parts_tables(in_use), is_drawn=is_peak)
    if first is not None and (first.changes or failed is not None):
        yield from first_changes_sections(first)
    if findings is not None:
        yield from peak_sections(findings, has_parts=not is_peak, room=results.room)
    yield from host_sections(results.history.pinned_bytes)
    if results.timings is not None:
        yield Section("Time", (), (timings_table(results.timings),), is_drawn=True)
    if results.values_read is not None and (values := tuple(values_listed(results.values_read))):
        yield Section("Values read from the device", values)
    said = []
    if results.unused_parameters == ():
        said.append("Every parameter received a gradient.")
    if results.computed and len(results.losses) > 1:
        said.append(f"Loss: {results.losses[0]:#.5g} in the first step, {results.losses[-1]:#.5g} in the last.")
    if said:
        yield Section("The training", tuple(said), is_drawn=True)


def peak_sections(findings: Findings, *, has_parts: bool = True, room: tuple[str, ...] = ()) -> Iterator[Section]:
    """Yield the peak with all its tables, and the memory of CUDA graphs."""
    peak = findings.worst.peak
    if peak.rows:
        tables = (*(parts_tables(peak) if has_parts else ()), *phases_tables(findings.worst))
        yield Section("The peak", (*_counts(findings), *room), tables, is_drawn=True)
        yield from _graphs(findings)


def _graphs(findings: Findings) -> Iterator[Section]:
    explained = [pool for pool in findings.graph_pools if pool.rows]
    for pool in explained[:_MORE_POOLS]:
        of = "a CUDA graph at its" if pool.num_graphs == 1 else f"{pool.num_graphs} CUDA graphs at the"
        tables = (categories_table(pool), *parts_tables(pool, has_categories=False))
        yield Section(f"In the memory of {of} capture's peak", (), tables)
    if rest := explained[_MORE_POOLS:]:
        size_bytes = sum(pool.peak_bytes for pool in rest)
        yield Section(
            "Other CUDA graphs",
            (f"{some(len(rest), 'more pool')} of CUDA graphs: {format_bytes(size_bytes)} at their peaks.",),
        )


def _counts(findings: Findings) -> Iterator[str]:
    peak = findings.worst.peak
    if not peak.unexplained_bytes:
        yield counted(peak)
    if not any(row.file for row in peak.rows):
        yield "By line: no line of your code made any of it."
    if peak.allocator is not None:
        yield from _three_sizes(peak, peak.allocator, findings.graph_bytes)
    elif peak.reserved_bytes:
        unused = peak.reserved_bytes - peak.allocator_peak_bytes - findings.graph_bytes
        yield (
            f"Reserved from the driver at that moment: {format_bytes(peak.reserved_bytes)}, "
            f"of which {_of_graphs(findings.graph_bytes)}{format_bytes(unused)} held no tensor."
        )
    spread = [cycle.peak.peak_bytes for cycle in findings.cycles if cycle.is_whole]
    least, most = format_bytes(min(spread, default=0)), format_bytes(max(spread, default=0))
    if least != most:
        yield f"The peaks of the recorded cycles differ: from {least} to {most}."


def _of_graphs(size_bytes: int) -> str:
    return f"CUDA graphs work in {format_bytes(size_bytes)}, and " if size_bytes else ""


def _three_sizes(peak: Peak, allocator: AllocatorPeak, graph_bytes: int) -> Iterator[str]:
    free = f"{format_bytes(max(0, allocator.free_bytes - graph_bytes))} free"
    largest, pending = format_bytes(allocator.largest_free_bytes), allocator.pending_bytes
    yield (
        f"Requested: {format_bytes(allocator.requested_bytes)}. "
        f"Allocated, after rounding up each block: {format_bytes(peak.peak_bytes)}."
    )
    yield (
        f"Reserved from the driver: {format_bytes(allocator.reserved_bytes)}, "
        f"of which {_of_graphs(graph_bytes)}{free}"
        + ("" if graph_bytes else f", in blocks of at most {largest}")  # which may be a graph's
        + (f", and {format_bytes(pending)} freed but still used by another stream." if pending else ".")
    )


def unused_sentence(unused: tuple[str, ...]) -> str:
    """Parameters that received no gradient."""
    names = ", ".join(unused[:_NUM_NAMED]) + (
        f" and {len(unused) - _NUM_NAMED} more" if len(unused) > _NUM_NAMED else ""
    )
    return f"{some(len(unused), 'parameter')} received no gradient: {names}."
