"""Growth, kept graphs and failed attempts: programs of a few blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.blocks.from_snapshot.recorded_program import (
    BACKWARD,
    MODULE_CALL,
    MOVING,
    RELEASE,
    STEP,
    TORCH,
    Recorded,
    changes_in,
    first,
    layer,
    line,
    linear,
    objects_of,
    train,
)
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.capture.objects.at_failure import SEVERAL, Holder, ObjectsAtFailure


# ---- Memory that grows from iteration to iteration: for each cause a program of a few blocks, and its sentence.
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
    assert ".item() of a loss" in change.words


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
        ("print(losses)", objects_of(is_training=True), "detach what is kept from one iteration to the next"),
        ("print(losses)", objects_of(is_evaluating=True), "evaluate under `with torch.no_grad():`, and detach"),
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


@pytest.mark.parametrize(
    ("keeps", "words"), [(True, "differentiate through fewer of these"), (False, "detach what is")]
)
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


@pytest.mark.parametrize("is_called", [True, False])
def test_caches_that_are_made_before_the_first_call_of_a_model_are_no_growth(is_called: bool) -> None:
    """A cache of 10 MiB for each of eight layers that were just made."""
    program = Recorded(capacity=100)
    weights = [program.make(1, MOVING) for _ in range(8)]
    if is_called:
        program.free(program.make(1, layer(2)), [line(2)])
    for _ in range(8):
        program.make(10, [line(5, "setup_caches")])
    program.fail(30, [line(6)])
    objects = replace(objects_of(), parameters=frozenset(weight.address for weight in weights))
    assert ("results kept" in program.changes(objects)) is is_called


def test_results_that_several_hold_are_told_with_one_of_these() -> None:
    program, kept = Recorded(capacity=300), list[int]()
    for _ in range(10):
        program.free(program.make(10, layer(7)), [line(2)])
        kept.append(program.make(20, [line(9)]).address)
        program.free(program.make(10, [line(2)]), [line(2)])
    program.fail(120, [line(2)])
    several = Holder(SEVERAL, "", tuple(kept), also=("layers[...].hooks[1].mask",))
    told = program.changes(replace(objects_of(), holders=(several,)))["results kept"]
    assert "results kept on the device by more than one holder (layers[...].hooks[1].mask is one)" in told.sentence
    assert told.words.startswith("let go of what is done in each of these")


def test_blocks_of_one_operator_are_no_iterations() -> None:
    """As an inverse makes: two matrices, and numbers for each row, by one line."""
    program = Recorded(capacity=300)
    program.free(program.make(10, layer(7)), [line(2)])
    for size in (90, 90, 1, 1, 1, 1, 1, 1):
        program.make(size, [line(9)])
    program.fail(120, [line(9)])
    assert "results kept" not in program.changes()


@pytest.mark.parametrize("number", [8, 2])
def test_parameters_that_each_iteration_adds(number: int) -> None:
    """Of adapters of 20 MiB, each used in one call; those of the last two iterations may be in use."""
    program = Recorded(capacity=20 * number + 150)
    program.make(100, MOVING)
    for _ in range(number):
        program.free(program.make(10, layer(7)), [line(2)])
        program.make(20, [*MOVING[:-1], line(5)])
        program.free(program.make(10, [line(2)]), [line(2)])
    program.fail(60, [line(2)])
    told = program.changes()
    assert ("parameters added" in told) == (number == 8)
    if number == 8:
        assert "each of 6 iterations left 20.00 MiB of parameters (or buffers), 120.00 MiB in 6 blocks by now" in (
            told["parameters added"].sentence
        )


def test_results_that_each_iteration_leaves() -> None:
    """Nothing is trained; what stays is one block of each pass, and not what forward makes on its way."""
    program, kept = Recorded(capacity=300), set[int]()
    for _ in range(10):
        batch = program.make(10, [line(2)])
        passing = [program.make(10, layer(7)) for _ in range(4)]
        kept.add(program.make(20, layer(9)).address)
        for block in [batch, *passing]:
            program.free(block, [line(2)])
    program.fail(120, [line(2)])
    change = first(program)
    assert change.cause == "results kept"
    assert ".cpu()" in change.words
    # A look at the objects, as the error passed, found them, or nothing but a batch: the failed call had held them.
    assert "results kept" in program.changes(replace(objects_of(), seen=frozenset(kept)))
    assert "results kept" not in program.changes(replace(objects_of(), seen=frozenset({1})))


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


@pytest.mark.parametrize("is_parameter", [False, True])
def test_parameters_that_grow_are_told_as_such(is_parameter: bool) -> None:
    """10, 20, ... 110 MiB, where the old one is freed once the new one is there."""
    program, old = Recorded(capacity=240), None
    for length in range(1, 12):
        program.use(1, [line(2)])
        new = program.make(10 * length, [line(9)])
        if old is not None:
            program.free(old, [line(9)])
        old = new
    program.fail(150, [line(9)])
    assert old is not None
    found = program.changes(replace(objects_of(), parameters=frozenset({old.address} if is_parameter else ())))
    assert ("parameters that grow" in found) == is_parameter
    if is_parameter:
        assert found["parameters that grow"].sentence == (
            "The model grows: 110.00 MiB in 1 block (/home/me/train.py:9), parameter, are made anew, larger each time "
            "(10.00 MiB at first, 150.00 MiB by now)."
        )


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


def test_a_setting_is_not_said_where_memory_grows() -> None:
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
    assert [*found] == ["graphs kept", "largest line"]


def test_parameters_that_a_line_makes_larger_together() -> None:
    program = Recorded(capacity=330)
    state: list[Block] = []
    for size in (4, 6, 9, 13, 19, 28, 41):
        old, state = state, [program.make(each, [line(7, "grow")]) for each in (size, 3 * size)]
        for block in old:
            program.free(block, [line(7, "grow")])
    program.fail(200, [line(8)])
    objects = replace(objects_of(), parameters=frozenset(block.address for block in state))
    sentence = program.changes(objects)["parameters that grow"].sentence
    assert "(16.00 MiB at first, 164.00 MiB by now)" in sentence


@pytest.mark.parametrize(("longest", "is_growth"), [(8, False), (100, True)])
def test_a_queue_that_lets_go_of_its_oldest_is_no_growth(longest: int, is_growth: bool) -> None:
    program = Recorded(capacity=220)
    queue: list[Block] = []
    for _ in range(12):
        train(program)
        queue.append(program.make(10, [line(3)]))
        if len(queue) > longest:
            program.free(queue.pop(0), [line(3)])
    program.fail(160, [line(8)])
    assert ("results kept" in program.changes()) == is_growth


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


# ---- Graphs that no backward needs, and failed attempts: for each cause a program of a few blocks, and its sentence.
@pytest.mark.parametrize("scratch", [0, 30], ids=["", "scratch memory of each kernel"])
def test_a_validation_with_gradients(scratch: int) -> None:
    """Two calls of another line than the training's, each with 10 blocks kept and no backward."""
    program = Recorded(capacity=320 + 2 * scratch)
    train(program, forward=9)
    last: list[Block] = []
    for _ in range(2):
        batch = program.make(10, [line(12)])
        kept = list[Block]()
        for _ in range(10):
            if scratch:
                program.use(scratch, layer(7, caller=13))
            kept.append(program.make(12, layer(7, caller=13)))
        for block in last:
            program.free(block, [line(13)])
        last = [batch, *kept]
    program.fail(200 + 2 * scratch, [line(14)])
    change = first(program)
    assert change.cause == "gradients in evaluation"
    assert "/home/me/train.py:13 without a backward behind it" in change.sentence
    assert "torch.no_grad()" in change.words
    assert "gradients in evaluation" not in program.changes(objects_of(in_graphs=frozenset()))


