"""Tables of what was in use: by kind, module and line, by phase of the step, and the times of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from tracer.answers.findings import CycleFindings
from tracer.answers.paths import source_place
from tracer.answers.rows import Row, module_tree
from tracer.answers.tables import NUM_ROWS, Place, Table, columns
from tracer.arrays import totals_by
from tracer.blocks.from_recording.blocks import CUBLAS_WORKSPACE
from tracer.blocks.kinds import meaning_of, words_of
from tracer.capture.torch_names import step_words

if TYPE_CHECKING:
    from tracer.capture.run_facts import PhaseTimings

_MORE_MODULES: Final = 6  # Than rows of other tables: a tree needs its branches
_MODULE_DEPTH: Final = 3
_LEAST_SHARE_OF_LINE: Final = 10  # Per cent of the peak from which on the largest part of a line is named
_PART_WIDTH: Final = 36  # Characters, so that the table fits into 80 columns


class SummedRows(Protocol):
    """Bytes with the rows that sum to them."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows, the largest first."""

    @property
    def peak_bytes(self) -> int:
        """Their sum."""


def in_use_tables(peak: SummedRows) -> tuple[Table, ...]:
    """The peak by kind, by outermost module and by line, for the short form."""
    modules = [(node.path, node.total_bytes) for node in module_tree(peak.rows).children]
    of_modules = _parts_table("By module", "module", modules, peak.peak_bytes)
    has_modules = len(modules) > 1
    return (categories_table(peak, "At the peak"), *([of_modules] if has_modules else []), *_lines_tables(peak))


def blocks_table(rows: Sequence[Row], title: str = "In use then") -> Table:
    """Blocks by kind and line; they sum to what was in use."""

    def key(row: Row) -> tuple[str, str, str | None, int | None]:
        words = row.function or "" if row.file else (row.made_by or row.phase or row.site.frame).removeprefix("aten::")
        return words_of(row.category), words, row.file, row.line

    cells = (
        (size, count, kind, Place(words, file, line))
        for (kind, words, file, line), (size, count) in totals_by(rows, key).items()
    )
    heads = (*columns("bytes", "bytes"), *columns("count", "blocks"), *columns("label", "kind"))
    return Table(title, (*heads, *columns("text", "made by")), tuple(cells))


def parts_tables(peak: SummedRows, *, has_categories: bool = True) -> tuple[Table, ...]:
    """The peak by category, by module as a tree, and by line."""
    categories = (categories_table(peak),) if has_categories else ()
    return (*categories, modules_table(peak), *_lines_tables(peak))


def _lines_tables(peak: SummedRows) -> tuple[Table, ...]:
    """The peak by line; nothing where no line is known."""
    return (lines_table(peak),) if any(row.file for row in peak.rows) else ()


def modules_table(peak: SummedRows) -> Table:
    """The largest modules as a tree: each line holds what is below it, and the outermost ones sum to the peak."""
    root = module_tree(peak.rows)
    smallest = peak.peak_bytes // 50
    small = [node for node in root.children if node.total_bytes < smallest]
    # The line of the only one that would be left out is as short as "1 more".
    shown = [
        (depth, node)
        for depth, node in root.walk()
        if 0 < depth <= _MODULE_DEPTH and (node.total_bytes >= smallest or small == [node])
    ][: NUM_ROWS + _MORE_MODULES]
    lines: list[tuple[str | Place, int]] = [
        ("  " * (depth - 1) + (node.path if depth == 1 else f".{node.path.rpartition('.')[2]}"), node.total_bytes)
        for depth, node in shown
    ]
    outermost = [node for depth, node in shown if depth == 1]
    if num_more := len(root.children) - len(outermost):
        lines.append((f"{num_more} more", root.total_bytes - sum(node.total_bytes for node in outermost)))
    title = "By module, with the modules inside it"
    return replace(_parts_table(title, "module", lines, peak.peak_bytes), is_whole=True)


def phases_tables(cycle: CycleFindings) -> tuple[Table, ...]:
    """The phases of the peak's step in order of time, the peak's own among them; none where there are none."""
    peak = cycle.peak
    rows = [
        (phase.end_ns, phase.step, phase.phase, phase.peak_bytes)
        for phase in cycle.source.step_phases
        if phase.step == (peak.step or phase.step)
    ]
    if peak.phase and not any((peak.step, peak.phase) == row[1:3] for row in rows):
        rows = sorted([*rows, (peak.time_ns, peak.step or "", peak.phase, peak.peak_bytes)])
    if len(rows) < 2:  # the headline says as much
        return ()
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
    return (Table("The step, phase by phase", heads, cells, is_whole=True),)


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
    exact = (replace(column, is_exact=True) for column in columns("count", "bytes"))
    heads = (*columns("text", name), *exact, *columns("bytes", ""), *columns("share", "share"))
    rows = tuple((part, size, size, size / total_bytes) if size else (part, "", "", "") for part, size in lines)
    return Table(title, heads, rows, ("sum", total_bytes, total_bytes, 1.0))


def timings_table(timings: PhaseTimings) -> Table:
    """Mean and spread of each phase."""
    from tracer.capture.run_facts import PHASES

    words = {"model_fwd": "forward and loss", "loss_bk": "backward", "opt_step": "optimizer step", "total_time": "all"}
    rows = tuple((words[phase], f"{timings.mean_ms(phase):.1f}", f"{timings.std_ms(phase):.1f}") for phase in words)
    num_steps = len(timings.durations_ms[PHASES[0]])
    title = f"Time of a step on {timings.device}: mean and standard deviation (±) of {num_steps}, no profiler"
    return Table(title, (*columns("text", "phase"), *columns("count", "ms", "±")), rows)
