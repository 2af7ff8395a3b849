"""Which rows of a trace ran on which thread of the host, and in which order: what encloses what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from tracer.arrays import Int, Ints
from tracer.snapshot.remarks import Remarks
from tracer.trace.tables import Table, TraceTables

_ROWS_AT_A_TIME = 1 << 16
THREADS_GUESSED = "Python's calls are on a thread without operators, and are taken to be the main thread's"


class HostTable(IntEnum):
    """The table of a row."""

    PYTHON = 0
    OPERATOR = 1
    MEMORY = 2


class HostRows:
    """The rows of a trace by thread.

    Attributes:
        threads: Numbers of the threads with operators, calls or allocations: those that Python ran on first.
    """

    def __init__(self, tables: TraceTables, base_ns: int, remarks: Remarks) -> None:
        """Sort the rows of all tables by thread and time."""
        python, operators, memory = tables.python, tables.operators, tables.memory
        thread = _python_threads(python, operators, remarks)
        start = np.concatenate(
            [base_ns + column for column in (python["start_ns"], operators["start_ns"], memory["time_ns"])]
        )
        end = start + np.concatenate([python["duration_ns"], operators["duration_ns"], np.zeros(len(memory), Int)])
        source = np.repeat(np.arange(3), [len(python), len(operators), len(memory)])
        row = np.concatenate([np.arange(len(table)) for table in (python, operators, memory)])
        thread = np.concatenate([thread, operators["thread"], memory["thread"]])
        order = np.lexsort((row, source, -end, start, thread))
        self._columns = tuple(column[order] for column in (source, row, start, end))
        sorted_thread = thread[order]
        numbers, first = np.unique(sorted_thread, return_index=True)
        last = np.append(first[1:], len(order))[: len(first)]
        self._range = dict(zip(numbers.tolist(), zip(first.tolist(), last.tolist(), strict=True), strict=True))
        has_python = np.isin(numbers, thread[: len(python)])
        self.threads: list[int] = numbers[np.lexsort((self._columns[2][first], ~has_python))].tolist()

    def of(self, thread: int) -> Iterator[tuple[int, int, int, int]]:
        """Table, row, start and end in nanoseconds of each row of a thread, what encloses others before these."""
        first, last = self._range[thread]
        for at in range(first, last, _ROWS_AT_A_TIME):
            some = slice(at, min(at + _ROWS_AT_A_TIME, last))
            yield from zip(*(column[some].tolist() for column in self._columns), strict=True)


def _python_threads(python: Table, operators: Table, remarks: Remarks) -> Ints:
    """The thread of every call.

    Some versions of torch write all calls of Python under thread 0, those of several threads among each other. Calls
    know the call that made them: what has no other above it begins a thread, and two that overlap are of two threads.
    The one with most calls is then that of the steps, or else of most operators.
    """
    thread = python["thread"].astype(Int)
    lost = ~np.isin(thread, np.unique(operators["thread"]))
    if not lost.any() or not len(operators):
        return thread
    rows = np.flatnonzero(lost)
    lane = _lanes(python[rows])
    busiest = int(np.bincount(lane).argmax())
    main = _main_thread(operators)
    if main in np.unique(thread[~lost]):
        return thread
    # The others explain no operator, and are threads of their own.
    thread[rows] = np.where(lane == busiest, main, -2 - lane)
    remarks.add_many(THREADS_GUESSED, int((lane == busiest).sum()), "as torch 2.4 to 2.7 have them")
    return thread


def _main_thread(operators: Table) -> int:
    """The thread of most named regions, which programs mark in the main thread, else of most operators."""
    regions = operators["thread"][operators["is_region"] != 0]
    return int(np.bincount(regions if len(regions) else operators["thread"]).argmax())


def _lanes(python: Table) -> Ints:
    """A number for each thread that some calls must be of: roots that overlap are of different ones."""
    start = python["start_ns"]
    end = start + python["duration_ns"]
    row_of = {number: row for row, number in enumerate(python["id"].tolist())}
    parents = python["parent_id"].tolist()
    lane = [-1] * len(parents)
    free_from: list[int] = []
    for row in np.argsort(start, kind="stable").tolist():
        above = row_of.get(parents[row], -1)
        if above >= 0 and lane[above] >= 0:
            lane[row] = lane[above]
            continue
        place = next((number for number, free in enumerate(free_from) if free <= start[row]), len(free_from))
        free_from[place : place + 1] = [int(end[row])]
        lane[row] = place
    return np.array(lane, Int)