@pytest.mark.parametrize(
    ("behind", "is_evaluating", "is_found"),
    [
        ("print(losses)", False, True),
        ("sum(losses).backward()", False, False),
        ("sum(losses).backward()", True, True),
    ],
)
def test_calls_whose_backward_comes_behind_their_loop_are_no_evaluation(
    behind: str, is_evaluating: bool, is_found: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"for x in data:\n    losses.append(loss(model(x)))\n{behind}\n")
    program = Recorded(capacity=320)
    train(program, forward=9)
    for _ in range(2):
        for _ in range(10):
            program.make(12, [*layer(7)[:2], line(2, "<module>", str(script))])
    program.fail(200, [line(14)])
    found = program.changes(objects_of(is_evaluating=is_evaluating))
    assert ("gradients in evaluation" in found) is is_found


def test_the_first_forward_of_a_training_is_no_evaluation() -> None:
    program = Recorded(capacity=220)
    program.make(10, [line(2)])
    for _ in range(20):
        program.make(10, layer(7))
    program.fail(20, layer(7))
    assert "gradients in evaluation" not in program.changes()


DECODE = line(206, "_decode", "/x/site-packages/diffusers/models/autoencoders/autoencoder_kl.py")


@pytest.mark.parametrize(
    ("callers", "is_training", "is_inference"),
    [
        ([DECODE, line(3)], False, True),
        ([DECODE, line(3)], True, False),
        ([line(3)], False, False),  # the program calls the whole, as a training does
    ],
)
def test_a_first_call_of_a_decoder_by_its_library_is_an_inference(
    callers: list[dict[str, Any]], is_training: bool, is_inference: bool
) -> None:
    program = Recorded(capacity=220)
    decoding = [line(7, "forward", "/x/site-packages/diffusers/models/autoencoders/vae.py"), MODULE_CALL, *callers]
    program.make(10, [line(2)])
    for _ in range(20):
        program.make(10, decoding)
    program.fail(20, decoding)
    changes = program.changes(objects_of(is_training=is_training))
    assert "decoding at full size" in changes
    assert next(iter(changes)) == ("gradients in evaluation" if is_inference else "decoding at full size")


