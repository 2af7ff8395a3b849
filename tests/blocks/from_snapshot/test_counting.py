"""Facts by equal stacks, sizes and lives, and the workspaces that they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answers.test_snapshot_findings import (
    BACKWARD,
    BASE,
    ENGINE,
    FORWARD,
    FREE_BACKWARD,
    IN_STEP,
    MAIN,
    MALLOC,
    MIB,
    MODEL,
    TORCH,
    ZERO,
    load,
)
from tests.blocks.from_snapshot.test_kind_finder import PYTHON_FORWARD, PYTHON_STEP
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.block_facts import LARGE_WORKSPACE_BYTES as LARGE
from tracer.blocks.from_snapshot.block_facts import LT_WORKSPACE_BYTES, NONE, LifeFacts, facts_of_frees
from tracer.blocks.from_snapshot.counting import SEVERAL, agreed, kinds_of_stacks
from tracer.blocks.from_snapshot.phases import DevicePhases
from tracer.blocks.from_snapshot.sites import Sites
from tracer.blocks.from_snapshot.sizes import (
    as_many_as,
    copies_of,
    first_of_each,
    has_size_of,
    is_one_set,
    most_at_once,
    sets_of_sizes,
)
from tracer.blocks.kinds import Kind
from tracer.snapshot.columns import Segments
from tracer.snapshot.replay import replay


# ---- What blocks say of each other: by hand.
def test_a_stack_is_what_all_its_proved_blocks_are() -> None:
    # Stack 1: two gradients and one unknown. Stack 2: a gradient and an activation. Stack 3: unknown. 0: no stack.
    stack = np.array([1, 1, 1, 2, 2, 3, 0], dtype=np.int32)
    kind = np.array(
        [Kind.GRADIENT, Kind.UNKNOWN, Kind.GRADIENT, Kind.GRADIENT, Kind.ACTIVATION, Kind.UNKNOWN, Kind.PARAMETER]
    )
    assert kinds_of_stacks(stack, kind, 5).tolist() == [NONE, Kind.GRADIENT, SEVERAL, NONE, NONE]


def test_devices_agree_or_do_not() -> None:
    one = np.array([NONE, Kind.GRADIENT, Kind.GRADIENT, SEVERAL, NONE])
    other = np.array([Kind.INPUT, NONE, Kind.ACTIVATION, NONE, NONE])
    assert agreed([one, other]).tolist() == [Kind.INPUT, Kind.GRADIENT, SEVERAL, SEVERAL, NONE]
    assert agreed([other, one]).tolist() == [Kind.INPUT, Kind.GRADIENT, SEVERAL, SEVERAL, NONE]
    assert agreed([one]).tolist() == one.tolist()


# ---- Counting sizes: by hand, and beside loops as plain as can be.
BLOCKS = st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 9), st.integers(0, 9)), max_size=20)


@given(BLOCKS)
def test_the_most_at_once_is_what_a_loop_over_all_moments_finds(blocks: list[tuple[int, int, int]]) -> None:
    blocks = [(size, begin, max(begin, end)) for size, begin, end in blocks]
    table = np.array(blocks, dtype=np.int64).reshape(-1, 3)
    sizes, numbers = most_at_once(table[:, 0], table[:, 1], table[:, 2])
    assert sizes.tolist() == sorted({size for size, _, _ in blocks})
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        at_once = [sum(s == size and begin <= now < end for s, begin, end in blocks) for now in range(-1, 10)]
        assert number == max(at_once)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20), st.integers(1, 20), st.integers(0, 2**40)), max_size=20)
)
def test_the_most_bytes_of_a_group_are_those_of_a_loop_over_all_moments(
    blocks: list[tuple[int, int, int, int]],
) -> None:
    group, begin, duration, amount = np.array(blocks, dtype=np.int64).reshape(-1, 4).T
    groups, most = most_at_once(group, begin, begin + duration, amount)
    assert groups.tolist() == sorted(set(group.tolist()))
    in_use = [
        {
            number: int(amount[(group == number) & (begin <= now) & (now < begin + duration)].sum())
            for number in range(4)
        }
        for now in range(-1, 41)
    ]
    assert most.tolist() == [max(at[number] for at in in_use) for number in groups.tolist()]


def test_state_beside_parameters_would_be_twice_as_many() -> None:
    # Of size 7 there are 2 gradients and 3 candidates: parameters. Of size 9 one gradient and 2 candidates: who knows.
    size = np.array([7, 7, 7, 9, 9, 5])
    candidates = np.array([True, True, True, True, True, True])
    found = as_many_as(candidates, size, np.array([7, 9]), np.array([2, 1]))
    assert found.tolist() == [True, True, True, False, False, False]
    assert not as_many_as(candidates, size, np.array([], dtype=np.int64), np.array([], dtype=np.int64)).any()


def test_only_candidates_count() -> None:
    size, candidates = np.array([7, 7, 7]), np.array([True, False, False])
    assert as_many_as(candidates, size, np.array([7]), np.array([1])).tolist() == [True, False, False]


def test_of_gradients_that_are_some_of_all_one_size_says_it_of_every_size() -> None:
    """In the middle of backward: the last layer's one of 7 has its gradient, and one of the three of 9."""
    size, candidates = np.array([70, 90, 90, 90]), np.ones(4, dtype=np.bool_)
    sizes, numbers = np.array([70, 90]), np.array([1, 1])
    assert as_many_as(candidates, size, sizes, numbers).tolist() == [True, False, False, False]
    assert as_many_as(candidates, size, sizes, numbers, are_some=True).all()
    # Twice as many of both: state may be among them.
    twice = np.repeat(size, 2)
    assert not as_many_as(np.ones(8, dtype=np.bool_), twice, sizes, numbers, are_some=True).any()


