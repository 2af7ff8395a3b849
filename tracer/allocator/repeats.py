"""Where a program asks for the same again and again, as a training does step by step: found before it is replayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.allocator.history import History, Op
from tracer.arrays import Bools, Ints

_WINDOW = 32  # Operations in a row that are looked for again further back
_NUM_DISTANCES = 8
_FACTOR = np.uint64(6364136223846793005)
"""Of a rolling hash modulo 2**64; it only proposes distances, each of which is then checked."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """Stretches of a program in which each operation is the one a period before, about the life that is as old."""

    period: int
    # First position and the one behind the last, ascending and disjoint, each of two periods at least.
    stretches: tuple[tuple[int, int], ...]
    # Position of the request of each life; -1 for what was there before, and what is never asked for [lives].
    made: Ints
    # Position of the last operation about each life; behind the program's end for what is never freed [lives].
    gone: Ints


def find_repeats(history: History, code: Ints, operand: Ints) -> Repeats | None:
    """The period with which most of a program repeats what it did before, and where; None where nothing repeats."""
    if len(code) < 2 * _WINDOW:
        return None
    num_lives, position = len(history.lives), np.arange(len(code))
    is_request, is_of_life = code == Op.ALLOC, np.isin(code, (Op.ALLOC, Op.FREE, Op.REQUEST_FREE, Op.COMPLETE_FREE))
    made, gone = np.full(num_lives, -1, np.int64), np.full(num_lives, len(code), np.int64)
    made[operand[is_request]] = position[is_request]
    is_end = is_of_life & ~is_request
    gone[operand[is_end]] = position[is_end]
    life = np.where(is_of_life, operand, 0)
    columns = np.stack(
        [
            code,
            np.where(is_request, history.lives.requested_bytes[life], 0),
            np.where(is_request, history.stream[life], 0),
            np.where(is_request, history.pool[life], 0),
            _ages(history, code, life, made, is_end),
        ]
    )
    best: tuple[int, int, list[tuple[int, int]]] = (0, 0, [])
    for period in _distances(columns):
        stretches = _stretches(columns, period)
        num_repeated = sum(end - begin - 2 * period for begin, end in stretches)
        best = max(best, (num_repeated, period, stretches))
    return Repeats(best[1], tuple(best[2]), made, gone) if best[0] else None


def _ages(history: History, code: Ints, life: Ints, made: Ints, is_end: Bools) -> Ints:
    """How long ago what is freed was asked for; what happens once only is like nothing else [operations]."""
    position = np.arange(len(code))
    age = np.where(is_end & (made[life] >= 0), position - made[life], 0)
    was_there = np.zeros(len(history.lives), np.bool_)
    was_there[history.first_lives] = True
    happens_once = (is_end & was_there[life]) | (code == Op.OOM)
    ages: Ints = np.where(happens_once, -1 - position, age)
    return ages


def _distances(columns: Ints) -> list[int]:
    """How far back the same operations were last, the distances that explain most first."""
    hashed = np.zeros(columns.shape[1], np.uint64)
    for column in columns:
        hashed = hashed * _FACTOR + column.astype(np.uint64)
    count = len(hashed) - _WINDOW + 1
    window = np.zeros(count, np.uint64)
    for offset in range(_WINDOW):
        window = window * _FACTOR + hashed[offset : offset + count]
    order = np.argsort(window, kind="stable")
    is_same = window[order[1:]] == window[order[:-1]]
    distance, times = np.unique((order[1:] - order[:-1])[is_same], return_counts=True)
    found: list[int] = distance[np.argsort(-times * distance, kind="stable")[:_NUM_DISTANCES]].tolist()
    return found


def _stretches(columns: Ints, period: int) -> list[tuple[int, int]]:
    """Where each operation is the one a period before: whole stretches of more than two periods."""
    is_same = (columns[:, period:] == columns[:, :-period]).all(axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_same, [False]])))
    found: list[tuple[int, int]] = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        begin, end = max(first, found[-1][1] if found else 0), last + period
        if end - begin > 2 * period:
            found.append((begin, end))
    return found
