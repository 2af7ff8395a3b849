"""The law of sizes: sums that are found from few points, programs that share blocks, and the allocator in law.py."""

from __future__ import annotations

import ast
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers.test_snapshot_findings import BASE, FORWARD
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import entry, freed
from tracer.allocator import law as law_file
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.law import ALLOCATE, COMPLETE_FREE, EMPTY_CACHE, FREE, REQUEST_FREE, BlockLaw, Choice, Law, Sizes
from tracer.answers.answer_of_law import answer_of_law
from tracer.answers.law import (
    CheckedRun,
    FoundLaw,
    SharedSequence,
    SizedRun,
    common,
    find_law,
    first_sizes,
    in_order,
)
from tracer.answers.law import run_of as read_run
from tracer.answers.sums_of_sizes import Solver, rules_of
from tracer.null_gpu.cards import CONTEXT_BYTES, Card, Devices

MIB = 1 << 20
POINTS: list[Sizes] = [(1, 16), (64, 25), (3, 256), (64, 256), (9, 49), (5, 129), (19, 85)]
UNSEEN: list[Sizes] = [(2, 30), (33, 101), (128, 64), (7, 511)]


def run_of(sizes: Sizes, requested: Sequence[int], events: Sequence[tuple[int, int]]) -> SizedRun:
    """A run of one stream, whose blocks are called after their number."""
    labels = tuple(f"activation, train.py:{number}" for number in range(len(requested)))
    return SizedRun(sizes, tuple(events), tuple(requested), (0,) * len(requested), labels, sum(requested), 1)


def law_of(names: Sequence[str], ranges: Sequence[tuple[int, int]], runs: Sequence[SizedRun]) -> Law:
    return SharedSequence(runs).law(names, ranges)


def said_at(values: Sequence[int], points: Sequence[Sizes], unseen: Sequence[Sizes]) -> tuple[list[int], bool]:
    """Sizes that are said at unseen points from the values at others, and whether they are exact."""
    solved = Solver(points).solve(tuple(values))
    choices = rules_of(solved.of_row, points)[:1]
    block = BlockLaw(solved.cases, 0 if solved.rule is None else solved.rule, 0, 0)
    return [block.at(at, [choice.at(at) for choice in choices]) for at in unseen], solved.is_exact


# ----------------------------------------------------------------------------------------------------------------- sums
@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (2, 1), (0, 2)]),
        st.integers(1, 1 << 20),
        min_size=1,
        max_size=3,
    )
)
def test_a_sum_of_products_is_found_and_holds_beyond_the_points(terms: dict[Sizes, int]) -> None:
    def value(at: Sizes) -> int:
        return sum(factor * at[0] ** a * at[1] ** b for (a, b), factor in terms.items())

    assert said_at([*map(value, POINTS)], POINTS, UNSEEN) == ([*map(value, UNSEEN)], True)


