"""Memory of an inference engine: the KV cache and the limit of its requests in 24 lines, its page and engine.json.

The screen and the page say the same sentences and rows.

docs/files.md describes the keys of engine.json.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tracer.answers.answer import Answer
from tracer.answers.null_run import CAVEAT
from tracer.answers.tables import Cell, Section, Table, columns
from tracer.engines.start import (
    LEAST_OF_DRIVER_BYTES,
    MOST_OF_DRIVER_BYTES,
    EngineStart,
    StartStage,
    WorkerMemory,
    replaced_options,
)
from tracer.exporters.files import write_atomically
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.page.data import page_data, relative_paths
from tracer.exporters.page.html import data_of_html, html_of_data, write_prepared
from tracer.exporters.page.model import Page
from tracer.exporters.screen.text import print_table, say
from tracer.units import format_bytes, some

VERSION: Final = 1
_WITHOUT_NCCL: Final = (
    "NCCL is not counted: beside torch's allocator vLLM 0.6 found 1.79 GiB more on each of two H100 than on one alone."
)
"""Source: logs in vllm-project/vllm pull request 10511; non_torch_memory of 3.58 GiB, and 1.79 GiB on one card."""


def print_engine(start: EngineStart, console: Console, *, command: str, computed: bool) -> None:
    """Print an engine's start.

    Args:
        command: The engine's own command, which is printed last, with a change if it does not start; may be empty.
    """
    verdict, *others = answer_sentences(start)
    say(console)
    say(console, verdict, style="bold")
    for sentence in others:
        say(console, sentence)
    print_table(card_table(start), console)
    for group in (lacking_sentences(start, computed=computed), change_sentences(start)):
        if group:
            say(console)
        for sentence in group:
            say(console, sentence)
    if command:
        say(console)
        say(console, f"Start it with: {command_to_paste(start, command)}")


def answer_sentences(start: EngineStart) -> tuple[str, ...]:
    """Return the KV cache and its tokens, what limits the requests, and what requests have taken if some have run."""
    worker = start.worst
    sentences = _verdict(start), start.limit, *_driver_sentences(start)
    if not worker.num_batches:
        return sentences
    served = (
        f"{some(worker.num_batches, 'batch', 'batches')} of requests, and the warm-up, took "
        f"{format_bytes(worker.served_bytes)} at most beside the rest; the profiled batch took "
        f"{format_bytes(worker.activation_bytes)}."
    )
    return *sentences, served


def _driver_sentences(start: EngineStart) -> tuple[str, ...]:
    """Return a sentence if the driver's memory for CUDA graphs may be more than is free."""
    worker, free_bytes = start.worst, start.free_at_capture_bytes + start.worst.driver_graphs_bytes
    if not start.fits or not worker.driver_graphs_bytes or free_bytes >= MOST_OF_DRIVER_BYTES:
        return ()
    return (
        f"It starts if the driver keeps no more than {format_bytes(free_bytes)} for CUDA graphs: public logs have "
        f"{format_bytes(LEAST_OF_DRIVER_BYTES)} to {format_bytes(MOST_OF_DRIVER_BYTES)}.",
    )


def lacking_sentences(start: EngineStart, *, computed: bool) -> tuple[str, ...]:
    """Return sentences on memory that no stage has allocated, and on what is not counted on several null GPUs."""
    unexplained = start.worst.unexplained_bytes
    more = "more" if unexplained > 0 else "less"
    words = f"torch's allocator counts {abs(unexplained):,} bytes {more} than the stages of the start-up allocated."
    is_without_nccl = start.worst.num_workers > 1 and not computed
    return (*[words] * bool(unexplained), *[_WITHOUT_NCCL] * is_without_nccl)


def change_sentences(start: EngineStart) -> tuple[str, ...]:
    """Return the options that would let it start, or give it more KV cache, each with what it does."""
    return tuple(f"{option}  {effect}." for option, effect in start.changes)


def card_table(start: EngineStart) -> Table:
    """Return bytes and share of each part of the card's memory; they sum to the card."""
    worker = start.worst
    parts = [(size, f"{name}{details}") for size, name, details in _parts(worker, start.cache_tokens)]
    heads = (*columns("count", "bytes"), *columns("bytes", ""), *columns("share", "share"), *columns("text", "of what"))
    rows = tuple(
        (size, size, size / worker.total_bytes, words) for size, words in [*parts, (worker.total_bytes, "the card")]
    )
    card = "the card" if worker.num_workers == 1 else f"the card of rank {worker.rank}"
    return Table(f"Memory of {card}, {worker.device}", heads, rows[:-1], rows[-1])


def card_sentence(start: EngineStart) -> str:
    """Return the same parts in a sentence, without their details."""
    worker = start.worst
    parts = [f"{name} {format_bytes(size)}" for size, name, _ in _parts(worker, start.cache_tokens) if size > 0]
    lacking = f"; {format_bytes(-worker.free_bytes)} are lacking" if worker.free_bytes < 0 else ""
    return f"Of the card's {format_bytes(worker.total_bytes)}: {', '.join(parts)}{lacking}."


