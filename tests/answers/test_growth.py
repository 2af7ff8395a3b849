"""Whether memory grows: programs that keep something in every step, in every second one, or let go of as much."""

from __future__ import annotations

import gc
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training_steps import Recorded, each_workload
from tracer.answers.caveats import growth_sentences
from tracer.answers.findings import RunFindings
from tracer.answers.growth import GrowingPlace, Growth, PlaceInCode, Survivors, find_growth, find_survivors
from tracer.blocks.kinds import Kind
from tracer.exporters.page import timeline_page
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

KIB = 1024
TWO_CYCLES = Schedule(1, 1, 3, 2)
Step = Callable[[int], object]


def line_with(text: str) -> int:
    """Number of the one line of this file that contains a text, but for this call's."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (at for at, line in enumerate(lines, 1) if text in line and "line_with(" not in line)
    return number


def watched(step: Step, schedule: Schedule = TWO_CYCLES, *, fails_in: int | None = None) -> RunFindings:
    """A model's training beside what `step` does in each step."""
    gc.collect()
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = ProfileSession(model, optimizer, schedule=schedule)
    try:
        with session:
            for number in range(schedule.num_steps):
                model(torch.randn(4, 16)).square().mean().backward()
                if number == fails_in:
                    raise MemoryError
                step(number)
                optimizer.step()
                optimizer.zero_grad()
                session.step()
    except MemoryError:
        pass
    return session.findings