def test_what_a_step_has_let_go_of_counts_too() -> None:
    size, candidates = np.array([7, 7]), np.ones(2, dtype=np.bool_)
    assert as_many_as(candidates, size, np.array([7]), np.array([2])).all()
    assert not as_many_as(candidates, size, np.array([7]), np.array([2]), others=np.array([7, 7, 9])).any()


@pytest.mark.parametrize(
    ("sizes", "is_one"),
    [
        ([], False),
        ([5, 6, 7], False),  # each once: two volumes of a data set say nothing of weights
        ([5, 5, 6, 6, 6], True),  # twice and three times: not all of them copies
        ([5, 5, 6, 6], False),  # each twice: one may be the other's momentum
        ([5] * 3 + [6] * 9, False),  # parameters and two states
        ([5] * 3 + [6] * 9 + [8], False),  # one of a kind says nothing
        ([900] * 8 + [800] * 4 + [2] * 5, False),  # four copies, and one more small block
        ([900] * 48 + [800] * 24 + [2] * 25 + [7000] * 2, True),  # norms, an embedding and a head
    ],
)
def test_sizes_that_repeat_together_are_copies(sizes: list[int], is_one: bool) -> None:
    found = is_one_set(np.array(sizes, dtype=np.int64), np.array(sizes, dtype=np.int64), num_layers=0)
    assert bool(found.any()) is is_one


@pytest.mark.parametrize(
    ("copies", "num_layers", "named"),
    [
        (1, 8, [True] * 8 + [True] * 4 + [False, False]),
        (1, 4, [False] * 14),  # twice as many as layers: gradients or state are among them
        (4, 8, [False] * 56),  # parameters, gradients, two states
        (1, 30, [False] * 14),  # the calls are of something else
    ],
)
def test_a_model_has_as_many_large_blocks_as_layers(copies: int, num_layers: int, named: list[bool]) -> None:
    """Eight weights, four biases, and one each of what may be data: a buffer of a bias's size changes nothing."""
    sizes = np.array(([6400] * 8 + [10] * 4 + [7, 3]) * copies, dtype=np.int64)
    assert is_one_set(sizes, sizes, num_layers).tolist() == named
    more = np.append(sizes, 10)
    assert is_one_set(more, more, num_layers).tolist()[:-1] == named


