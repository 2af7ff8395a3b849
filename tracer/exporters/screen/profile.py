"""The screen: first what filled the device, then where it came from, then how long the phases took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console

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
from tracer.answers.paths import shorten_paths, source_place
from tracer.answers.peak import AllocatorPeak, Peak
from tracer.answers.recording_findings import CycleFindings, Findings
from tracer.answers.rows import Row, module_tree, moment_words
from tracer.answers.tables import Place, Table, columns
from tracer.arrays import totals_by
from tracer.blocks.from_recording.blocks import CUBLAS_WORKSPACE
from tracer.blocks.kinds import Evidence, Kind, meaning_of, words_of
from tracer.capture.torch_names import GRADIENT_BUCKETS, in_buffers_of, step_words
from tracer.exporters.python_stacks import PythonStacks
from tracer.exporters.screen.text import print_table, say_wrapped
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.capture.run_facts import PhaseTimings


NUM_ROWS = 8
MORE_POOLS = 3  # Of CUDA graphs that get tables of their own
MORE_MODULES = 6  # Than rows of other tables: a tree needs its branches
MODULE_DEPTH = 3
_LEAST_SHARE_OF_LINE = 10  # Per cent of the peak from which on the largest part of a line is named
_PART_WIDTH = 36  # Characters, so that the table fits into 80 columns
NUM_SHORT_LINES = 3


class SummedRows(Protocol):
    """Bytes with the rows that sum to them."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows, the largest first."""

    @property
    def peak_bytes(self) -> int:
        """Their sum."""


def print_peak(
    findings: Findings,
    console: Console,
    *,
    num_steps: int | None = None,
    top: int = NUM_ROWS,
    categories: bool = True,
    why: str = "",
) -> None:
    """Headline, and the peak by category, module and line, then what else there is to say. Readable in 80 columns.

    Args:
        why: What fills a good part of it, and what to change; said with the headline.
    """
    peak = findings.worst.peak
    console.print()
    for line in (headline(findings, num_steps), shorten_paths(why) or None, not_recorded(peak)):
        if line is not None:
            say_wrapped(console, line, style="bold")
    if not peak.rows:
        return
    say_wrapped(console, _counts(findings))
    print_parts(peak, console, top, categories=categories)
    if top:
        _print_phases(findings.worst, console)
        _print_graphs(findings, console, top)
    for words in finding_sentences(findings):
        console.print()
        say_wrapped(console, shorten_paths(words))


def finding_sentences(findings: Findings) -> Iterator[str]:
    """Yield what else there is to say of a peak, on the screen and on the page."""
    cycle = findings.worst
    yield from growth_sentences(findings.growth)
    yield from left_out(findings)
    yield from asleep_sentences(cycle.peak)
    yield from graph_sentences(findings)
    yield from parallelism_sentences(cycle)
    yield from compiled_sentences(findings)
    yield from unseen(cycle.recording, cycle.lifetimes)


def print_parts(peak: SummedRows, console: Console, top: int, *, categories: bool = True) -> None:
    """Print the peak by category, module and line."""
    if categories:
        print_table(categories_table(peak), console)
    if top:
        _print_modules(peak, console, top)
        print_lines(peak, console, top)


def short_screen(findings: Findings, num_steps: int | None = None) -> tuple[str, ...]:
    """The answer in a few lines: the headline, the largest lines of source, what grows."""
    peak = findings.worst.peak
    lines = [(name, size) for name, (size, _) in totals_by(peak.rows, line_name).items()][:NUM_SHORT_LINES]
    width = max((len(name) for name, _ in lines), default=0)
    shares = (
        f"  {name:<{width}}  {format_bytes(size):>11}  {100 * size / peak.peak_bytes:4.1f} %" for name, size in lines
    )
    missed = not_recorded(peak)
    return (
        headline(findings, num_steps),
        *shares,
        *(() if missed is None else (missed,)),
        *map(shorten_paths, growth_sentences(findings.growth)),
    )


