"""Changes that lower the peak, as a short list on a terminal, the best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tracer.changes.unneeded import unneeded_sentence
from tracer.exporters.screen.paths import shorten_paths
from tracer.exporters.screen.text import print_table, say, say_wrapped
from tracer.exporters.tables import Cell, Section, Table, columns
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.changes.recommendation import AdviceReport, Measured, Recommendation, UnneededMemory


NUM_ROWS = 12
NUM_SNIPPETS = 3
NUM_FOUND = 5
NUM_NOT_TRIED = 5
_VISIBLE_SHARE = 0.01


def print_advice(report: AdviceReport, console: Console, *, context_bytes: int = 0) -> None:
    """Print the list, then the lines to paste for the first of it.

    Args:
        context_bytes: What of the GPU's memory was set aside, and is not in the report's target.
    """
    print_unneeded(report.found, report.peak_bytes, console)
    if not report.rows:
        _print_none(report, console)
    else:
        print_table(_table(report, NUM_ROWS), console)
    for sentence in _sentences(report, context_bytes):
        say(console, sentence)
    for row in _shown_in_full(report):
        say(console)
        say(console, f"{row.change}:", style="bold")
        for line in row.lines:  # to be copied: whole, however long
            console.print(Text(f"    {line}"), soft_wrap=True)
        if row.needs:
            say(console, row.needs, indent=2)


def _print_none(report: AdviceReport, console: Console) -> None:
    """Say that no tried change helps; behind what was found that would contradict it, so that it is said apart."""
    if not report.num_tried and report.found:
        return
    say(console)
    say(console, "What else would help" if report.found else "What would help", style="bold")
    if not report.num_tried:
        say(console, "No change was tried.")
        return
    was = "was" if report.num_tried == 1 else "were"
    beside = "Beside what is not needed, none" if report.found else "None"
    tried = some(report.num_tried, "change")
    say(console, f"{beside} of {tried} that {was} tried saves as much as 1 % of the peak.")


def advice_sections(
    report: AdviceReport | None, unneeded: Sequence[UnneededMemory], peak_bytes: int
) -> Iterator[Section]:
    """Yield what is not needed at the peak, and the changes that would lower it."""
    if unneeded:
        yield Section(_UNNEEDED, tuple(unneeded_sentence(one, peak_bytes) for one in unneeded), is_answer=True)
    if report is not None and report.rows:
        yield Section(
            "What would help", tuple(_sentences(report, 0)), (replace(_table(report), title=""),), is_answer=True
        )


_UNNEEDED = "Not needed at the peak"


def print_unneeded(places: Sequence[UnneededMemory], peak_bytes: int, console: Console) -> None:
    """Print memory at the peak that is not needed: a sentence for each finding, and the lines to paste."""
    if not places:
        return
    say(console)
    say(console, _UNNEEDED, style="bold")
    for unneeded in places[:NUM_FOUND]:
        say_wrapped(console, shorten_paths(unneeded_sentence(unneeded, peak_bytes)))
        for line in unneeded.lines:  # to be copied: whole, however long
            console.print(Text(f"    {line}"), soft_wrap=True)
    if len(places) > NUM_FOUND:
        rest = sum(unneeded.bytes for unneeded in places[NUM_FOUND:])
        say(console, f"{format_bytes(rest)} more in {some(len(places) - NUM_FOUND, 'such place')}.")


def _table(report: AdviceReport, most: int | None = None) -> Table:
    from tracer.changes.recommendation import Group

    has_reserved = report.reserved_bytes is not None
    reserved = columns("bytes", "of reserved") if has_reserved else ()
    rows: list[tuple[Cell, ...]] = []
    heading = ""
    for row in [*report.rows[:most], *([report.together] if report.together is not None else [])]:
        if row is not report.together and row.group != heading:
            heading = row.group
            rows.append((*[""] * (2 + has_reserved), f"{Group[heading.upper()].words}:", ""))
        of_reserved = ["" if row.saves_reserved_bytes is None else row.saves_reserved_bytes] * has_reserved
        how = "" if _is_of_null_gpu(row) else _HOW.get(row.how_found, "")
        cost = "; ".join(part for part in (row.results, row.cost, how) if part)
        name = f"together: {row.change}" if row is report.together else row.change
        share = f"{100 * row.known_bytes / report.peak_bytes:.0f} %" if report.peak_bytes else ""
        rows.append((row.known_bytes, share, *of_reserved, name, cost))
    heads = (
        *columns("bytes", "saves"),
        *columns("share", ""),
        *reserved,
        *columns("text", "change", "results and cost"),
    )
    return Table("What would help", heads, tuple(rows))


_HOW = {"replayed": "replayed", "measured": "measured"}


def _sentences(report: AdviceReport, context_bytes: int) -> Iterator[str]:
    if report.rows:
        changes = some(report.num_tried, "change")
        if any(map(_is_of_null_gpu, report.rows)):
            how = "those listed were made on the null GPU, whose allocator shows what they save."
        else:
            how = "rows say so where one was replayed or measured."
        yield f"Each of {changes} was rehearsed, alone and together; {how}"
    if report.unrehearsed_bytes >= _VISIBLE_SHARE * report.peak_bytes and report.rows:
        yield (
            f"{format_bytes(report.unrehearsed_bytes)} of the measured peak are not in the rehearsal of the same step: "
            "a rehearsed saving may be off by as much. --verify measures it."
        )
    if report.target_bytes is not None:
        yield _fit(report, report.target_bytes, context_bytes)
    for row in (*report.rows, report.together, report.fit):
        if row is not None and row.measured is not None and not _is_of_null_gpu(row):
            yield _measured(row, row.measured)
    for name, reason in report.not_tried[:NUM_NOT_TRIED]:
        yield f"Could not be tried: {name}: {reason}"
    if len(report.not_tried) > NUM_NOT_TRIED:
        yield f"{some(len(report.not_tried) - NUM_NOT_TRIED, 'change')} more could not be tried; advice.json has them."


def _fit(report: AdviceReport, target_bytes: int, context_bytes: int) -> str:
    target = format_bytes(target_bytes + context_bytes)
    if context_bytes:
        target += f" ({format_bytes(target_bytes)} without CUDA's context)"
    if report.fits:
        return f"The step fits in {target} without any of them."
    if report.fit is None:
        return f"Nothing that was tried makes it fit in {target}."
    needed = report.fit.peak_bytes if report.fit.reserved_bytes is None else report.fit.reserved_bytes
    cost = f", {report.fit.cost}" if report.fit.cost else ""
    return f"To fit in {target}: {report.fit.change} ({format_bytes(needed)} then{cost}; {report.fit.results})."


def _is_of_null_gpu(row: Recommendation) -> bool:
    """Whether it was made where nothing is computed: its bytes are all that there is to say."""
    return row.measured is not None and row.measured.step_ms is None


def _measured(row: Recommendation, measured: Measured) -> str:
    saved = (
        f"Measured, {row.change}: {format_bytes(measured.saves_bytes)} less at the peak, where the rehearsal says "
        f"{format_bytes(row.saves_bytes)}"
    )
    if measured.step_ms is None or measured.changed_step_ms is None:
        return f"{saved}."
    time = f"{measured.step_ms:.0f} ms to {measured.changed_step_ms:.0f} ms"
    difference = measured.largest_loss_difference
    losses = "the same losses, bit for bit" if not difference else f"losses differ by up to {difference:.1g} of them"
    return f"{saved}; a step goes from {time}; {losses} over {len(measured.losses)} steps."


def _shown_in_full(report: AdviceReport) -> list[Recommendation]:
    first = [report.fit] if report.fit is not None else []
    return [*first, *report.rows[: NUM_SNIPPETS - len(first)]]
