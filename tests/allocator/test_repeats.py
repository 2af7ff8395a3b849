"""Programs that do the same again and again: where they do, and that a replay which skips it comes to the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.allocator.recorded import MIB, Program, requests_of
from tracer.allocator import replay as replay_module
from tracer.allocator.blocks import USED, Block
from tracer.allocator.history import Op
from tracer.allocator.replay import Requests, replay
from tracer.allocator.settings import AllocatorSettings, parse_settings

Act = tuple[str, int, int]
"""What is done, to which of a few variables, with how many bytes."""


class Loop(Program):
    """A program with variables, and a step that does the same things to them each time."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed, **options)
        self.variables: dict[int, Block] = {}

    def steps(self, acts: Sequence[Act], times: int) -> Loop:
        for _ in range(times):
            for act in acts:
                self._do(*act)
        return self

    def _do(self, what: str, variable: int, size: int) -> None:
        if what == "empty":
            self.allocator.empty_cache()
        elif what == "finish":
            while self.allocator.pending:
                self.allocator.finish(next(iter(self.allocator.pending)))
        elif what == "assign":  # the old block goes when the new one is there
            new = self.allocator.allocate(size, variable % 2)
            self._drop(variable)
            self.variables[variable] = new
        elif what == "wait":
            if (block := self.variables.get(variable)) is not None:
                self.allocator.record_stream(block, 7)
            self._drop(variable)
        else:
            self._drop(variable)

    def _drop(self, variable: int) -> None:
        block = self.variables.pop(variable, None)
        if block is not None and block.state is USED:
            self.allocator.free(block)


def in_full(requests: Requests) -> Requests:
    """The same, of which a replay does not know that it repeats itself."""
    same = replace(requests)
    vars(same)["repeats"] = None
    return same


@pytest.fixture(autouse=True)
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """No replay in C, which performs every operation."""
    monkeypatch.setattr(replay_module, "compiled_replay", lambda *_, **__: None)


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many operations replays have performed."""
    counts: list[int] = []
    performs = replay_module._ReplayRun._perform

    def counted(self: Any, begin: int, end: int) -> None:
        counts.append(end - begin)
        performs(self, begin, end)

    monkeypatch.setattr(replay_module._ReplayRun, "_perform", counted)
    return lambda: sum(counts)


STEP: tuple[Act, ...] = (
    ("assign", 0, 8 * MIB),
    ("assign", 1, 3 * MIB),
    ("assign", 2, 700),
    ("drop", 1, 0),
    ("drop", 2, 0),
)


def test_a_step_by_hand() -> None:
    """Three requests and three frees: the batch of the step before, and what the step itself has made."""
    repeats = requests_of(Loop().steps(STEP, 40)).repeats
    assert repeats is not None
    assert repeats.period == 6
    ((begin, end),) = repeats.stretches
    assert (begin, end) == (7, 5 + 39 * 6), "the first batch is freed one operation younger than the others"
    assert {(0, 6), (1, 3), (2, 4)} <= set(zip(repeats.made.tolist(), repeats.gone.tolist(), strict=True))


def test_only_the_first_periods_are_performed(performed: Callable[[], int]) -> None:
    """The batch takes two places in turns, so that the third step finds what the first one found."""
    requests = requests_of(Loop().steps(STEP, 500))
    outcome = replay(requests, AllocatorSettings())
    assert performed() < 60 < len(requests.code)
    assert outcome == replay(in_full(requests), AllocatorSettings())
    assert performed() > len(requests.code)


def test_what_each_period_costs_the_driver_counts_for_all(performed: Callable[[], int]) -> None:
    requests = requests_of(Loop().steps((*STEP, ("empty", 0, 0)), 200))
    outcome = replay(requests, AllocatorSettings())
    assert performed() < len(requests.code) // 4
    assert outcome.num_driver_calls > 400
    assert outcome == replay(in_full(requests), AllocatorSettings())


def test_what_is_cached_counts_though_nothing_is_in_use() -> None:
    """By hand: the first step reserves a segment, and no other one does."""
    requests = requests_of(Loop().steps((("assign", 1, 30 * MIB), ("drop", 1, 0)) * 4, 100))
    assert replay(requests, AllocatorSettings()).num_driver_calls == 1


def test_a_loop_that_keeps_more_with_each_step_is_performed_to_its_end(performed: Callable[[], int]) -> None:
    program = Loop()
    for number in range(100):
        program.steps((*STEP, ("assign", 100 + number, 5 * MIB)), 1)
    requests = requests_of(program)
    outcome = replay(requests, AllocatorSettings())
    assert performed() == len(requests.code)
    assert outcome.reserved_peak_bytes > 500 * MIB


def test_the_garbage_collection_has_a_clock_and_skips_nothing(performed: Callable[[], int]) -> None:
    requests = requests_of(Loop().steps(STEP, 100))
    replay(requests, parse_settings("garbage_collection_threshold:0.5"), capacity=100 * MIB)
    assert performed() == len(requests.code)


ACTS = st.tuples(
    st.sampled_from(("assign", "assign", "assign", "drop", "wait", "finish", "empty")),
    st.integers(0, 5),
    st.sampled_from((1, 600, 5000, MIB, 3 * MIB, 12 * MIB, 33 * MIB)),
)
CONFS = ("", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4")


@given(
    acts=st.lists(ACTS, min_size=2, max_size=14),
    others=st.lists(ACTS, max_size=6),
    times=st.integers(3, 60),
    again=st.integers(0, 30),
    seed=st.integers(0, 3),
    conf=st.sampled_from(CONFS),
    limit=st.sampled_from((None, 80 * MIB, 130 * MIB, 200 * MIB)),
    dropped=st.integers(2, 9),
)
def test_skipping_changes_no_outcome(
    acts: list[Act], others: list[Act], times: int, again: int, seed: int, conf: str, limit: int | None, dropped: int
) -> None:
    """Random loops behind and before other things, under any settings, with some blocks left out or freed earlier."""
    program = Loop(seed, empties=0.0)
    program.run(15)
    program.steps(acts, times).steps(others, 1).steps(acts, again)
    program.run(15)
    requests = requests_of(program)
    for changed in (requests, _without(requests, dropped)):
        options: dict[str, Any] = {"capacity": limit, "goes_on": True}
        assert replay(changed, parse_settings(conf), **options) == replay(
            in_full(changed), parse_settings(conf), **options
        )


def _without(requests: Requests, every: int) -> Requests:
    """As in `changed_requests`: some requests are gone, their frees are not; a few blocks are freed twice."""
    rows: list[tuple[int, int, int]] = []
    begin = requests.history.lives.begin.copy()
    for place, row in enumerate(zip(requests.code, requests.operand, requests.entry, strict=True)):
        code, life, entry = row
        if code == Op.ALLOC and place % every == 0:
            begin[life] = np.iinfo(np.int64).max
            continue
        rows.append(row)
        if code == Op.ALLOC and place % every == 1:
            rows.append((int(Op.FREE), life, entry))
    history = replace(requests.history, lives=replace(requests.history.lives, begin=begin))
    return Requests(history, *np.array(rows, np.int64).T)
