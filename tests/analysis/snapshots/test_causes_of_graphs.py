"""Graphs that no backward needs, and failed attempts: for each cause a program of a few blocks, and its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.snapshots.recorded_program import (
    BACKWARD,
    MODULE_CALL,
    MOVING,
    STEP,
    Recorded,
    first,
    layer,
    line,
    linear,
    objects_of,
    train,
)
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block


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