def test_a_first_forward_that_frees_most_of_its_blocks_keeps_the_large_ones_for_its_backward() -> None:
    """Of two blocks' tensors half are freed on the way, and a workspace is: three of eight are left, 64 % of bytes."""
    program = Recorded(capacity=200)
    program.make(10, [line(2)])
    program.use(1, layer(6))
    hidden = program.make(32, layer(7))
    program.make(32, layer(8))
    program.free(hidden, layer(8))
    result = program.make(8, layer(9))
    program.make(8, layer(10))
    program.free(result, layer(10))
    program.make(32, layer(7))
    for size in (1, 1):
        workspace = program.make(size, layer(8))
        program.free(workspace, layer(8))
    program.fail(150, layer(8))
    assert "gradients in evaluation" not in program.changes()


def test_what_a_traceback_holds(tmp_path: Path) -> None:
    """The second attempt is called from the `except` of the first one's `try`."""
    script = tmp_path / "train.py"
    script.write_text("def main():\n    try:\n        step(8)\n    except MemoryError:\n        step(4)\n")
    program = Recorded(capacity=210)

    def attempt(call: int) -> list[dict[str, Any]]:
        return [*layer(7)[:2], line(9, "step", str(script)), line(call, "main", str(script))]

    for _ in range(5):
        program.make(40, attempt(3))
    program.fail(40, attempt(3))
    program.fail(20, attempt(5))
    change = first(program)
    assert change.cause == "held by a traceback"
    assert "200.00 MiB in 5 blocks" in change.sentence
    # What a library has caught, such as a workspace of cuDNN's, leaves no traceback to the program.
    for num_raised, is_told in ((1, False), (2, True)):
        told = program.changes(replace(objects_of(), num_raised=num_raised))
        assert ("held by a traceback" in told) == is_told


@pytest.mark.parametrize(
    ("failed_at", "num_kept", "then", "again", "is_held"),
    [
        (layer(7), 5, None, MOVING, True),
        (layer(7), 2, None, MOVING, False),  # the exception is gone, and something else keeps a part
        ([line(4)], 5, None, MOVING, False),  # no call of the model ended
        (layer(7), 5, layer(8), STEP, False),  # a layer caught it and takes another way
        (layer(7), 5, None, layer(7), False),  # a library asks again for less
    ],
)
def test_what_a_kept_exception_holds(
    failed_at: list[dict[str, Any]],
    num_kept: int,
    then: list[dict[str, Any]] | None,
    again: list[dict[str, Any]],
    is_held: bool,
) -> None:
    """An attempt of five blocks fails in its forward, and the next one fails as it makes its model."""
    program = Recorded(capacity=225)
    blocks = [program.make(40, layer(7)) for _ in range(5)]
    program.fail(40, failed_at)
    for block in blocks[num_kept:]:
        program.free(block, [line(4)])
    if then is not None:
        program.make(20, then)
    program.fail(40 if num_kept == 5 else 200, again)
    found = program.changes()
    assert ("held by a traceback" in found) is is_held
    assert not is_held or "str(error)" in first(program).words


RELEASED = frame("torch::autograd::SavedVariable::reset_data()", "??", 0)


@pytest.mark.parametrize(("is_dropped", "fails"), [(True, False), (False, False), (True, True)])
def test_a_graph_that_is_dropped_before_each_backward(is_dropped: bool, fails: bool) -> None:
    """A teacher's, called at line 11: its blocks are freed as variables end, in backward, or as an exception passes."""
    program = Recorded(capacity=230)
    teacher = [line(20, "forward", "/home/me/model.py"), MODULE_CALL, line(11, "forward"), MODULE_CALL, line(3)]
    student = [line(20, "forward", "/home/me/model.py"), MODULE_CALL, line(12, "forward"), MODULE_CALL, line(3)]
    for _ in range(3):
        of_teacher, of_student = ([program.make(10, frames) for _ in range(9)] for frames in (teacher, student))
        if fails:
            program.fail(60, student)
        for block in of_teacher:
            program.free(block, [RELEASED, line(3)] if is_dropped else BACKWARD)
        gradient = program.make(10, BACKWARD)
        for block in [*of_student, gradient]:
            program.free(block, [RELEASED, *BACKWARD])
        program.use(1, STEP)
    for frames in (teacher, student):
        for _ in range(9):
            program.make(10, frames)
    program.fail(60, student)
    found = program.changes()
    assert ("graph of an untrained model" in found) is (is_dropped and not fails)
    if is_dropped and not fails:
        change = found["graph of an untrained model"]
        assert change.sentence.startswith("The call at /home/me/train.py:11 keeps 90.00 MiB in 9 blocks")