def test_who_has_the_size_of_another() -> None:
    assert has_size_of(np.array([1, 2, 3]), np.array([3, 1])).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("candidates", "found"),
    [
        ([7, 7, 7, 9, 9, 9, 9, 9, 9], (3, 75)),  # three for the gradient of 7, and for the two of 9
        ([7, 7, 9, 9], (0, 0)),
        ([7, 9, 9, 5], (1, 25)),
        ([7, 7, 9, 9, 9], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_how_many_there_are_for_each_gradient(candidates: list[int], found: tuple[int, int]) -> None:
    assert copies_of(np.array(candidates, dtype=np.int64), np.array([7, 9]), np.array([1, 2])) == found


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


@pytest.mark.parametrize(
    ("sizes", "times", "of_sets", "of_parts"),
    [
        # Gradients: two of 40, one of 100.
        ([40] * 4 + [100] * 2, 2, [40, 100], []),
        ([40] * 6 + [100] * 3 + [7], 3, [40, 100], []),
        ([40] * 2 + [100], 0, [], []),  # parameters alone
        ([40] * 8 + [100] * 4, 0, [], []),  # state, and a copy of the weights or a third average
        ([40] * 6 + [100] * 2, 0, [], []),  # each says something else
        ([40] * 5 + [100] * 3, 0, [], []),  # 56 % of the gradients' bytes are there three times
        # The block of 100 has its parts' state, of 30 and 70.
        ([40] * 6 + [100] + [30, 70] * 2, 3, [40], [30, 70]),
        ([40] * 6 + [100] + [30, 70] * 2 + [9, 9, 8], 3, [40], [30, 70]),
        ([40] * 6 + [100] + [30, 71] * 2, 0, [], []),
        ([40] * 6 + [100] + [30, 70], 0, [], []),
    ],
)
def test_most_of_the_gradients_bytes_say_how_many_sets_there_are(
    sizes: list[int], times: int, of_sets: list[int], of_parts: list[int]
) -> None:
    found = sets_of_sizes(ints(*sizes), ints(40, 100), ints(2, 1))
    assert (found.times, found.sizes.tolist(), found.of_parts.tolist()) == (times, of_sets, of_parts)


def segments(*address: int, is_expandable: bool = False) -> Segments:
    number = len(address)
    flags: Bools = np.full(number, is_expandable)
    return Segments(
        ints(*address), ints(*[100] * number), ints(*[0] * number), flags & False, flags, np.full(number, -1, np.int32)
    )


def test_parameters_come_first_and_addresses_rise_but_for_those_of_the_hosts_mmap() -> None:
    chunk = 32 << 20
    size, addr = ints(9, 9, 5, 9, 9, 5), ints(0, 40, 80, chunk, chunk + 40, chunk + 80)
    rows = np.arange(6)
    assert sorted(first_of_each(rows, size, addr, 2, segments(0, chunk))) == [0, 1, 2]
    high = 0x7F00_0000_0000
    falling = segments(high, high + chunk)
    assert sorted(first_of_each(rows, size, addr + high, 2, falling)) == [3, 4, 5]
    growing = segments(high, high + chunk, is_expandable=True)
    assert sorted(first_of_each(rows, size, addr + high, 2, growing)) == [0, 1, 2]
    # Segments of one chunk of the driver's rise.
    in_one_chunk = ints(0, 40, 80, 100, 140, 180) + high
    assert sorted(first_of_each(rows, size, in_one_chunk, 2, segments(high, high + 100))) == [0, 1, 2]


# ---- What stacks and lives say of single blocks: by hand.
@dataclass
class BlockOf:
    """One block's facts."""

    table: LifeFacts
    row: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)[self.row]


def facts(path: Path, trace: list[Row], segments: list[Row] | None = None) -> dict[int, BlockOf]:
    """The facts of each block, by its address."""
    loaded = load(path, snapshot(trace, segments))
    (state,) = loaded.devices
    sites, lives = Sites(loaded.stacks), replay(state, {}).lives
    freed = facts_of_frees(state, lives, sites.facts)
    table = LifeFacts(state, lives, DevicePhases(loaded, state, sites.facts), sites, freed)
    return {address: BlockOf(table, row) for row, address in enumerate(lives.addr.tolist())}


def test_a_life_through_backward_and_a_step(tmp_path: Path) -> None:
    end = [segment(BASE, 1 << 20, [block(BASE, 5), block(BASE + 1024, 5)])]
    trace = [
        entry("alloc", BASE, 5, frames=FORWARD),
        entry("alloc", BASE + 1024, 5, frames=BACKWARD),
        entry("alloc", BASE + 2048, 5, frames=IN_STEP),
        *freed(BASE + 2048, 5, frames=IN_STEP[1:]),
        entry("alloc", BASE + 4096, 5, frames=FORWARD),
        *freed(BASE + 4096, 5, frames=FREE_BACKWARD),
    ]
    found = facts(tmp_path / "s", trace, end)
    first, gradient, scratch, last = (found[BASE + at] for at in (0, 1024, 2048, 4096))
    assert first.outside and first.meets_backward and first.meets_step and first.is_at_end and not first.is_before
    assert gradient.in_backward and gradient.meets_step and not gradient.outside
    assert scratch.in_optimizer and scratch.freed_in_step and not scratch.outlives_step and not scratch.is_at_end
    assert last.freed_by_autograd and not last.meets_step and last.has_cpp


def test_a_free_with_the_allocations_own_stack_says_nothing(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 5, frames=BACKWARD), *freed(BASE, 5, frames=BACKWARD)]
    (one,) = facts(tmp_path / "s", trace).values()
    assert one.in_backward and not one.freed_by_autograd


