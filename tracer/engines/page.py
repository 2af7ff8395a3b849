"""The start of an inference engine as a page, or at the beginning of the page of a script that made the engine."""

from __future__ import annotations

from pathlib import Path

from tracer.engines.answer import (
    answer_sentences,
    card_sentence,
    card_table,
    change_sentences,
    command_to_paste,
    lacking_sentences,
)
from tracer.engines.start import EngineStart
from tracer.exporters.files import write_atomically
from tracer.exporters.page.data import page_data, relative_paths
from tracer.exporters.page.html import data_of_html, html_of_data, write_prepared
from tracer.exporters.page.model import Page
from tracer.exporters.tables import Section, Table, columns
from tracer.results.null_run import CAVEAT


def write_engine_page(start: EngineStart, path: Path, *, command: str, computed: bool) -> None:
    """Write the page of an engine's command."""
    write_prepared([page_data(engine_page(start, command=command, computed=computed))], path)


def put_engine_first(start: EngineStart, path: Path, *, computed: bool) -> None:
    """Have the page of a script begin with the answer of the engine that it has made.

    The page is written once all steps are recorded, while the engine may not even have its KV cache.
    """
    data = data_of_html(path.read_text("utf-8"))
    engine = relative_paths(page_data(engine_page(start, command="", computed=computed)))
    for page in data["pages"]:
        page["title"] = engine["title"]
        page["headline"] = [*engine["headline"], *page["headline"]]
        page["sections"] = [*engine["sections"], *page["sections"]]
    write_atomically(path, html_of_data(data).encode())


def engine_page(start: EngineStart, *, command: str, computed: bool) -> Page:
    """Return the content: the KV cache, its limit and what fills the rest, which utilization is safe, the rows.

    Args:
        command: The engine's own command; the empty text where a script made the engine.
    """
    worker = start.worst
    return Page(
        title="Memory of an inference engine",
        device=worker.device,
        subtitle=f"{worker.engine}, {worker.model}",
        caveat="" if computed else CAVEAT,
        answer=(
            *answer_sentences(start),
            card_sentence(start),
            *change_sentences(start),
            *lacking_sentences(start, computed=computed),
            *([_to_paste(command_to_paste(start, command))] if command else ()),
        ),
        sections=(Section("Memory of the engine", (), (card_table(start), *_by_worker(start))),),
    )


def _to_paste(command: str) -> str:
    """Return the sentence with the command, whose paths the page shortens if they are below the working folder."""
    place = ", in the folder of the run," if relative_paths(command) != command else ""
    return f"Start it{place} with: {command}"


def _by_worker(start: EngineStart) -> tuple[Table, ...]:
    """Return a table of all workers, if there are several."""
    if len(start.workers) < 2:
        return ()
    sizes = ("KV cache", "weights", "activations", "buffers", "free")
    rows = tuple(
        (each.rank, each.cache_bytes, each.weights_bytes, each.activation_bytes, each.other_bytes, each.free_bytes)
        for each in start.workers
    )
    return (Table("Each card", (*columns("count", "rank"), *columns("bytes", *sizes)), rows),)