def _print_modules(peak: SummedRows, console: Console, top: int) -> None:
    """The largest modules as a tree: each line holds what is below it, and the outermost ones sum to the peak."""
    root = module_tree(peak.rows)
    smallest = peak.peak_bytes // 50
    small = [node for node in root.children if node.total_bytes < smallest]
    # The line of the only one that would be left out is as short as "1 more".
    shown = [
        (depth, node)
        for depth, node in root.walk()
        if 0 < depth <= MODULE_DEPTH and (node.total_bytes >= smallest or small == [node])
    ][: top + MORE_MODULES]
    lines: list[tuple[str | Place, int]] = [
        ("  " * (depth - 1) + (node.path if depth == 1 else f".{node.path.rpartition('.')[2]}"), node.total_bytes)
        for depth, node in shown
    ]
    outermost = [node for depth, node in shown if depth == 1]
    if num_more := len(root.children) - len(outermost):
        lines.append((f"{num_more} more", root.total_bytes - sum(node.total_bytes for node in outermost)))
    print_table(_parts_table("By module, with the modules inside it", "module", lines, peak.peak_bytes), console)


def _print_graphs(findings: Findings, console: Console, top: int) -> None:
    explained = [pool for pool in findings.graph_pools if pool.rows]
    for pool in explained[:MORE_POOLS]:
        of = "a CUDA graph at its" if pool.num_graphs == 1 else f"{pool.num_graphs} CUDA graphs at the"
        print_table(categories_table(pool, f"In the memory of {of} capture's peak"), console)
        _print_modules(pool, console, top)
        print_lines(pool, console, top)
    if rest := explained[MORE_POOLS:]:
        size_bytes = sum(pool.peak_bytes for pool in rest)
        say_wrapped(
            console, f"{some(len(rest), 'more pool')} of CUDA graphs: {format_bytes(size_bytes)} at their peaks."
        )


def _print_phases(cycle: CycleFindings, console: Console) -> None:
    """The phases of the peak's step in order of time, the peak's own among them; nothing where there are none."""
    peak = cycle.peak
    rows = [
        (phase.end_ns, phase.step, phase.phase, phase.peak_bytes)
        for phase in cycle.step_phases
        if phase.step == (peak.step or phase.step)
    ]
    if peak.phase and not any((peak.step, peak.phase) == row[1:3] for row in rows):
        rows = sorted([*rows, (peak.time_ns, peak.step or "", peak.phase, peak.peak_bytes)])
    if len(rows) < 2:  # the headline says as much
        return
    cells = tuple(
        (
            step_words(step).removeprefix("step ") or "-",
            phase,
            peak_bytes,
            "<- peak" if (step, phase) == (peak.step or "", peak.phase) else "",
        )
        for _, step, phase, peak_bytes in rows
    )
    heads = (*columns("label", "step", "phase"), *columns("bytes", "most bytes"), *columns("label", ""))
    print_table(Table("The step, phase by phase", heads, cells), console)


def headline(findings: Findings, num_steps: int | None = None) -> str:
    """The answer in one sentence."""
    peak, graph_bytes = findings.worst.peak, findings.graph_bytes
    if not peak.rows:
        return f"The recorded steps allocated nothing on {peak.device}. Where they train elsewhere, name it: --device."
    largest, size_bytes = next(iter(peak.by_category().items()))
    when = moment_words(peak.phase, step_words(peak.step, num_steps) if peak.step else "")
    graphs = f", beside {format_bytes(graph_bytes)} of CUDA graphs" if graph_bytes else ""
    return (
        f"Peak: {format_bytes(peak.peak_bytes)} on {peak.device} {when}{graphs}; "
        f"{100 * size_bytes / peak.peak_bytes:.0f} % of it {words_of(largest)}."
    )