def test_silence_means_autograd_only_where_a_training_is_seen(tmp_path: Path) -> None:
    silent = [entry("alloc", BASE, 5), *freed(BASE, 5)]
    loud = entry("alloc", BASE + 1024, 5, frames=[MODEL, MAIN])
    assert not facts(tmp_path / "s", [*silent, loud])[BASE].is_stackless
    zero = entry("alloc", BASE + 2048, 5, frames=[ZERO, MAIN])
    one = facts(tmp_path / "t", [*silent, loud, zero])[BASE]
    assert one.is_stackless and one.freed_stackless and not one.has_cpp
    with_cpp = entry("alloc", BASE + 4096, 5, frames=FORWARD)
    assert not facts(tmp_path / "u", [*silent, loud, zero, with_cpp])[BASE].is_stackless


def test_a_silence_is_over_when_the_caller_of_backward_goes_on(tmp_path: Path) -> None:
    """And not when a hook runs on autograd's thread, or what backward itself makes first."""
    call, hook = frame("backward", f"{TORCH}/_tensor.py", 5), frame("hook", "/home/me/hooks.py", 3)
    trace = [
        entry("alloc", BASE, 5, frames=[call, MAIN]),
        entry("alloc", BASE + 1024, 5),
        entry("alloc", BASE + 2048, 5),
        entry("alloc", BASE + 3072, 5, frames=[hook]),
        *freed(BASE + 1024, 5),
        entry("alloc", BASE + 4096, 5, frames=[MODEL, {**MAIN, "line": 71}]),
        *freed(BASE + 2048, 5),
    ]
    found = facts(tmp_path / "s", trace, [segment(BASE, 8 << 10, [block(BASE + at, 5) for at in (0, 3072, 4096)])])
    assert [bool(found[BASE + at].outlives_stackless_run) for at in range(0, 5120, 1024)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert not facts(tmp_path / "t", trace[1:], [segment(BASE, 8 << 10, [])])[BASE + 2048].outlives_stackless_run


def test_two_steps_are_long(tmp_path: Path) -> None:
    trace, end = [entry("alloc", BASE, 5, frames=FORWARD)], [segment(BASE, 1 << 20, [block(BASE, 5)])]
    for number, frames in enumerate([IN_STEP, FORWARD, IN_STEP]):
        assert not facts(tmp_path / f"s{number}", trace, end)[BASE].is_long_lived
        trace.append(entry("alloc", BASE + 1024 * (number + 1), 5, frames=frames))
    assert facts(tmp_path / "end", trace, end)[BASE].is_long_lived


def test_an_empty_recording(tmp_path: Path) -> None:
    held = facts(tmp_path / "s", [], [segment(BASE, 4096, [block(BASE, 5)])])[BASE]
    assert held.is_before and held.is_at_end and not held.has_only_forward


def test_what_backward_makes_in_a_constructor_is_not_the_constructors(tmp_path: Path) -> None:
    """A program's `__init__` that trains a step: what the engine makes below it is no parameter of the object."""
    constructor = frame("__init__", "/home/me/model.py", 3)
    for name, frames, is_found in (("own", [MALLOC], True), ("engine", [MALLOC, ENGINE], False)):
        made = entry("alloc", BASE, 5, frames=[*frames, constructor, MAIN])
        found = facts(tmp_path / name, [made], [segment(BASE, 4096, [block(BASE, 5)])])[BASE]
        assert (found.constructor >= 0) == is_found


# ---- cuBLAS's workspaces in recordings of Python frames alone; those with C++ frames say it themselves.
IN_LINEAR = [frame("forward", f"{TORCH}/nn/modules/linear.py", 130), *PYTHON_FORWARD]
A_STEP = [entry("alloc", BASE + 210 * MIB, 1, frames=PYTHON_STEP), *freed(BASE + 210 * MIB, 1, frames=[MAIN])]


def kinds_of(size: int, tmp_path: Path, trace: list[Row], left: Sequence[Row] = ()) -> list[str]:
    """Of the blocks of this size that were made, in their order."""
    (device,) = replay_snapshot(load(tmp_path / "s", snapshot(trace, list(left)))).devices
    lives = device.replay.lives
    rows = np.flatnonzero((lives.requested_bytes == size) & (lives.begin >= 0))
    return [Kind(found).words for found in device.blocks.kind[rows[np.argsort(lives.begin[rows])]]]


@pytest.mark.parametrize(
    ("size", "between", "layer", "is_common", "kind"),
    [
        (LARGE, [], False, False, "workspace"),
        (LARGE, [], True, True, "workspace"),
        (LARGE, [], False, True, "temporary"),
        (8_519_680, [], False, True, "workspace"),
        (LARGE, [entry("alloc", BASE + 40 * MIB, 1, frames=PYTHON_FORWARD)], True, False, "temporary"),
        (LARGE - 512, [], True, False, "temporary"),
    ],
)
def test_workspaces_of_one_call(
    tmp_path: Path, size: int, between: list[Row], layer: bool, is_common: bool, kind: str
) -> None:
    """As torch makes them since 2.15, in a layer and, without a stack, in its backward; others may have 32 MiB."""
    forward = IN_LINEAR if layer else PYTHON_FORWARD
    trace = []
    for frames in (forward, None):
        trace += [entry("alloc", BASE, size, frames=frames), *between, *freed(BASE, size, frames=frames and [MAIN])]
        trace += [row for made in between for row in freed(made["addr"], 1)]
    trace += A_STEP
    weight = [segment(BASE + 64 * MIB, LARGE, [block(BASE + 64 * MIB, LARGE)])] if is_common else []
    assert kinds_of(size, tmp_path, trace, weight) == [kind] * 2


@pytest.mark.parametrize(
    ("size", "layer", "has_result", "kinds"),
    [
        (LARGE, False, True, ["workspace", "workspace"]),
        (LARGE, False, False, ["temporary", "temporary"]),
        # cublasLt's, in layers alone; what backward makes of that size has no stack that tells it.
        (LT_WORKSPACE_BYTES, True, True, ["workspace", "temporary"]),
        (LT_WORKSPACE_BYTES, False, True, ["temporary", "temporary"]),
        (LT_WORKSPACE_BYTES, True, False, ["temporary", "temporary"]),
    ],
)
def test_a_workspace_is_made_right_after_the_products_result(
    tmp_path: Path, size: int, layer: bool, has_result: bool, kinds: list[str]
) -> None:
    """By the same line, where weights are of its size too; the driver's segment for it comes in between."""
    forward = IN_LINEAR if layer else PYTHON_FORWARD
    result = BASE + 40 * MIB
    trace = [entry("alloc", result, 512, frames=forward if has_result else [MAIN])]
    trace += [entry("segment_alloc", BASE, LARGE, frames=forward), entry("alloc", BASE, size, frames=forward)]
    trace += [*freed(BASE, size, frames=[MAIN]), entry("alloc", BASE, size), *freed(BASE, size)]
    trace += A_STEP
    left = [
        segment(BASE + at * MIB, length, [block(BASE + at * MIB, length)]) for at, length in ((40, 512), (64, LARGE))
    ]
    assert kinds_of(size, tmp_path, trace, left) == kinds


@pytest.mark.parametrize(("meanwhile", "kind"), [(16, "workspace"), (LARGE + 512, "temporary")])
def test_what_a_reduction_sums_in_is_no_result_of_a_workspaces_size(tmp_path: Path, meanwhile: int, kind: str) -> None:
    """Its counters come and go meanwhile, which are small; else blocks of the size may be the program's own."""
    counters = BASE + 40 * MIB
    trace = [entry("alloc", BASE, LARGE), entry("alloc", counters, meanwhile)]
    trace += [*freed(counters, meanwhile), *freed(BASE, LARGE), entry("alloc", BASE, LARGE), *freed(BASE, LARGE)]
    trace += A_STEP
    assert kinds_of(LARGE, tmp_path, trace)[1:] == [kind]


@pytest.mark.parametrize("has_product", [True, False])
def test_a_layers_workspace_of_cublaslt_tells_what_its_backward_works_in(tmp_path: Path, has_product: bool) -> None:
    """Also where results are as large; without a product in forward, it may be one of them."""
    result, lt = BASE + 40 * MIB, BASE + 80 * MIB
    trace = [entry("alloc", result, LARGE, frames=IN_LINEAR if has_product else [MAIN])]
    trace += [entry("alloc", lt, LT_WORKSPACE_BYTES, frames=IN_LINEAR), *freed(lt, LT_WORKSPACE_BYTES, frames=[MAIN])]
    trace += [entry("alloc", BASE, LARGE), *freed(BASE, LARGE), *freed(result, LARGE)]
    trace += A_STEP
    assert kinds_of(LARGE, tmp_path, trace)[1:] == ["workspace" if has_product else "temporary"]


@pytest.mark.parametrize(("file", "kind"), [("linear", "workspace"), ("conv", "not known")])
def test_a_convolution_keeps_no_workspace(tmp_path: Path, file: str, kind: str) -> None:
    """Autocast's copy and the result have its line, as a product's result and the workspace."""
    layer = [frame("forward", f"{TORCH}/nn/modules/{file}.py", 130), *PYTHON_FORWARD]
    trace = [entry("alloc", BASE + 80 * MIB, 512, frames=layer), entry("alloc", BASE, LARGE, frames=layer)]
    trace += A_STEP
    left = [segment(at, LARGE, [block(at, size)]) for at, size in ((BASE, LARGE), (BASE + 80 * MIB, 512))]
    assert kinds_of(LARGE, tmp_path, trace, left) == [kind]


LAST = entry("alloc", BASE, LARGE, frames=PYTHON_FORWARD)
OTHER = entry("alloc", BASE + 40 * MIB, 512, frames=PYTHON_FORWARD)


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        ([LAST], "workspace"),
        ([LAST, entry("oom", 0, LARGE, frames=PYTHON_FORWARD)], "workspace"),
        ([LAST, entry("free_requested", BASE, LARGE, frames=[MAIN])], "workspace"),
        ([LAST, OTHER], "not known"),
        ([OTHER, LAST, entry("free_requested", BASE + 40 * MIB, 512, frames=[MAIN])], "not known"),
    ],
    ids=["the last entry", "out of memory", "its free is requested", "another came", "another goes"],
)
def test_the_last_one_may_be_in_use(tmp_path: Path, tail: list[Row], kind: str) -> None:
    """Where the recording ends in the call, or runs out of memory there."""
    trace = [entry("alloc", BASE, LARGE, frames=PYTHON_FORWARD), *freed(BASE, LARGE, frames=[MAIN])]
    trace += [*A_STEP, *tail]
    blocks = [block(row["addr"], row["size"]) for row in tail if row["action"] == "alloc"]
    assert kinds_of(LARGE, tmp_path, trace, [segment(BASE, 64 * MIB, blocks)])[1:] == [kind]