def print_engines(rows: Sequence[tuple[Sequence[str], EngineStart]], console: Console) -> None:
    """Print a table of starts with different options, as they were tried."""
    cells = tuple((*_cells(start), shlex.join(options), "" if start.fits else start.limit) for options, start in rows)
    heads = (
        *columns("bytes", "KV cache"),
        *columns("count", "tokens", "requests", "longest"),
        *columns("bytes", "free"),
    )
    title = f"KV cache on {rows[0][1].worst.device}, by options"
    print_table(Table(title, (*heads, *columns("text", "options", "does not start")), cells), console)


def _cells(start: EngineStart) -> tuple[Cell, ...]:
    longest = "" if start.largest_context is None else start.largest_context
    if not start.fits:
        return "", "", "", longest, ""
    tokens = "" if start.cache_tokens is None else start.cache_tokens
    requests = f"{start.concurrency:,.1f}" if start.concurrency is not None else ""
    return start.worst.cache_bytes, tokens, requests, longest, start.worst.free_bytes


def _verdict(start: EngineStart) -> str:
    worker = start.worst
    cards = f" on {some(worker.num_workers, 'GPU')}" if worker.num_workers > 1 else ""
    name = f"{worker.engine}, {worker.model}{cards}"
    if not start.fits:
        return f"{name}: does not start."
    words = f"{name}: KV cache of {format_bytes(worker.cache_bytes)}"
    if start.cache_tokens is None or start.concurrency is None:
        return f"{words}."
    return (
        f"{words}, {start.cache_tokens:,} tokens: {start.concurrency:,.1f} requests of {worker.context_tokens:,} "
        "tokens at once."
    )


def _parts(worker: WorkerMemory, cache_tokens: int | None) -> Iterator[tuple[int, str, str]]:
    """Yield bytes, name and details of each part of the card's memory."""
    tokens = f": {cache_tokens:,} tokens, {worker.cache_dtype}" if cache_tokens is not None else ""
    reached = list(StartStage).index(StartStage(worker.stage))
    if reached >= list(StartStage).index(StartStage.CACHE):
        yield worker.cache_bytes, "KV cache", tokens
    yield worker.weights_bytes, "weights", ""
    batch = f" at the profiled batch: {worker.batched_tokens:,} tokens, {worker.max_requests:,} requests"
    yield worker.activation_bytes, "activations", batch
    if worker.captures_graphs:
        yield worker.graphs_bytes, "CUDA graphs", ""
        if worker.driver_graphs_bytes:
            most = format_bytes(MOST_OF_DRIVER_BYTES)
            yield (
                worker.driver_graphs_bytes,
                "the driver's for CUDA graphs",
                f": at least; public logs have up to {most}",
            )
    yield worker.other_bytes, "buffers and workspaces of the engine", ""
    yield worker.outside_bytes, "outside of torch's allocator", ": CUDA's context, libraries"
    share = f"--gpu-memory-utilization {worker.utilization:g} gives {format_bytes(worker.limit_bytes)}"
    yield worker.free_bytes, "free", f"; {share}"


def command_to_paste(start: EngineStart, command: str) -> str:
    """Return the command as it was given, or with the first change that would let the engine start."""
    if start.fits or not start.changes:
        return command
    return shlex.join(replaced_options(shlex.split(command), start.changes[0][0].split(" ")))


def engine_json(start: EngineStart, *, command: str, computed: bool) -> dict[str, Any]:
    """Return the document of an engine's start.

    Args:
        command: The engine's own command; the empty text where a script made the engine.
    """
    return {
        **json_header("engine", VERSION, computed=computed),
        "engine_command": command or None,
        "fits": start.fits,
        "limit": start.limit,
        "kv_cache_tokens": start.cache_tokens,
        "concurrency": start.concurrency,
        "largest_context": start.largest_context,
        "changes": [{"option": option, "effect": effect} for option, effect in start.changes],
        "workers": [
            asdict(worker)
            | {name: getattr(worker, name) for name in ("limit_bytes", "unexplained_bytes", "free_bytes")}
            for worker in start.workers
        ],
    }


# ---- the page, which a script that made the engine has at the beginning of its own ----------------------------------


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
        page["said"] = [*engine["said"], *page["said"]]
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
        answer=Answer(
            happened=(
                *answer_sentences(start),
                card_sentence(start),
                *change_sentences(start),
                *lacking_sentences(start, computed=computed),
                *([_to_paste(command_to_paste(start, command))] if command else ()),
            ),
            sections=(Section("Memory of the engine", (), (card_table(start), *_by_worker(start))),),
            caveat="" if computed else CAVEAT,
        ),
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