@pytest.mark.parametrize(
    "value",
    [
        lambda b, t: 64 * b * (t // 2) ** 2,  # rows and columns of a picture behind a stride of two
        lambda b, t: 16 * b * ((t + 1) // 2) ** 2,
        lambda b, t: 512 * b * -(-t // 32),  # the sums of attention, for 32 tokens at a time
        lambda b, t: -(-b * t // 1024) * 4096 + 256,
        lambda b, t: 128 * b * t * (t // 2 + 1),  # a real Fourier transform
        lambda b, t: 4012 * (b * t - 3 * -(-b * t // 4)),  # the last of four equal pieces has what the others leave
        lambda b, t: min(128 * b * t, 131_072),  # a kernel has no more blocks than that
        lambda b, t: max(128 * b * t, 524_288),
        lambda b, t: 64 * b * t + 99 if b * t < 1500 else 192 * b * t + 16,  # a library has another way there
    ],
)
def test_sizes_that_kernels_round(value: Callable[[int, int], int]) -> None:
    said, is_exact = said_at([value(*at) for at in POINTS], POINTS, UNSEEN)
    assert is_exact and said == [value(*at) for at in UNSEEN]


def test_what_no_sum_gives_is_as_it_was_at_the_points_and_near_between_them() -> None:
    values, points = (1000, 2117, 2950, 4071, 5003), [(10,), (20,), (30,), (40,), (50,)]
    said, is_exact = said_at(values, points, [*points, (34,)])
    assert not is_exact and said[:5] == list(values) and 3200 < said[5] < 3500


def test_a_case_is_a_stretch_of_a_product_or_of_multiples_or_has_no_rule() -> None:
    points = [(2, 16), (64, 25), (3, 256), (64, 256), (11, 50), (6, 129)]
    (by_product, *_) = rules_of(tuple(int(b * t > 1000) for b, t in points), points)
    assert [by_product.at(at) for at in ((2, 100), (100, 20), (40, 240))] == [0, 1, 1]
    (by_eight,) = rules_of((1, 0, 1, 1, 0, 0), points)
    assert by_eight.multiple == 4 and [by_eight.at(at) for at in ((5, 24), (5, 23))] == [1, 0]
    assert rules_of((1, 0, 0, 1, 1, 0), points) == [Choice()]


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_what_two_programs_share_is_as_long_as_it_can_be(first: str, other: str) -> None:
    lengths = {(-1, at): 0 for at in range(-1, len(other))} | {(at, -1): 0 for at in range(-1, len(first))}
    for a in range(len(first)):
        for b in range(len(other)):
            more = lengths[a - 1, b - 1] + 1 if first[a] == other[b] else 0
            lengths[a, b] = max(more, lengths[a - 1, b], lengths[a, b - 1])
    pairs = common([{letter} for letter in first], other)
    assert len(pairs) == lengths[len(first) - 1, len(other) - 1]
    assert all(first[a] == other[b] for a, b in pairs) and pairs == sorted(set(pairs))


# ------------------------------------------------------------------------------------------------------------ the law
STEP = [(ALLOCATE, 0), (ALLOCATE, 0), (ALLOCATE, 0), (FREE, 2), (FREE, 1), (EMPTY_CACHE, 0)]


def step(batch: int, tokens: int) -> SizedRun:
    """30 MiB of weights stay; 1 KiB for each token and 3 bytes for each pair of tokens come and go."""
    requested = [30 * MIB, 1024 * batch * tokens, 3 * batch * tokens**2]
    return run_of((batch, tokens), requested, STEP)


def test_a_law_worked_out_by_hand() -> None:
    law = law_of(["batch", "tokens"], [(1, 64), (16, 4096)], [step(*at) for at in POINTS])
    # 16 x 1024 tokens: 16 MiB, and 48 MiB for the pairs; each has a segment of its own size.
    assert law.peak_bytes(batch=16, tokens=1024) == law.reserved_bytes(batch=16, tokens=1024) == (30 + 16 + 48) * MIB
    assert list(law.why(batch=16, tokens=1024).values()) == [48 * MIB, 30 * MIB, 16 * MIB]
    assert law.peak((16, 1024)).at == "activation, train.py:2"
    # Each sample of 1024 tokens takes 4 MiB beside the weights: of 94 MiB there is room for 16.
    assert law.largest(94 * MIB, tokens=1024) == 16 and law.largest(93 * MIB, tokens=1024) == 15
    assert law.largest(29 * MIB, tokens=1024) == 0 and law.largest(1 << 50, tokens=1024) == 64
    with pytest.raises(TypeError, match="Name each of batch, tokens"):
        law.peak_bytes(batch=16)


def test_programs_that_differ_share_the_sizes_of_their_common_blocks() -> None:
    """From a batch of 32 on, each step takes a block more: two runs there know the others from seven below."""
    below = [step(b, t) for b, t in [*POINTS[:3], (9, 49), (5, 129), (19, 85), (2, 200)] if b < 32]
    more = [(ALLOCATE, 0), (ALLOCATE, 0), (ALLOCATE, 0), (ALLOCATE, 0), (FREE, 3), (FREE, 2), (FREE, 1)]
    above = [
        run_of(at, [30 * MIB, 1024 * at[0] * at[1], 640 * at[0], 3 * at[0] * at[1] ** 2], more)
        for at in ((40, 60), (63, 100))
    ]
    law = law_of(["batch", "tokens"], [(1, 64), (16, 256)], [*below, *above])
    assert len(law.ways) == 2 and len(law.blocks) == 4 and all(choice.axis for choice in law.choices)
    parts = [30 * MIB, 1024 * 50 * 77, 640 * 50, 3 * 50 * 77**2]
    assert law.peak_bytes(batch=50, tokens=77) == sum(-(-part // 512) * 512 for part in parts)
    assert law.peak((20, 80)).by_label == law_of([], [], [step(20, 80)]).peak((20, 80)).by_label


def test_programs_share_blocks_beside_thousands_that_only_one_has() -> None:
    """A compiler tries kernels at some sizes: blocks that come and go before the first step."""

    def run(batch: int, tokens: int) -> SizedRun:
        tried = 0 if batch * tokens % 4 == 0 else 2500
        events = [(ALLOCATE, 0), *[(ALLOCATE, 0), (FREE, 1)] * tried, *STEP[1:]]
        requested = [30 * MIB, *[4] * tried, *step(batch, tokens).requested[1:]]
        return replace(run_of((batch, tokens), requested, events), labels=("activation, train.py:1",) * len(requested))

    law = law_of(["batch", "tokens"], [(1, 64), (16, 256)], [run(*at) for at in [*POINTS, (6, 129), (11, 50)]])
    assert len(law.blocks) == 4 and len(law.ways) == 2
    for at in ((20, 77), (9, 201)):
        assert law.peak(at).allocated_bytes == law_of([], [], [run(*at)]).peak(at).allocated_bytes


def test_sums_that_agree_at_some_runs_share_a_block_with_runs_at_which_one_of_them_holds() -> None:
    """Patches of 16 by 16: at sides whose rest is below 8, four of 8 by 8 would be as many."""

    def run(batch: int, side: int, *, has_more: bool) -> SizedRun:
        patches = 768 * batch * (side // 16) ** 2
        requested = [30 * MIB, patches, *[7] * has_more, 2 * patches]
        return run_of((batch, side), requested, [(ALLOCATE, 0)] * len(requested))

    first = [run(*at, has_more=True) for at in ((6, 129), (28, 84), (15, 33), (5, 64))]
    law = law_of(
        ["batch", "side"], [(1, 64), (16, 256)], [*first, *(run(*at, has_more=False) for at in ((64, 25), (11, 60)))]
    )
    assert len(law.blocks) == 4
    patches = sum(-(-768 * 12 * times // 512) * 512 for times in (1, 2))
    assert law.peak_bytes(batch=12, side=31) - 30 * MIB - patches in (0, 512)


def test_a_choice_follows_the_rule_of_one_that_says_its_case() -> None:
    """Tokens that are no multiple of 4 are padded; those who pad are the smaller ones, among runs with logits."""

    def run(batch: int, tokens: int) -> SizedRun:
        padding = 96 if batch * tokens % 4 else 0
        requested = [30 * MIB, *[5 * MIB] * (padding > 0), *[64 * batch * tokens + padding, 8] * (batch > 4)]
        names = ["weights", *["padding"] * (padding > 0), *["logits", "loss"] * (batch > 4)]
        each = run_of((batch, tokens), requested, [(ALLOCATE, 0)] * len(requested))
        return replace(each, labels=tuple(f"activation, {name}" for name in names))

    small, large = [(11, 50), (6, 129), (9, 33), (5, 61)], [(28, 84), (32, 169), (64, 256), (52, 100)]
    points = [(2, 16), (3, 256), (3, 103), (2, 203), *small, *large]
    law = law_of(["batch", "tokens"], [(1, 64), (16, 256)], [run(*at) for at in points])
    assert {choice.multiple for choice in law.choices if len(set(choice.cases)) == 2} == {0, 4}
    assert law.peak_bytes(batch=45, tokens=131) == 35 * MIB + -(-(64 * 45 * 131 + 96) // 512) * 512 + 512
    assert law.peak_bytes(batch=6, tokens=52) == 30 * MIB + 64 * 6 * 52 + 512


def test_what_is_freed_between_two_allocations_has_no_order_and_what_comes_at_some_sizes_moves_no_other() -> None:
    assert in_order([(ALLOCATE, 0), (ALLOCATE, 0), (FREE, 1), (FREE, 2), (EMPTY_CACHE, 0), (ALLOCATE, 0)]) == (
        (ALLOCATE, 0), (ALLOCATE, 0), (FREE, 2), (FREE, 1), (EMPTY_CACHE, 0), (ALLOCATE, 0),
    )  # fmt: skip

    def run(batch: int) -> SizedRun:
        """Workspaces stand at two places: one from a batch of 16 on, one below a batch of 40."""
        requested, events = list[int](), list[tuple[int, int]]()
        for layer in range(3):
            events.append((ALLOCATE, 0))
            requested.append((layer + 2) * batch * MIB)
            if batch >= 16 if layer == 0 else batch < 40:
                events += [(ALLOCATE, 0), (FREE, 1)]
                requested.append(3 * batch * MIB + 100)
        return run_of((batch,), requested, [*events, (EMPTY_CACHE, 0)])

    law = law_of(["batch"], [(1, 100)], [run(batch) for batch in (1, 8, 15, 17, 38, 41, 90)])
    for batch in (5, 25, 70):
        alone = law_of(["batch"], [(1, 100)], [run(batch)])
        assert law.peak((batch,)).allocated_bytes == alone.peak((batch,)).allocated_bytes
        assert law.bounds_bytes(batch=batch) == (law.peak_bytes(batch=batch),) * 2


def test_where_each_size_asks_for_something_else_the_nearest_run_counts_as_a_whole() -> None:
    def run(batch: int) -> SizedRun:
        asked = [(number + 1) * MIB for number in range(200) if hash((batch, number)) % 2]
        return run_of((batch,), asked, [(ALLOCATE, 0)] * len(asked))

    law = law_of(["batch"], [(1, 100)], [run(batch) for batch in (1, 4, 8, 13, 22, 40, 70)])
    assert not any(choice.axis for choice in law.choices)
    assert law.peak((5,)).by_label.keys() == law.peak((4,)).by_label.keys() != law.peak((8,)).by_label.keys()


def test_without_a_rule_the_peak_has_bounds() -> None:
    def run(batch: int, tokens: int, workspaces: int) -> SizedRun:
        events = [(ALLOCATE, 0), *[(ALLOCATE, 0), (FREE, 1)] * workspaces]
        return run_of((batch, tokens), [batch * MIB, *[4 * MIB] * workspaces], events)

    points = [(2, 16), (64, 25), (3, 256), (64, 256), (11, 50), (6, 129)]
    runs = [run(b, t, has) for (b, t), has in zip(points, (1, 0, 0, 1, 1, 0), strict=True)]
    law = law_of(["batch", "tokens"], [(1, 64), (16, 256)], runs)
    assert law.peak_bytes(batch=64, tokens=256) == 68 * MIB
    assert law.bounds_bytes(batch=64, tokens=256) == (64 * MIB, 68 * MIB)
    devices = Devices(Card("small", 96 * MIB + CONTEXT_BYTES))
    fits, spread, *_ = answer_of_law(FoundLaw(law, (), tuple(points)), devices, [64, 256]).happened
    assert fits.startswith("All of batch up to 64 fits") and spread.startswith(
        "Asked as in its runs it needs between 64.00 MiB"
    )


def test_no_law_takes_more_than_twelve_runs_and_checks_say_how_good_it_is() -> None:
    ran: list[Sizes] = []

    def make_run(at: Sizes) -> SizedRun:
        ran.append(at)
        peak = law_of(["batch", "tokens"], [(1, 2), (1, 2)], [step(*at)]).peak(at)
        return replace(step(*at), allocated_bytes=peak.allocated_bytes, reserved_bytes=peak.reserved_bytes)

    ranges = [(1, 64), (16, 256)]
    found = find_law(["batch", "tokens"], ranges, ranges, make_run)
    assert len(ran) == len(found.sizes) == len(first_sizes(ranges)) + 2
    assert len(found.checks) == 2 and not found.error

    def odd(at: Sizes) -> SizedRun:  # a size that no sum gives
        ran.append(at)
        return run_of(at, [hash(at) % 977 * MIB], [(ALLOCATE, 0)])

    ran.clear()
    found = find_law(["batch", "tokens"], ranges, ranges, odd)
    assert len(found.sizes) == len(ran) <= 12 and all(map(any, (check.errors for check in found.checks)))
    assert [next(iter(found.law.peak(at).by_label.values())) for at in ran] == [hash(at) % 977 * MIB for at in ran]


def bent(batch: int) -> SizedRun:
    """A step that takes 2 MiB a sample and frees it, and then 40 MiB of the optimizer's."""
    events = [(ALLOCATE, 0), (FREE, 1), (ALLOCATE, 0), (FREE, 1)]
    return run_of((batch,), [2 * batch * MIB, 40 * MIB], events)


def test_the_answer_says_what_fits_what_carries_the_peak_and_how_far_checks_agree() -> None:
    law = law_of(["batch"], [(1, 256)], [bent(batch) for batch in (1, 7, 64)])
    exact, off = (law.peak((batch,)) for batch in (10, 50))
    checks = CheckedRun((10,), 40 * MIB, exact.reserved_bytes, exact), CheckedRun((50,), 80 * MIB, 100 * MIB, off)
    card = Card("small", 96 * MIB + CONTEXT_BYTES)
    answer = answer_of_law(FoundLaw(law, checks, ((1,), (10,), (64,), (7,), (50,))), Devices(card), [1])
    assert answer.happened == (
        "An estimate: at sizes that it had not been made from, this law was up to 25.00% off.",
        "The largest batch that fits on small, 796.00 MiB is 48.",
        "Up to batch 19 the peak is at activation, train.py:1: 0 B for each one more.",
        "From batch 20 the peak is at activation, train.py:0: 2.00 MiB for each one more.",
    )
    assert answer.remarks[:2] == (
        "A run that the law had not been made from, batch 10: allocated exact, reserved exact.",
        "A run that the law had not been made from, batch 50: allocated +25.00% off, reserved exact.",
    )
    assert answer.in_use[0].rows[0][:2] == (1, 40 * MIB)


def test_the_requests_of_a_recording_have_their_kind_and_line_and_what_is_inferred_is_likely(tmp_path: Path) -> None:
    recorded = out_of_memory()
    made = entry("alloc", BASE + 4 * MIB, MIB, time_us=80, frames=FORWARD)
    recorded["device_traces"][0] += [made, *freed(BASE + 4 * MIB, MIB, time_us=90, frames=[])]
    (tmp_path / "history.pickle").write_bytes(pickle.dumps(recorded))
    run = read_run((1,), tmp_path / "history.pickle", 5 * MIB, 8 * MIB)
    assert run is not None and run.requested == (2 * MIB, MIB, 2 * MIB, MIB)
    assert run.events == (*[(ALLOCATE, 0)] * 3, (FREE, 2), (FREE, 1), (ALLOCATE, 0), (FREE, 1))
    activation = "activation, ~/model.py:7"
    assert run.labels == ("parameter, ~/model.py:3", activation, activation, f"likely {activation}")


# ------------------------------------------------------------------------------------------------- what law.py replays
_MADE = st.tuples(st.integers(1, 1 << 26) | st.sampled_from((512, MIB, MIB + 1, 10 * MIB, 19 * MIB)), st.integers(0, 1))
_OPERATIONS = st.lists(_MADE | st.integers(0, 1 << 16) | st.just("empty"), max_size=60)


@settings(max_examples=100, deadline=None)
@given(_OPERATIONS)
def test_the_allocator_of_law_py_decides_as_the_model_does(operations: list[tuple[int, int] | int | str]) -> None:
    """Allocations on two streams, frees, frees that wait for another stream, and emptied caches."""
    allocator, live, waiting = CachingAllocator(), list[int](), list[int]()
    blocks, events, requested, homes = {}, list[tuple[int, int]](), list[int](), list[int]()
    for each in operations:
        if isinstance(each, tuple):
            events.append((ALLOCATE, 0))
            blocks[len(requested)] = allocator.allocate(each[0], each[1])
            live.append(len(requested))
            requested.append(each[0])
            homes.append(each[1])
        elif each == "empty":
            events.append((EMPTY_CACHE, 0))
            allocator.empty_cache()
        elif waiting and isinstance(each, int) and each % 5 == 0:
            number = waiting.pop(0)
            events.append((COMPLETE_FREE, len(requested) - number))
            allocator.finish(blocks[number])
        elif live and isinstance(each, int):
            number = live.pop(each % len(live))
            is_waiting = each % 3 == 0
            events.append((REQUEST_FREE if is_waiting else FREE, len(requested) - number))
            if is_waiting:
                waiting.append(number)
                allocator.request_free(blocks[number])
            else:
                allocator.free(blocks[number])
    run = SizedRun((1,), tuple(events), tuple(requested), tuple(homes), ("",) * len(requested), 1, 1)
    peak = law_of(["batch"], [(1, 2)], [run]).peak((1,))
    expected = (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)
    assert (peak.allocated_bytes, peak.reserved_bytes) == expected
    assert sum(peak.by_label.values()) == peak.allocated_bytes


def test_a_law_is_the_same_from_its_text() -> None:
    law = law_of(["batch", "tokens"], [(1, 64), (16, 256)], [step(*at) for at in POINTS])
    assert eval(repr(law), vars(law_file)) == law


def test_law_py_needs_nothing_but_python() -> None:
    names = {
        (alias or str(node.module)).partition(".")[0]
        for node in ast.walk(ast.parse(Path(law_file.__file__).read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in ([each.name for each in node.names] if isinstance(node, ast.Import) else [""])
    }
    assert names <= {*sys.stdlib_module_names}
