"""Memory that a line makes anew again and again, larger each time, as torch.cat does with a cache or with results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import Changed, with_earlier_frees, with_smaller_blocks, without_blocks
from tracer.answers.allocator.modelled import Modelled
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.line_results import JOINING, is_joined
from tracer.answers.why.source import source_at
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.snapshot.replay import BEFORE
from tracer.units import format_bytes

_OF_MODEL: Final = (Kind.PARAMETER, Kind.OPTIMIZER_STATE)
_FEWER: Final = 2
_LEAST_CATS: Final = 8
_JOINS: Final = re.compile(
    r"\b(?:cat|concat(?:enate)?|[dhv]?stack|pad|append|extend|update|generate)\b|cache", re.IGNORECASE
)
"""Names of functions that make one larger tensor of several, or that lead to one."""
_LEAST_EVEN_CATS: Final = 3
_LEAST_ROUNDS: Final = 4
_MOST_PASSING: Final = 2
"""Blocks of a line for each that stays: what is joined, too."""
_UNEVEN: Final = 0.01
_OF_LIBRARIES: Final = (
    ("transformers/trainer", "; eval_accumulation_steps=1 does so in a Trainer"),
    (
        "transformers/generation",
        "; generate() keeps a tensor for each token with output_scores, output_logits, output_hidden_states or "
        "output_attentions",
    ),
)
"""Options of libraries that keep results on the host, or keep none, by a part of the path of their code."""


def made_larger(case: Case) -> list[Ints]:
    """Blocks of each line that makes them again and again, larger each time, as torch.cat does; also those freed."""
    lives = case.lives
    rows = np.flatnonzero((lives.begin > BEFORE) & (lives.begin <= case.entry) & has(case.facts, Fact.STACK))
    rows = rows[np.argsort(lives.begin[rows], kind="stable")]
    rows = rows[~has(case.facts[rows], Fact.ENGINE, Fact.OPTIMIZER_STEP)]
    order = np.argsort(case.stack[rows], kind="stable")
    rows = rows[order]
    edges = np.flatnonzero(np.diff(case.stack[rows])) + 1
    # The request that failed is the last of its line's.
    of_failure = {case.asked_stack: [case.asked_bytes]} if case.has_failed else {}
    grown = [
        mine
        for mine in np.split(rows, edges)
        if len(mine)
        and (
            _grows(np.append(lives.requested_bytes[mine], of_failure.get(int(case.stack[mine[0]]), [])))
            or _blocks_at_a_time(lives.requested_bytes[mine], len(case.held(mine)))
        )
    ]
    return [mine for mine in grown if len(case.held(mine)) and _may_join(case, int(case.held(mine)[-1]))]


def grown_by_cat(case: Case) -> Iterator[Cause]:
    """Blocks that one line makes again and again, each larger than the one before, which it lets go of."""
    lives, chosen = case.lives, made_larger(case)
    if not chosen:
        return
    all_rows = np.concatenate(chosen)
    held = case.held(all_rows)
    asked = case.asked_bytes if case.asked_stack in set(case.stack[all_rows].tolist()) else 0
    if not asked and not case.is_much(held, percent=20):
        return
    site = case.largest_site(held)
    largest = max(chosen, key=case.bytes)
    size = lives.requested_bytes[largest]
    number = 1 if _grows(size) else _blocks_at_a_time(size, len(case.held(largest))) or 1
    first, last = (case.bytes(largest[at]) for at in (slice(0, number), slice(-number, None)))
    what = f"{format_bytes(first)} at first, {format_bytes(max(last, asked))} by now"
    sentence = (
        f"Memory grows: {case.words(held)}{case.lines(held)} are made anew each time, larger than before ({what})"
    )
    of_model = held[np.isin(case.kind[held], _OF_MODEL)]
    if case.is_share(of_model, of=held, percent=50):
        kinds = " and ".join(sorted({Kind(kind).words for kind in case.kind[of_model].tolist()}))
        yield Cause(
            "parameters that grow",
            f"The model grows: {case.words(of_model)}{case.lines(of_model)}, {kinds}, are made anew, larger each time "
            f"({what}).",
            "add fewer (a higher threshold, a largest number), or end it earlier",
            lambda modelled: with_smaller_blocks(modelled, all_rows, _FEWER),
            site,
            GivesUp.TIME_OR_SIZE,
            grows="memory grows",
        )
        return
    if case.in_model[held].any():
        yield Cause(
            "cache grown by cat",
            f"{sentence}, as a KV cache is that torch.cat grows by each token: old and new are there at once.",
            "write into a cache of the full length made once (StaticCache in transformers), and limit length or batch",
            lambda modelled: _in_place(modelled, case, chosen),
            site,
            GivesUp.TIME_OR_SIZE,
            grows="memory grows",
        )
        return
    yield Cause(
        "results kept",
        f"{sentence}, as results are that torch.cat gathers on the device: old and new are there at once.",
        "move each result to the host (.cpu()) and gather there" + in_its_library(case, held),
        lambda modelled: without_blocks(modelled, all_rows),
        site,
        grows="memory grows",
    )


def in_its_library(case: Case, rows: Ints) -> str:
    """The option of the library whose code keeps the results; empty for other code."""
    files = "".join(frame.file for frame in case.stacks[int(case.lives.stack[rows[-1]])])
    return next((words for part, words in _OF_LIBRARIES if part in files), "")


def _may_join(case: Case, row: int) -> bool:
    """True if the line that made a block may join tensors to a larger one, as torch.cat does.

    The C++ frames decide, or else the source.
    """
    stack = int(case.lives.stack[row])
    making = case.followed.making(row) if case.followed is not None else None
    if making is not None:
        return making.operator.removeprefix("aten::") in (*JOINING, "constant_pad_nd")
    if operation := case.sites.operation(stack):
        return is_joined(case, stack) or "pad" in operation
    *_, frame = [None, *case.own_lines(stack)]
    text = source_at(frame) if frame is not None else ""
    return not text or bool(_JOINS.search(text))


def _grows(size: Ints) -> bool:
    """True if sizes only rise, in many steps; or in a few even ones, each by a part as large as the first had."""
    rises = np.diff(size)
    if len(size) >= _LEAST_CATS:
        return bool((rises >= 0).all()) and int((rises > 0).sum()) * 4 >= _LEAST_CATS
    if len(size) < _LEAST_EVEN_CATS or rises[0] <= 0:
        return False
    parts = size[0] / rises[0]  # the first cat is of two parts, or of one and nothing
    is_even = np.abs(rises - rises[0]) <= _UNEVEN * rises[0]
    return bool(is_even.all()) and abs(parts - round(parts)) <= _UNEVEN and round(parts) in (1, 2)


def _blocks_at_a_time(size: Ints, number: int) -> int:
    """Number of blocks that a line makes at a time, of which some number stays, if all get larger each time; else 0."""
    for each in range(number, number * _MOST_PASSING + 1, max(number, 1)):
        rounds = len(size) // max(each, 1)
        if each > 1 and rounds >= _LEAST_ROUNDS:
            rises = np.diff(size[-rounds * each :].reshape(rounds, each), axis=0)
            if (rises > 0).all():
                return each
    return 0


def _in_place(modelled: Modelled, case: Case, grown: list[Ints]) -> Changed:
    """Each block is freed right before a larger one takes its place, and the oldest before the request that failed."""
    rows, entries = [], []
    for mine in grown:
        begin, end = case.lives.begin[mine], case.lives.end[mine]
        for row, until in zip(mine.tolist(), end.tolist(), strict=True):
            at = int(np.searchsorted(begin, until, side="left")) - 1
            if until <= case.entry and begin[at] > case.lives.begin[row]:
                rows.append(row)
                entries.append(int(begin[at]))
        held = mine[end > case.entry]
        if len(held) and case.asked_stack == int(case.stack[mine[0]]):
            rows.append(int(held[0]))
            entries.append(case.entry)
    return with_earlier_frees(modelled, np.array(rows, np.int64), np.array(entries, np.int64))
