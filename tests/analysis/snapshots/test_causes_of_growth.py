"""Memory that grows from iteration to iteration: for each cause a program of a few blocks, and its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.snapshots.recorded_program import (
    BACKWARD,
    RELEASE,
    STEP,
    TORCH,
    Recorded,
    changes_in,
    first,
    layer,
    line,
    objects_of,
    train,
)
from tests.snapshot.dumps import frame
from tracer.capture.objects.known_storages import ObjectsAtFailure


def test_a_graph_that_each_step_leaves() -> None:
    """Of 4 blocks of 10 MiB that a metric's forward keeps in each of 8 steps, 6 steps' are over: 240 MiB."""
    program = Recorded(capacity=420)
    for _ in range(8):
        train(program)
        for _ in range(4):
            program.make(10, layer(8, caller=4))
    program.fail(110, [line(2)])
    change = first(program)
    assert change.cause == "graphs kept" and change.num_served == 1
    assert "each of 6 steps left 40.00 MiB, 240.00 MiB in 24 blocks" in change.sentence
    assert "loss.item()" in change.words


@pytest.mark.parametrize(
    ("source", "cause", "other"),
    [("p = p - k @ k.t()", "graphs kept", "results kept"), ("ps.append(p - k @ k.t())", "results kept", "graphs kept")],
)
def test_a_variable_that_is_updated_from_itself_holds_one_value_without_a_graph(
    source: str, cause: str, other: str, tmp_path: Path
) -> None:
    """Where the graphs themselves were seen, they decide."""
    script = tmp_path / "train.py"
    script.write_text(f"for x in data:\n    train(x)\n    {source}\n")
    program = Recorded(capacity=300)
    made = []
    for _ in range(8):
        train(program)
        made.append(program.make(20, [line(3, "<module>", str(script))]))
    program.fail(150, [line(2)])
    assert first(program).cause == cause
    kept = [block.address for block in made] if other == "graphs kept" else []
    assert next(iter(program.changes(objects_of(in_graphs=frozenset(kept))))) == other


@pytest.mark.parametrize(
    ("before", "since", "frames", "is_growth"),
    [
        ([30], [30], [line(9)], True),
        ([], [30], [line(9)], False),
        ([30, 1, 1, 1], [30], [line(9)], False),  # an iteration makes other sizes than those before
    ],
)
def test_results_of_iterations_before_the_recording(
    before: list[int], since: list[int], frames: list[dict[str, Any]], is_growth: bool
) -> None:
    """Four of six passes were over before a second recording began; the stacks of their results are known."""
    program = Recorded(capacity=330)
    begins: list[int] = []
    for number in range(6):
        begins.append(len(program.allocator.history))
        passing = program.make(10, layer(7))
        for size in before if number < 4 else since:
            program.make(size, frames)
        program.free(passing, [line(2)])
    program.fail(180 if before else 300, [line(2)])
    found = changes_in(program.snapshot_since(begins[4]))
    assert any(change.sentence.startswith("Memory grows") for change in found.values()) is is_growth
    if is_growth:
        change = found["results kept"]
        assert (
            "each of 5 iterations left 30.00 MiB, 150.00 MiB in 5 blocks" in change.sentence
            and next(iter(found)) == change.cause
        )


FUNCTIONAL = frame("functional_call", f"{TORCH}/_functorch/functional_call.py", 9)


@pytest.mark.parametrize(
    ("learns", "objects", "words"),
    [
        ("sum(losses).backward()", None, "call backward() for each part of a batch"),
        ("print(losses)", None, "evaluate under `with torch.no_grad():`; in a training,"),
        ("print(losses)", objects_of(is_training=True), "keep loss.item() in place of the loss"),
        ("print(losses)", objects_of(is_evaluating=True), "evaluate under `with torch.no_grad():`, and keep"),
    ],
)
def test_graphs_that_one_backward_behind_the_loop_needs(
    learns: str, objects: ObjectsAtFailure | None, words: str, tmp_path: Path
) -> None:
    """Nothing learned so far: whether it is a training is in the source, or the program's objects tell."""
    script = tmp_path / "train.py"
    script.write_text(f"losses = []\nfor x in data:\n    losses.append(loss(model(x)))\n{learns}\n")
    program = Recorded(capacity=420)
    for _ in range(8):
        program.use(1, [line(2)])
        for number in range(4):
            program.make(10, [*layer(7 + number)[:2], FUNCTIONAL, line(3, "<module>", str(script))])
    program.fail(110, [line(2)])
    found = program.changes(objects)
    assert next(iter(found)) == ("gradients in evaluation" if objects and objects.is_evaluating else "graphs kept")
    assert found["graphs kept"].words.startswith(words)


@pytest.mark.parametrize(("keeps", "words"), [(True, "differentiate through fewer of these"), (False, "keep loss")])
def test_a_graph_of_each_gradient(keeps: bool, words: str, tmp_path: Path) -> None:
    """With `create_graph=True`; what the calls of the model made is kept, too, or is freed."""
    script = tmp_path / "train.py"
    script.write_text("for x in data:\n    value = loss(model(x))\n    fast = update(fast, value)\nvalue.backward()\n")
    program = Recorded(capacity=440)
    for _ in range(8):
        made = [program.make(10, [*layer(7)[:2], line(2, "<module>", str(script))]) for _ in range(2)]
        program.make(30, BACKWARD)
        for block in [] if keeps else made:
            program.free(block, [line(3)])
    program.fail(300, [line(2)])
    change = first(program)
    assert change.cause == "graphs kept"
    assert change.words.startswith(words)