@pytest.mark.parametrize(
    ("size", "layer", "calls", "is_result_gone", "kinds"),
    [
        (LARGE, True, 2, True, ["workspace", "workspace"]),
        (LARGE, True, 1, False, ["workspace", "workspace"]),  # out of memory in the first forward or backward
        (LT_WORKSPACE_BYTES, True, 2, True, ["workspace", "not known"]),
        (LARGE, False, 2, True, ["workspace", "workspace"]),
        (LARGE, False, 1, True, ["not known", "not known"]),
        (8_519_680, False, 1, False, ["workspace", "workspace"]),
    ],
)
def test_a_workspace_that_is_kept_is_made_once_and_never_freed(
    tmp_path: Path, size: int, layer: bool, calls: int, is_result_gone: bool, kinds: list[str]
) -> None:
    """As torch before 2.15 keeps one for each thread that calls cuBLAS: in forward, and in backward without a stack."""
    forward = IN_LINEAR if layer else PYTHON_FORWARD
    result, others = BASE + 80 * MIB, BASE + 40 * MIB
    trace = []
    for call in range(calls):
        trace += [entry("alloc", result, 512, frames=forward)]
        trace += [entry("alloc", BASE, size, frames=forward), entry("alloc", others, size)] if call == 0 else []
        trace += freed(result, 512) if is_result_gone else []
    trace += A_STEP
    places = [(BASE, size), (others, size), *([] if is_result_gone else [(result, 512)])]
    left = [segment(at, LARGE, [block(at, length)]) for at, length in places]
    assert kinds_of(size, tmp_path, trace, left) == kinds


def test_of_several_that_backward_leaves_none_is_a_workspace(tmp_path: Path) -> None:
    """Gradients of weights of 4,096 by 4,096 numbers in 16 bits have that size."""
    places = [BASE + 40 * at * MIB for at in range(4)]
    trace = [
        entry("alloc", BASE + 200 * MIB, 512, frames=IN_LINEAR),
        entry("alloc", places[0], LARGE, frames=IN_LINEAR),
    ]
    trace += [entry("alloc", places[1], LARGE), entry("alloc", places[2], LARGE)]
    trace += A_STEP
    left = [segment(at, LARGE, [block(at, LARGE)]) for at in places[:3]]
    left += [segment(BASE + 200 * MIB, 1 << 20, [block(BASE + 200 * MIB, 512)])]
    found = kinds_of(LARGE, tmp_path, trace, left)
    assert found[0] == "workspace" and "workspace" not in found[1:]