def _counts(findings: Findings) -> str:
    peak = findings.worst.peak
    lines = [counted(peak)]
    if peak.allocator is not None:
        lines.append(_three_sizes(peak, peak.allocator, findings.graph_bytes))
    elif peak.reserved_bytes:
        unused = peak.reserved_bytes - peak.allocator_peak_bytes - findings.graph_bytes
        lines.append(
            f"Reserved from the driver at that moment: {format_bytes(peak.reserved_bytes)}, "
            f"of which {_of_graphs(findings.graph_bytes)}{format_bytes(unused)} held no tensor."
        )
    spread = [cycle.peak.peak_bytes for cycle in findings.cycles if cycle.is_whole]
    least, most = format_bytes(min(spread, default=0)), format_bytes(max(spread, default=0))
    if least != most:
        lines.append(f"The peaks of the recorded cycles differ: from {least} to {most}.")
    return "\n".join(lines)


def _of_graphs(size_bytes: int) -> str:
    return f"CUDA graphs work in {format_bytes(size_bytes)}, and " if size_bytes else ""


def _three_sizes(peak: Peak, allocator: AllocatorPeak, graph_bytes: int) -> str:
    free = f"{format_bytes(max(0, allocator.free_bytes - graph_bytes))} free"
    largest, pending = format_bytes(allocator.largest_free_bytes), allocator.pending_bytes
    return (
        f"Requested: {format_bytes(allocator.requested_bytes)}. "
        f"Allocated, after rounding up each block: {format_bytes(peak.peak_bytes)}.\n"
        f"Reserved from the driver: {format_bytes(allocator.reserved_bytes)}, "
        f"of which {_of_graphs(graph_bytes)}{free}"
        + ("" if graph_bytes else f", in blocks of at most {largest}")  # which may be a graph's
        + (f", and {format_bytes(pending)} freed but still used by another stream." if pending else ".")
    )


def print_lines(peak: SummedRows, console: Console, top: int) -> None:
    """Print the peak by line; below a library's line, the user's line that led to it."""
    if peak.rows and not any(row.file for row in peak.rows):
        console.print()
        say_wrapped(console, "By line: no line of your code made any of it.")
        return
    print_table(lines_table(peak), console, top=top)


def categories_table(peak: SummedRows, title: str = "What filled it") -> Table:
    """The peak by category."""
    lines = [(name, size) for name, (size, _) in totals_by(peak.rows, lambda row: words_of(row.category)).items()]
    table = _parts_table(title, "category", lines, peak.peak_bytes)
    rows = tuple((*row, meaning_of(name)) for row, (name, _) in zip(table.rows, lines, strict=True))
    return Table(title, (*table.columns, *columns("text", "")), rows, (*(table.footer or ()), ""))


def lines_table(peak: SummedRows) -> Table:
    """The peak by line."""
    place = cache(source_place)  # thousands of rows are of a few lines
    callers = {place(row.caller_file, row.caller_line) for row in peak.rows if row.caller_file}
    is_one = len(callers) == 1

    def line(row: Row) -> tuple[str, str]:
        is_called = row.caller_file and not is_one
        return line_name(row, place), f"from {place(row.caller_file or '', row.caller_line)}" if is_called else ""

    largest: dict[tuple[str, str], tuple[tuple[str, ...], int]] = {}
    for (name, part), (_, count) in totals_by(peak.rows, lambda row: (line(row), _part(row))).items():
        largest.setdefault(name, (part, count))

    def cell(name: tuple[str, str], size_bytes: int) -> Place:
        below = [name[1]] if name[1] else []
        if size_bytes * 100 >= _LEAST_SHARE_OF_LINE * peak.peak_bytes:
            words, count = largest[name]
            number = f"{count} x " if count > 1 else ""
            room = max(_PART_WIDTH, *(len(text) for text in name)) - len(number)
            below.append(f"{number}{next((text for text in words if len(text) <= room), words[-1])}")
        return Place(name[0], below=tuple(below))

    title = f"By line; those of libraries were called from {callers.pop()}" if is_one else "By line"
    lines = [(cell(name, size), size) for name, (size, _) in totals_by(peak.rows, line).items()]
    return _parts_table(title, "line", lines, peak.peak_bytes)


