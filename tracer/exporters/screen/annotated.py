"""Source code on a terminal, with bytes beside its lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tracer.exporters.annotated_source import AnnotatedFile, AnnotatedLine, freed_words
from tracer.exporters.screen.paths import short_path
from tracer.exporters.screen.terminal import visible
from tracer.exporters.screen.text import print_table, say, table
from tracer.units import format_bytes


def print_annotated(file: AnnotatedFile, peak_bytes: int, console: Console) -> None:
    """Print the lines that allocated memory and a few around them."""
    say(console, f"{short_path(file.file)}: {format_bytes(file.peak_bytes)} of a peak of {format_bytes(peak_bytes)}")
    if file.note:
        say(console, file.note)
    grid = table("at the peak", "of backward", "own peak")
    grid.add_column("freed", no_wrap=True)
    grid.add_column("line", justify="right", no_wrap=True)
    grid.add_column("source", no_wrap=True)
    unknown = "(not in the file)" if any(line.text is not None for line in file.lines) else ""
    for index, line in enumerate(file.lines):
        if index and line.number != file.lines[index - 1].number + 1:
            grid.add_row(*[""] * 5, "...")
        grid.add_row(*_cells(line), Text(visible(unknown if line.text is None else line.text)))
    print_table("Memory by line", grid, console)


def _cells(line: AnnotatedLine) -> tuple[str, ...]:
    memory, number = line.memory, str(line.number)
    if memory is None:
        return "", "", "", "", number
    sizes = (memory.peak_bytes, memory.backward_bytes, memory.own_peak_bytes)
    return *(format_bytes(size) if size else "" for size in sizes), freed_words(memory), number