def kib(count: int = 1) -> Tensor:
    return torch.ones(count * KIB // 4)


# ---- what grows ------------------------------------------------------------------------------------------------------
def test_a_leak_of_one_tensor_a_step_is_found_with_its_line() -> None:
    kept: list[Tensor] = []
    findings = watched(lambda _: kept.append(torch.ones(2 * KIB // 4)))  # the leak
    assert findings.growth is not None
    assert findings.growth.bytes_per_step == 2 * KIB
    (place,) = findings.growth.places
    assert (place.bytes_per_step, place.place.op) == (2 * KIB, "aten::ones")
    assert (place.place.file, place.place.line) == (__file__, line_with("# the leak"))


def test_two_lines_that_take_turns_are_one_growth_with_both_places() -> None:
    kept: list[Tensor] = []

    def step(number: int) -> None:
        if number % 2:
            kept.append(torch.ones(KIB // 4))  # odd steps
        else:
            kept.append(torch.zeros(KIB // 4))  # even steps

    growth = watched(step).growth
    assert growth is not None
    assert growth.bytes_per_step == KIB == sum(place.bytes_per_step for place in growth.places)
    assert {place.place.line for place in growth.places} == {line_with("# odd steps"), line_with("# even steps")}


@pytest.mark.parametrize("parity", [0, 1])
def test_a_list_that_grows_in_every_second_step_is_found(parity: int) -> None:
    kept: list[Tensor] = []

    def step(number: int) -> None:
        if number % 2 == parity:
            kept.append(kib(4))

    growth = watched(step).growth
    assert growth is not None
    assert growth.bytes_per_step == 2 * KIB


def test_kept_losses_with_their_graphs_grow_and_gradients_that_are_cleared_do_not() -> None:
    model, kept = nn.Linear(16, 16), []

    def step(_: int) -> None:
        loss = model(torch.randn(256, 16)).tanh().sum()
        loss.backward(retain_graph=True)
        kept.append(loss)
        model.zero_grad()

    growth = watched(step).growth
    assert growth is not None
    assert growth.bytes_per_step >= 2 * 256 * 16 * 4  # the layer's input and what tanh saves
    assert not [place for place in growth.places if place.kind is Kind.GRADIENT]


def test_a_leak_beside_a_full_ring_buffer_is_not_mistaken_for_it() -> None:
    ring: deque[Tensor] = deque([kib(8) for _ in range(3)], maxlen=3)
    kept: list[Tensor] = []

    def step(_: int) -> None:
        ring.append(kib(8))
        kept.append(torch.ones(KIB // 4))  # beside the ring

    growth = watched(step).growth
    assert growth is not None
    assert growth.bytes_per_step == KIB
    assert [(place.bytes_per_step, place.place.line) for place in growth.places] == [
        (KIB, line_with("# beside the ring"))
    ]


def test_a_run_that_fails_while_it_grows_says_so() -> None:
    """The step in which it fails is not judged: it has not let go of anything yet."""
    kept: list[Tensor] = []
    growth = watched(lambda _: kept.append(kib(2)), Schedule(0, 0, 5, 1), fails_in=4).growth
    assert growth is not None
    assert growth.bytes_per_step == 2 * KIB


# ---- what does not ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_full_ring_buffer_does_not_grow(length: int) -> None:
    ring: deque[Tensor] = deque([kib() for _ in range(length)], maxlen=length)
    assert watched(lambda _: ring.append(kib())).growth is None


def test_a_result_that_is_kept_for_two_steps_does_not_grow() -> None:
    """Also where each cycle sees one being made, and none being let go of."""
    held: dict[str, Tensor] = {}

    def step(number: int) -> None:
        if number % 2 == 0:
            held["result"] = kib(4)

    for num_active in (2, 4):
        assert watched(step, Schedule(1, 1, num_active, 2)).growth is None


def test_variables_of_a_loop_and_accumulated_gradients_do_not_grow() -> None:
    model = nn.Linear(32, 32)
    held: dict[str, Tensor] = {}

    def step(number: int) -> None:
        held["x"] = torch.randn(8, 32)
        held["loss"] = model(held["x"]).sum()
        held["loss"].backward()
        if number % 4 == 1:  # made anew in the first step of a cycle of four
            model.zero_grad()

    for num_active in (2, 3):
        assert watched(step, Schedule(1, 1, num_active, 2)).growth is None


@pytest.mark.parametrize("leaks", [False, True])
def test_state_that_an_optimizer_makes_in_its_first_step_is_no_growth(leaks: bool) -> None:
    model, kept = nn.Linear(32, 32), []
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    with ProfileSession(model, optimizer, schedule=Schedule(0, 0, 4, 1)) as session:
        for _ in range(5):
            model(torch.randn(4, 32)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(kib() if leaks else None)
            session.step()
    growth = session.findings.growth
    assert (growth.bytes_per_step if growth is not None else None) == (KIB if leaks else None)


def test_one_cycle_of_two_steps_says_nothing() -> None:
    """What one step leaves may be the only thing that it ever leaves."""
    kept: list[Tensor] = []
    assert watched(lambda _: kept.append(kib()), Schedule(1, 1, 2, 1)).growth is None
    assert watched(lambda _: kept.append(kib()), Schedule(1, 1, 2, 2)).growth is not None


# ---- by hand ---------------------------------------------------------------------------------------------------------
A, B = ((Kind.TEMPORARY, PlaceInCode("aten::ones", None, "train.py", line)) for line in (1, 2))


def cycle(*rows: tuple[int, int, int], num_judged: int = 2, held: int = 0, is_complete: bool = True) -> Survivors:
    """Rows of step, size and site, -1 for what ended."""
    step, size, site = np.array(rows, np.int64).reshape(-1, 3).T
    return Survivors(
        num_judged=num_judged,
        is_complete=is_complete,
        held_before_bytes=held,
        step=step,
        size_bytes=size,
        site=site,
        sites=(A, B),
    )


def test_what_ended_is_taken_off_where_most_blocks_of_its_size_were_made() -> None:
    """Steps leave 3 x 8 and 1 x 8 from A, 2 x 8 and 1 x 5 from B; 3 of 8 end: A's are taken off first."""
    rows = [(0, 8, 0)] * 3 + [(1, 8, 0)] + [(0, 8, 1), (1, 8, 1), (1, 5, 1)] + [(0, -8, -1), (0, -8, -1), (1, -8, -1)]
    assert find_growth([cycle(*rows)]) == Growth(
        bytes_per_step=(6 * 8 + 5 - 3 * 8) // 2, places=(GrowingPlace(*B, (2 * 8 + 5) // 2), GrowingPlace(*A, 8 // 2))
    )


def test_every_rule_of_growing_in_every_cycle_is_needed() -> None:
    half = [(0, 8, 0)]
    grows = [cycle(*half, held=100), cycle(*half, held=108)]
    assert find_growth(grows) is not None
    assert find_growth(grows[:1]) is None  # one cycle is not enough
    assert find_growth([grows[0], cycle(*half, held=107)]) is None  # it did not stay
    assert find_growth([grows[0], cycle((0, 8, 1), held=108)]) is None  # another place each time
    assert find_growth([grows[0], cycle(*half, held=108, is_complete=False)]) is None  # nobody knows whether it stayed
    assert find_growth([grows[0], cycle(held=108)]) is None  # nothing was left this time
    more_bytes = [(0, 8, 0), (1, -2, -1)]
    assert find_growth([cycle(*more_bytes, held=0), cycle(*more_bytes, held=108)]) is None  # as many blocks as before


def test_two_steps_that_leave_different_things_are_no_growth() -> None:
    """As of a barrier's few bytes and, in the next step, the result of an evaluation that the one after replaces."""
    different = cycle((0, 8, 0), (1, 9, 1))
    assert find_growth([different]) is None
    assert find_growth([cycle((0, 8, 0), (1, 9, 1), (1, 1, 0))]) is not None  # A has a part in both
    assert find_growth([different, different]) is not None  # four steps


def test_the_sentence_names_three_places_and_the_sum_of_the_rest() -> None:
    sites = [(Kind.ACTIVATION, PlaceInCode("aten::mul", "net", "/code/train.py", line)) for line in range(5)]
    places = tuple(GrowingPlace(*site, 1024 * (5 - at)) for at, site in enumerate(sites))
    (sentence,) = growth_sentences(Growth(15 * 1024, places))
    assert sentence == (
        "Memory grows by 15.00 KiB a step, still in use after the next step: "
        "5.00 KiB (activation) by aten::mul at /code/train.py:0; "
        "4.00 KiB (activation) by aten::mul at /code/train.py:1; "
        "3.00 KiB (activation) by aten::mul at /code/train.py:2; 3.00 KiB from 2 more places."
    )
    assert growth_sentences(None) == ()


def test_screen_and_page_say_it() -> None:

    kept: list[Tensor] = []
    findings = watched(lambda _: kept.append(kib(2)))
    (said,) = growth_sentences(findings.growth)
    assert said.startswith("Memory grows by 2.00 KiB a step")
    page = timeline_page.timeline_page(findings, run={})
    assert said in page.answer.happened


LASTING = {Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE}


@each_workload
def test_survivors_are_those_of_a_plain_loop(recorded: Callable[[str], Recorded], name: str) -> None:
    for found in recorded(name).cycles:
        lifetimes, attribution = found.source.lifetimes, found.source.attribution
        steps = attribution.allocation_step[lifetimes.events].tolist()
        num_steps = len(attribution.step_names)
        last = [
            max((at for at, step in enumerate(steps) if step <= each and step >= 0), default=-1)
            for each in range(num_steps)
        ]

        def step_of(position: int, last: list[int] = last) -> int:
            return next((step for step, end in enumerate(last) if position <= end), len(last))

        expected: dict[int, list[int]] = defaultdict(list)
        for size, made, freed, kind, unseen in zip(
            lifetimes.size_bytes.tolist(),
            lifetimes.made_at.tolist(),
            lifetimes.freed_at.tolist(),
            found.blocks.kind.tolist(),
            lifetimes.made_unseen.tolist(),
            strict=True,
        ):
            if unseen or kind in LASTING:
                continue
            made_in, freed_in = (step_of(made) if made >= 0 else -1), step_of(freed)
            if 0 <= made_in < num_steps - 1 and freed_in > made_in + 1:
                expected[made_in].append(size)
            if 1 <= freed_in <= num_steps - 1 and made_in < freed_in - 1:
                expected[freed_in - 1].append(-size)
        survivors: dict[int, list[int]] = defaultdict(list)
        left = find_survivors(found.source)
        for step, size in zip(left.step.tolist(), left.size_bytes.tolist(), strict=True):
            survivors[step].append(size)
        assert {step: sorted(sizes) for step, sizes in survivors.items()} == {
            step: sorted(sizes) for step, sizes in expected.items()
        }
