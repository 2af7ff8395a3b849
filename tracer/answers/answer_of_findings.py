"""The answer on a device of a run: the peak, its tables, and what a reader of the peak has to know beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tracer.answers.answer import Answer
from tracer.answers.answer_tables import (
    categories_table,
    in_use_tables,
    parts_tables,
    phases_tables,
)
from tracer.answers.caveats import (
    asleep_sentences,
    compiled_sentences,
    counted,
    graph_sentences,
    growth_sentences,
    left_out,
    not_recorded,
    unseen,
)
from tracer.answers.findings import CycleFindings
from tracer.answers.labels import PythonStacks
from tracer.answers.paths import whole_place
from tracer.answers.rows import Row, moment_words
from tracer.answers.tables import Section
from tracer.blocks.from_recording.blocks import CUBLAS_WORKSPACE
from tracer.blocks.kinds import Evidence, Kind, words_of
from tracer.capture.torch_names import GRADIENT_BUCKETS, in_buffers_of, step_words
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.findings import RunFindings
    from tracer.answers.peak import AllocatorPeak, Peak


_MORE_POOLS: Final = 3  # Of CUDA graphs that get tables of their own


def answer_of_findings(findings: RunFindings, caveat: str = "") -> Answer:
    """Return the answer on a device of a run from its recorded steps alone."""
    peak = findings.worst.peak
    return Answer(
        happened=(headline(findings), *growth_sentences(findings.growth)),
        remarks=tuple(finding_sentences(findings)),
        in_use=in_use_tables(peak) if peak.rows else (),
        sections=tuple(peak_sections(findings)),
        caveat=caveat,
    )


def headline(findings: RunFindings, *, of: str = "") -> str:
    """Return the peak in one sentence.

    Args:
        of: Words behind "Peak", where the program had another one: ` of the recorded steps`.
    """
    peak, graph_bytes = findings.worst.peak, findings.graph_bytes
    if not peak.rows:
        return f"The recorded steps allocated nothing on {peak.device}. Where they train elsewhere, name it: --device."
    largest, size_bytes = next(iter(peak.by_category().items()))
    when = moment_words(peak.phase, step_words(peak.step) if peak.step else "")
    graphs = f", beside {format_bytes(graph_bytes)} of CUDA graphs" if graph_bytes else ""
    return (
        f"Peak{of}: {format_bytes(peak.peak_bytes)} on {peak.device} {when}{graphs}; "
        f"{100 * size_bytes / peak.peak_bytes:.0f} % of it {words_of(largest)}."
    )


def finding_sentences(findings: RunFindings) -> Iterator[str]:
    """Yield what a reader of the peak has to know beside it."""
    cycle, peak = findings.worst, findings.worst.peak
    if (missed := not_recorded(peak)) is not None:
        yield missed
    if peak.unexplained_bytes:
        yield counted(peak)
    yield from asleep_sentences(peak)
    yield from graph_sentences(findings)
    yield from parallelism_sentences(cycle)
    yield from compiled_sentences(findings)
    yield from unseen(cycle.source.recording, cycle.source.lifetimes)


def peak_sections(findings: RunFindings, *, has_parts: bool = True, room: tuple[str, ...] = ()) -> Iterator[Section]:
    """Yield the peak with all its tables, and the memory of CUDA graphs."""
    peak = findings.worst.peak
    if peak.rows:
        tables = (*(parts_tables(peak) if has_parts else ()), *phases_tables(findings.worst))
        yield Section("The peak", tuple(_counts(findings)), tables, is_drawn=True)
        if reserved := (*_reserved(findings), *room):
            yield Section("Reserved memory", reserved)
        yield from _graphs(findings)


def _graphs(findings: RunFindings) -> Iterator[Section]:
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


def _counts(findings: RunFindings) -> Iterator[str]:
    yield from left_out(findings)
    peak = findings.worst.peak
    if not peak.unexplained_bytes:
        yield counted(peak)
    if not any(row.file for row in peak.rows):
        yield "By line: no line of your code made any of it."
    spread = [cycle.peak.peak_bytes for cycle in findings.parts if cycle.source.is_whole]
    least, most = format_bytes(min(spread, default=0)), format_bytes(max(spread, default=0))
    if least != most:
        yield f"The peaks of the recorded cycles differ: from {least} to {most}."


def _reserved(findings: RunFindings) -> Iterator[str]:
    """Yield the bytes requested, allocated and reserved at the peak, as far as they are known."""
    peak = findings.worst.peak
    if peak.allocator is not None:
        yield from _three_sizes(peak, peak.allocator, findings.graph_bytes)
    elif peak.reserved_bytes:
        unused = peak.reserved_bytes - peak.allocator_peak_bytes - findings.graph_bytes
        yield (
            f"Reserved from the driver at that moment: {format_bytes(peak.reserved_bytes)}, "
            f"of which {_of_graphs(findings.graph_bytes)}{format_bytes(unused)} held no tensor."
        )


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


LEAST_PERCENT: Final = 1  # Of the peak; less is not said
LEAST_WIDE_PERCENT: Final = 10
NUM_MODULES: Final = 2
OTHER: Final = "other buffers of collectives"
_NARROW: Final = ("bfloat16", "float16")
_MADE_IN_STEPS: Final = tuple(
    kind.name for kind in (Kind.ACTIVATION, Kind.AUTOGRAD_DETAIL, Kind.TEMPORARY, Kind.HELD, Kind.EVALUATION)
)


def parallelism_sentences(cycle: CycleFindings) -> tuple[str, ...]:
    """Sentences on cuBLAS, on the buffers of collectives and the modules in them, and on 32 bits beside 16."""
    rows, peak_bytes = cycle.peak.rows, cycle.peak.peak_bytes
    sentences = (workspace_sentence(rows, peak_bytes), _communication(cycle), wide_sentence(rows, peak_bytes))
    return tuple(sentence for sentence in sentences if sentence is not None)


def workspace_sentence(rows: Iterable[Row], peak_bytes: int) -> str | None:
    """The share of cuBLAS, which nothing in the program changes."""
    of_cublas = [row for row in rows if row.name == CUBLAS_WORKSPACE]
    size_bytes = sum(row.bytes for row in of_cublas)
    if not size_bytes or size_bytes * 100 < peak_bytes * LEAST_WIDE_PERCENT:
        return None
    is_kept = of_cublas[0].evidence == Evidence.LIBRARY.text
    when = "keeps for a stream" if is_kept else "allocates for a call and frees behind it"
    return f"cuBLAS has {format_bytes(size_bytes)} of the peak, a workspace that torch {when}; it does not grow."


def _communication(cycle: CycleFindings) -> str | None:
    peak = cycle.peak
    chosen = [row.category == Kind.COMMUNICATION.name for row in peak.rows]
    total = sum(row.bytes for row, is_chosen in zip(peak.rows, chosen, strict=True) if is_chosen)
    if total * 100 < peak.peak_bytes * LEAST_PERCENT:
        return None
    stacks = PythonStacks(cycle.source.recording)
    modules: dict[str, Counter[str]] = {}
    columns = (peak.row_of, peak.blocks.row, peak.blocks.size_bytes)
    for row, allocation, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        if chosen[row]:
            frames = stacks.of_allocation(allocation)
            named = (in_buffers_of(frame["filename"], frame["name"]) for frame in frames)
            is_bucket = peak.rows[row].evidence == Evidence.GIVEN_TO_REDUCER.text
            words = GRADIENT_BUCKETS if is_bucket else next(filter(None, named), OTHER)
            modules.setdefault(words, Counter())[peak.rows[row].module or ""] += size_bytes
    parts = sorted(modules.items(), key=lambda part: -part[1].total())
    listed = [f"{format_bytes(found.total())} {words}{_of_modules(found)}" for words, found in parts]
    return f"Communication at the peak: {', '.join(listed)}."


def _of_modules(found: Counter[str]) -> str:
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    named = [module for module, _ in ordered if module and not module.startswith("(")]
    if not named:
        return ""
    more = [f"{some(len(named) - NUM_MODULES, 'more module')}"] if len(named) > NUM_MODULES else []
    words = [*named[:NUM_MODULES], *more]
    return f" ({' and '.join([', '.join(words[:-1]), words[-1]] if len(words) > 1 else words)})"


def wide_sentence(rows: Iterable[Row], peak_bytes: int) -> str | None:
    """The line with most bytes of float32 that a step makes where it makes 16 bits too, as of logits that were cast."""
    made = [row for row in rows if row.category in _MADE_IN_STEPS]
    narrow = Counter[str]()
    wide: dict[tuple[str, int | None], list[Row]] = {}
    for row in made:
        if row.dtype in _NARROW:
            narrow[row.dtype] += row.bytes
        elif row.dtype == "float32" and row.file is not None:
            wide.setdefault((row.file, row.line), []).append(row)
    if not wide or narrow.total() * 100 < peak_bytes * LEAST_PERCENT:
        return None
    (file, line), found = max(wide.items(), key=lambda item: sum(row.bytes for row in item[1]))
    size_bytes = sum(row.bytes for row in found)
    if size_bytes * 100 < peak_bytes * LEAST_WIDE_PERCENT:
        return None
    largest = max(found, key=lambda row: row.bytes / row.count)
    shape = " x ".join(f"{length:,}" for length in largest.shape or ())
    return (
        f"In float32 beside {narrow.most_common(1)[0][0]}: {format_bytes(size_bytes)} at {whole_place(file, line)}"
        + (f", the largest tensor {shape}." if shape else ".")
    )