@pytest.mark.parametrize(("batch", "cause"), [(30, "graphs kept"), (90, "results kept")])
def test_a_graph_outside_of_modules_beside_the_batch_that_it_holds(batch: int, cause: str) -> None:
    """Four blocks of 5 MiB that autograd lets go of: 20 of 50 MiB that a step leaves, or of 110."""
    program = Recorded(capacity=1000)
    kept = []
    for _ in range(8):
        train(program)
        program.make(batch, [line(9)])
        kept += [program.make(5, [line(8)]) for _ in range(4)]
    program.fail(650, [line(2)])
    for block in kept:
        program.free(block, RELEASE)
    assert first(program).cause == cause


def test_data_that_is_loaded_before_the_first_call_of_a_model_is_no_growth() -> None:
    program = Recorded(capacity=300)
    for _ in range(16):
        program.make(10, [line(1)])
    for _ in range(3):
        program.make(10, layer(7))
    program.fail(160, layer(7))
    assert not any(change.cause == "results kept" for change in program.changes().values())


def test_results_that_each_iteration_leaves() -> None:
    """Nothing is trained; what stays is one block of each pass, and not what forward makes on its way."""
    program = Recorded(capacity=300)
    for _ in range(10):
        batch = program.make(10, [line(2)])
        passing = [program.make(10, layer(7)) for _ in range(4)]
        program.make(20, layer(9))
        for block in [batch, *passing]:
            program.free(block, [line(2)])
    program.fail(120, [line(2)])
    change = first(program)
    assert change.cause == "results kept"
    assert ".cpu()" in change.words


@pytest.mark.parametrize(("caller", "cause"), [([line(9)], "results kept"), (layer(9), "cache grown by cat")])
def test_what_is_grown_by_cat(caller: list[dict[str, Any]], cause: str) -> None:
    """10, 20, ... 110 MiB, where the old one is freed once the new one is there."""
    program, old = Recorded(capacity=240), None
    for length in range(1, 12):
        program.use(1, [line(2)])
        new = program.make(10 * length, caller)
        if old is not None:
            program.free(old, caller)
        old = new
    program.fail(150, caller)
    found = program.changes()
    assert next(iter(found)) == cause
    assert "10.00 MiB at first" in found[cause].sentence


def test_a_few_even_cats_are_growth() -> None:
    """20, 30 and 40 MiB, and 50 that do not fit: each joins 10 MiB to what was there."""
    program, old = Recorded(capacity=85), None
    for length in range(2, 5):
        new = program.make(10 * length, [line(9)])
        if old is not None:
            program.free(old, [line(9)])
        old = new
    program.fail(50, [line(9)])
    assert first(program).cause == "results kept"


@pytest.mark.parametrize(("is_off", "cause"), [(True, "results kept"), (False, "graphs kept")])
def test_what_hooks_keep_where_gradients_are_off(is_off: bool, cause: str) -> None:
    """The first layer's result, which training keeps for backward, is freed at once, and two others are kept."""
    program = Recorded(capacity=420)
    for _ in range(3):
        kept = [program.make(10, layer(number)) for number in (7, 8, 9, 10, 7, 8, 9, 10)]
        gradient = program.make(10, BACKWARD)
        for block in [*kept, gradient]:
            program.free(block, BACKWARD)
        program.use(1, STEP)
    for _ in range(8):
        batch = program.make(1, [line(5)])
        layers = [program.make(10, layer(number, caller=4)) for number in (7, 8)]
        if is_off:
            program.free(layers[0], layer(8, caller=4))
        for number in (9, 10):
            program.make(10, layer(number, caller=4))
        program.free(batch, [line(5)])
    program.fail(190, [line(6)])
    assert first(program).cause == cause


def test_a_setting_is_not_first_where_memory_grows() -> None:
    """What each step keeps lies between what it frees: in one piece that would serve the request, for a while."""
    program = Recorded(capacity=260)
    for _ in range(12):
        passing = []
        for _ in range(2):
            passing.append(program.make(7, layer(7)))
            program.make(3, layer(8, caller=4))
            passing.append(program.make(5, layer(7)))
            program.make(1, layer(9, caller=4))
        for block in passing:
            program.free(block, BACKWARD)
        program.use(2, STEP)
    program.fail(118, [line(2)])
    found = program.changes()
    assert [*found] == ["graphs kept", "largest line", "fragmentation"]
    assert found["fragmentation"].num_served == 1
    assert found["fragmentation"].words.endswith("expandable_segments:True (memory grows: that is for a while)")


def test_two_optimizers_that_step_in_turn_make_one_iteration() -> None:
    """Each of 10 iterations keeps 2 x 10 MiB; 8 are over before the last whole one."""
    program = Recorded(capacity=400)
    critic = [frame("step", f"{TORCH}/optim/adam.py", 5), line(6)]
    for _ in range(10):
        for step, number in ((STEP, 7), (critic, 8)):
            passing = program.make(5, layer(number))
            program.make(10, layer(number + 10))
            program.free(passing, BACKWARD)
            program.use(1, step)
    program.fail(230, [line(2)])
    assert "each of 8 steps left 20.00 MiB, 160.00 MiB in 16 blocks" in first(program).sentence


def test_the_larger_growth_is_said_where_some_is_from_before_the_recording() -> None:
    """A loop leaves 1 MiB in each of 8 turns; passes of 30 MiB began before, as their stack says."""
    program = Recorded(capacity=330)
    begins: list[int] = []
    for _ in range(6):
        begins.append(len(program.allocator.history))
        passing = program.make(10, layer(7))
        program.make(30, [line(9)])
        program.free(passing, [line(2)])
    for _ in range(8):
        program.make(1, [line(12)])
    program.fail(180, [line(2)])
    change = next(iter(changes_in(program.snapshot_since(begins[4])).values()))
    assert "each of 5 iterations left 30.00 MiB" in change.sentence