def _part(row: Row) -> tuple[str, ...]:
    """Words for a row, from longer to shorter: `activation, relu [32, 512, 2048]`, `activation, relu`, `activation`."""
    kind, op = words_of(row.category), (row.op or "").rpartition("::")[2]
    if row.name == CUBLAS_WORKSPACE:
        return CUBLAS_WORKSPACE, kind
    shape = str(list(row.shape)) if row.shape is not None else ""
    made = " ".join(part for part in (op, shape) if part) or (row.name or "" if row.count == 1 else "")
    return tuple(dict.fromkeys((f"{kind}, {made}" if made else kind, f"{kind}, {op}" if op else kind, kind)))


def line_name(row: Row, place: Callable[[str, int | None], str] = source_place) -> str:
    """The line that made a row's blocks, or in brackets what they are and when they were made."""
    if row.file is None:
        kind = words_of(row.category)
        return f"({kind})" if row.phase == kind else f"({kind}, {row.phase})"
    return place(row.file, row.line)


def _parts_table(title: str, name: str, lines: Sequence[tuple[str | Place, int]], total_bytes: int) -> Table:
    """Parts of a sum, which is the last row."""
    heads = (*columns("text", name), *columns("count", "bytes"), *columns("bytes", ""), *columns("share", "share"))
    rows = tuple((part, size, size, size / total_bytes) if size else (part, "", "", "") for part, size in lines)
    return Table(title, heads, rows, ("sum", total_bytes, total_bytes, 1.0))


def print_timings(timings: PhaseTimings, console: Console) -> None:
    """Print mean and spread of each phase."""
    from tracer.capture.run_facts import PHASES

    words = {"model_fwd": "forward and loss", "loss_bk": "backward", "opt_step": "optimizer step", "total_time": "all"}
    rows = tuple((words[phase], f"{timings.mean_ms(phase):.1f}", f"{timings.std_ms(phase):.1f}") for phase in words)
    num_steps = len(timings.durations_ms[PHASES[0]])
    title = f"Time of a step on {timings.device}: mean and standard deviation (±) of {num_steps}, no profiler"
    print_table(Table(title, (*columns("text", "phase"), *columns("count", "ms", "±")), rows), console)


def parameters_sentence(unused: tuple[str, ...]) -> str:
    """Whether every parameter received a gradient, and which did not."""
    if not unused:
        return "Every parameter received a gradient."
    names = ", ".join(unused[:NUM_ROWS]) + (f" and {len(unused) - NUM_ROWS} more" if len(unused) > NUM_ROWS else "")
    noun = "parameter" if len(unused) == 1 else "parameters"
    return f"{len(unused)} {noun} received no gradient: {names}."


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
    is_kept = of_cublas[0].evidence == Evidence.LIBRARYS.text
    when = "keeps for a stream" if is_kept else "allocates for a call and frees behind it"
    return f"cuBLAS has {format_bytes(size_bytes)} of the peak, a workspace that torch {when}; it does not grow."


def _communication(cycle: CycleFindings) -> str | None:
    peak = cycle.peak
    chosen = [row.category == Kind.COMMUNICATION.name for row in peak.rows]
    total = sum(row.bytes for row, is_chosen in zip(peak.rows, chosen, strict=True) if is_chosen)
    if total * 100 < peak.peak_bytes * LEAST_PERCENT:
        return None
    stacks = PythonStacks(cycle.recording)
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
        f"In float32 beside {narrow.most_common(1)[0][0]}: {format_bytes(size_bytes)} at {source_place(file, line)}"
        + (f", the largest tensor {shape}." if shape else ".")
    )