@pytest.mark.parametrize(("is_used", "is_retained"), [(True, True), (True, False), (False, True)])
def test_a_graph_that_backward_retains(is_used: bool, is_retained: bool) -> None:
    """It is there as the next iteration's forward runs, which has its own; of one not used it is not known."""
    program = Recorded(capacity=260)
    kept = [program.make(10, layer(7)) for _ in range(9)]
    if is_used:
        program.use(10, BACKWARD, freed=STEP)
        program.use(1, STEP)
    for block in kept[is_retained * 9 :]:
        program.free(block, BACKWARD)
    program.make(10, [line(2)])
    for _ in range(9):
        program.make(10, layer(7))
    program.fail(100 if is_retained else 200, layer(7))
    found = program.changes()
    assert ("graph retained" in found) is (is_used and is_retained)
    if is_used and is_retained:
        assert "90.00 MiB in 9 blocks" in found["graph retained"].sentence
        assert "or results that the program keeps" in found["graph retained"].sentence
        known = program.changes(objects_of(in_graphs=frozenset(block.address for block in kept)))["graph retained"]
        assert known.sentence.startswith("The graph in an iteration before") and "results" not in known.sentence
        assert "graph retained" not in program.changes(objects_of(in_graphs=frozenset()))  # a list holds results


def test_a_graph_of_this_iteration_is_not_one_of_an_iteration_before() -> None:
    """As of a penalty on gradients: a model is called three times for one step, and once differentiated between."""
    program = Recorded(capacity=260)
    program.use(1, STEP)
    for _ in range(9):
        program.make(10, layer(7))
    program.use(10, BACKWARD)
    for _ in range(9):
        program.make(10, layer(7))
    program.fail(100, layer(7))
    assert "graph retained" not in program.changes()


@pytest.mark.parametrize("is_even", [True, False])
def test_a_comprehension_makes_several_in_one_iteration(is_even: bool) -> None:
    """A prediction moves two inputs of each batch by one line, calls the model on another line, and keeps them."""
    program = Recorded(capacity=220)
    for batch in range(8):
        for _ in range(2 + (not is_even and batch == 3)):
            program.make(10, [line(4, "<dictcomp>"), line(4, "predict")])
        program.use(10, [line(7, "forward", "/home/me/model.py"), MODULE_CALL, line(5, "predict")])
    program.fail(100, [line(7, "forward", "/home/me/model.py"), MODULE_CALL, line(5, "predict")])
    told = program.changes()["results kept"].sentence
    assert ("each of 5 iterations left 20.00 MiB, 100.00 MiB in 10 blocks" in told) == is_even


def test_blocks_of_autograds_threads_grow_by_their_size() -> None:
    """Gradients of inputs, which a thread without a stack makes and nothing frees."""
    program = Recorded(capacity=220)
    for _ in range(8):
        train(program)
        program.make(10, [line(3)])
        program.make(11, [])
    program.fail(100, [line(2)])
    assert "left 21.00 MiB" in program.changes()["results kept"].sentence


CAST = frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)", "??", 0)


@pytest.mark.parametrize("has_graph", [False, True])
@pytest.mark.parametrize("has_cpp", [False, True])
def test_what_autocast_keeps_of_the_weights(has_graph: bool, has_cpp: bool) -> None:
    """Half of 20 MiB for each of 4; where the results stay too, a graph needs both."""
    program = Recorded(capacity=180)
    for _ in range(4):
        program.make(20, MOVING)
    for number in range(4):
        program.make(10, [*[CAST] * has_cpp, *linear(7 + number)])
        result = program.make(8, linear(7 + number))
        if not has_graph:
            program.free(result, linear(8 + number))
    program.fail(100, linear(12))
    objects = None if has_cpp else objects_of(in_graphs=frozenset({1} if has_graph else ()))
    found = program.changes(objects)
    assert ("copies of autocast" in found) is not has_graph
