"""What a program does not read again: blocks of a failure with their uses in a second run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.blocks.from_snapshot.recorded_program import (
    ACCUMULATE,
    BACKWARD,
    MOVING,
    Recorded,
    layer,
    line,
    objects_of,
)
from tracer.answers.failed_allocation import explain_failure
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.why.case import Case
from tracer.capture.objects.at_failure import FUNCTOOLS, Holder, ObjectsAtFailure, Operand
from tracer.capture.objects.later_uses import LargeBlocks, LaterUses, Making, NextUse, SecondRun, Sized
from tracer.errors import SnapshotError
from tracer.exporters.document import Document, Source, plain_values
from tracer.snapshot.load import snapshot_in_memory

_MIB = 1 << 20
NEVER = 2
"""Behind the rows of the two uses."""
READ = NextUse(
    "train.py", 5, "aten::mm", in_backward=False, overwrites=False, fails=False, can_be_in_place=False, step=0
)
ZEROED = replace(READ, operator="aten::zero_", overwrites=True)
DIVIDED = replace(READ, operator="aten::div", fails=True, can_be_in_place=True)


def second_run(
    *blocks: tuple[int, int], num_steps: int = 2, used: NextUse = READ, is_freed: bool = False, **known: Any
) -> ObjectsAtFailure:
    """Size in MiB and next use of each block in use, in the order in which they were allocated."""
    uses = LaterUses(
        distance=tuple(range(len(blocks), 0, -1)),
        size_bytes=tuple(size * _MIB for size, _ in blocks),
        use=tuple(use for _, use in blocks),
        is_last=(used.fails,) * len(blocks),
        freed=(int(is_freed),) * len(blocks),
        read_bytes=tuple(size * _MIB for size, _ in blocks),
        making=(0,) * len(blocks),
        uses=(used, ZEROED),
        makings=(),
        num_steps=num_steps,
        is_to_the_end=False,
    )
    return replace(objects_of(), second_run=SecondRun((), 0, uses), **known)


def test_what_nothing_reads_again_is_told_with_its_holder() -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    held = program.make(50, [line(3)])
    program.fail(30, [line(4)])
    holder = Holder("history[...]", "local variable of main(), train.py:1", (held.address,))
    found = program.changes(second_run((40, 0), (50, NEVER), holders=(holder,)))["not read again"]
    assert found.sentence == (
        "Nothing reads 50.00 MiB in 1 block (/home/me/train.py:3) in the rest of this step and the next one; held by "
        "history[...] (local variable of main(), train.py:1)."
    )
    assert found.num_served == 1 and found.removed_bytes == 50 * _MIB


@pytest.mark.parametrize(("path", "words"), [("cache[...]", "do not keep them in cache[...]"), ("cache", "let go of")])
def test_what_a_list_keeps_is_told_to_stay_out_of_it(path: str, words: str) -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    held = program.make(50, [line(3)])
    program.fail(30, [line(4)])
    holder = Holder(path, "local variable of main(), train.py:1", (held.address,))
    told = program.changes(second_run((40, 0), (50, NEVER), holders=(holder,)))["not read again"]
    assert told.words.startswith(words)


def test_each_group_has_its_own_change() -> None:
    program = Recorded(capacity=100)
    program.make(20, MOVING)
    program.make(20, layer(7))
    program.make(30, ACCUMULATE)
    program.make(20, layer(8))
    program.fail(30, [line(4)])
    words = program.changes(second_run((20, 0), (20, 0), (30, NEVER), (20, 0)))["not read again"].words
    assert words == "call optimizer.zero_grad(set_to_none=True) right after optimizer.step()"


def test_what_is_overwritten_is_not_needed_only_where_it_is_a_gradient() -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(3)])
    program.make(20, layer(7))
    program.make(30, ACCUMULATE)
    program.fail(30, [line(4)])
    found = program.changes(second_run((40, 1), (20, 0), (30, 1)))["not read again"]
    assert found.sentence.startswith("Nothing reads 30.00 MiB in 1 block of gradients")


@pytest.mark.parametrize("goes_back", [False, True])
def test_a_graph_that_a_backward_has_run_through_is_no_evaluation(goes_back: bool) -> None:
    program = Recorded(capacity=100)
    kept = program.make(60, layer(7))
    if goes_back:
        program.free(program.make(1, BACKWARD), BACKWARD)
    program.make(30, [line(3)])
    program.fail(30, [line(4)])
    objects = second_run((60, NEVER), (30, 0), in_graphs=frozenset({kept.address}))
    if goes_back:  # one allocation more lies between
        assert objects.second_run is not None and objects.second_run.uses is not None
        uses = replace(objects.second_run.uses, distance=(3, 1))
        objects = replace(objects, second_run=replace(objects.second_run, uses=uses))
    told = program.changes(objects)
    assert ("not read again" in told) == (not goes_back)


@pytest.mark.parametrize(("read_mib", "is_told"), [(10, True), (20, False)])
def test_a_block_of_which_a_small_part_is_read_is_told_with_that_part(read_mib: int, is_told: bool) -> None:
    program = Recorded(capacity=100)
    program.make(30, [line(2)])
    program.make(60, [line(3)])
    program.fail(30, [line(4)])
    objects = second_run((30, 0), (60, 0))
    assert objects.second_run is not None and objects.second_run.uses is not None
    uses = replace(objects.second_run.uses, read_bytes=(30 * _MIB, read_mib * _MIB))
    told = program.changes(replace(objects, second_run=replace(objects.second_run, uses=uses)))
    assert ("read in part" in told) == is_told
    if is_told:
        assert told["read in part"].sentence == (
            "Of 60.00 MiB in 1 block (/home/me/train.py:3) no more than 10.00 MiB are read, or used for what is read, "
            "before the failure and in the rest of this step and the next one."
        )


@pytest.mark.parametrize(("ahead_mib", "is_told"), [(10, True), (20, False), (0, False)])
def test_a_block_that_was_read_in_whole_and_is_kept_for_a_part(ahead_mib: int, is_told: bool) -> None:
    program = Recorded(capacity=100)
    program.make(30, [line(2)])
    program.make(60, [line(3)])
    program.fail(30, [line(4)])
    told = program.changes(following(second_run((30, 0), (60, 0)), ahead_bytes=(30 * _MIB, ahead_mib * _MIB)))
    assert ("kept for a part" in told) == is_told
    if is_told:
        assert told["kept for a part"].sentence == (
            "Of 60.00 MiB in 1 block (/home/me/train.py:3) no more than 10.00 MiB are read in the rest of this step "
            "and the next one."
        )


def test_a_functools_cache_is_told_with_its_function() -> None:
    program = Recorded(capacity=100)
    kept = program.make(60, [line(3)])
    program.make(30, [line(2)])
    program.fail(30, [line(4)])
    path = f"Detector.anchors{FUNCTOOLS}[...]"
    holders = (Holder(path, "", (kept.address,)),)
    found = program.changes(replace(objects_of(), holders=holders))["held by a cache"]
    assert found.sentence.startswith("The functools cache of Detector.anchors keeps 60.00 MiB in 1 block")
    assert found.words.startswith("call Detector.anchors.cache_clear()")
    assert "held by a cache" not in program.changes(
        replace(objects_of(), holders=(Holder("anchors[...]", "", (kept.address,)),))
    )


def test_what_is_made_anew_and_larger_is_not_told_of_the_time_before() -> None:
    program = Recorded(capacity=290)
    old = program.make(60, layer(7))
    for size in range(64, 100, 4):
        new = program.make(size, layer(7))
        program.free(old, layer(7))
        old = new
    program.make(100, [line(2)])
    program.fail(100, layer(7))
    told = program.changes(second_run((96, NEVER), (100, 0)))
    assert "cache grown by cat" in told and "not read again" not in told


def test_parameters_are_told_only_of_a_whole_step() -> None:
    program = Recorded(capacity=100)
    program.make(60, MOVING)
    program.make(30, [line(3)])
    program.fail(30, [line(4)])
    assert "not read again" in program.changes(second_run((60, NEVER), (30, 0)))
    assert "not read again" not in program.changes(second_run((60, NEVER), (30, 0), num_steps=1))


def test_a_run_that_asked_for_other_blocks_tells_nothing() -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.make(50, [line(3)])
    program.fail(30, [line(4)])
    assert "not read again" in program.changes(second_run((40, 0), (50, NEVER)))
    assert "not read again" not in program.changes(second_run((41, 0), (50, NEVER)))


def test_blocks_of_other_lengths_are_the_same_where_their_lines_are() -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.make(50, [line(3)])
    program.fail(30, [line(4)])
    known = tuple(Making("aten::mm", (), Sized((), "float32", 0), "train.py", number) for number in (2, 3))
    for size, makings, is_told in ((41, known, True), (41, known[::-1], False), (400, known, False)):
        objects = following(second_run((size, 0), (51, NEVER)), makings=makings, making=(0, 1))
        assert ("not read again" in program.changes(objects)) == is_told


def test_blocks_of_a_line_are_the_same_though_a_thread_has_allocated_in_between() -> None:
    program = Recorded(capacity=100)
    program.make(50, [line(3)])
    program.use(1, [line(9)])
    program.make(40, [line(2)])
    program.fail(40, [line(2)])
    known = tuple(Making("aten::mm", (), Sized((), "float32", 0), "train.py", number) for number in (3, 2))
    objects = following(second_run((50, NEVER), (40, 0), (40, 0)), distance=(2, 1, 0), makings=known, making=(0, 1, 1))
    assert "not read again" in program.changes(objects)


def test_two_changes_that_are_too_little_alone_are_named_together() -> None:
    """80 MiB that nothing reads, half of it gradients, and a request of 30: each change alone leaves 70."""
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.make(40, ACCUMULATE)
    program.fail(30, [line(4)])
    known = (made(1, 1, line=2), replace(made(1, 1, line=0), file=""), made(1, 1, line=4))
    objects = following(
        second_run((40, NEVER), (40, NEVER), (30, 0)),
        distance=(2, 1, 0),
        making=(0, 1, 2),
        makings=tuple(replace(each, file=each.file and "train.py") for each in known),
        request=12,
        large=LargeBlocks(
            (10, 11, 12), (13, 13, 13), (40 * _MIB, 40 * _MIB, 30 * _MIB), making=(0, 1, 2), read_bytes=(0, 0, 0)
        ),
    )
    assert objects.second_run is not None
    for missing, is_told in ((20, False), (60, True)):
        run = replace(objects.second_run, peak_bytes=110 * _MIB, missing_bytes=missing * _MIB)
        (device,) = replay_snapshot(snapshot_in_memory(program.snapshot())).devices
        event, _, _ = explain_failure(device, replace(objects, second_run=run), device_bytes=None)
        told = "It fits with a second change, about 30.00 MiB in all. Nothing reads 40.00 MiB in 1 block"
        assert (told in event.change) == is_told


def made(*shape: int, line: int) -> Making:
    return Making("aten::mm", (), Sized(shape, "float32", 4 * shape[0] * shape[1]), "model.py", line)


def test_a_call_without_a_graph_is_told_by_its_rows_and_what_the_whole_program_needs() -> None:
    """A call with 192 rows: 60 and 30 MiB of it, a request of 30, and 60 MiB that are made behind that."""
    program = Recorded(capacity=100)
    kept = program.make(60, layer(7))
    program.make(30, layer(8))
    program.fail(30, layer(9))
    rows = following(
        second_run((60, 0), (30, 0), (30, 0), in_graphs=frozenset()),
        distance=(2, 1, 0),
        making=(0, 1, 0),
        makings=(made(192, 64, line=7), made(384, 64, line=8)),
        request=12,
        large=LargeBlocks(
            made=(10, 11, 12, 13),
            freed=(13, 13, 13, 13),
            size_bytes=tuple(size * _MIB for size in (60, 30, 30, 60)),
            making=(0, 1, 1, 0),
            read_bytes=(0, 0, 0, 0),
        ),
    )
    assert rows.second_run is not None
    rows = replace(rows, second_run=replace(rows.second_run, peak_bytes=180 * _MIB, missing_bytes=80 * _MIB))
    document = Document(plain_values(rows), Source("facts", SnapshotError, hint=""))
    assert document.record(ObjectsAtFailure) == rows  # a kept recording has it, too
    found = program.changes(rows)["rows at once"]
    assert "have 192 rows each, or a multiple of that: 90.00 MiB in 2 blocks" in found.sentence
    assert "followed in the rest of this step and the next one, the program then needs about 45.00 MiB" in found.effect
    assert "or less in place of 180.00 MiB, no more than there is" in found.effect
    assert rows.second_run is not None
    later = replace(rows, second_run=replace(rows.second_run, peak_bytes=400 * _MIB, missing_bytes=300 * _MIB))
    effect = program.changes(later)["rows at once"].effect  # the peak lies behind what was followed
    assert "then needs" not in effect and "as it is, the program needs 300.00 MiB more than there is" in effect
    mixed = Making("aten::_scaled_dot_product_attention", (), Sized((12, 192, 64), "float32", 1 << 20))
    attends = following(rows, makings=(made(192, 64, line=7), made(384, 64, line=8), mixed))
    assert "rows at once" not in program.changes(attends)  # the rows are words of one text
    graph = replace(rows, in_graphs=frozenset({kept.address}))
    assert "rows at once" not in program.changes(graph)


def test_a_call_of_one_sample_is_told_to_take_it_in_pieces() -> None:
    program = Recorded(capacity=100)
    program.make(60, layer(7))
    program.make(20, layer(8))
    program.fail(30, layer(9))
    objects = following(
        second_run((60, 0), (20, 0), (30, 0), in_graphs=frozenset()),
        distance=(2, 1, 0),
        making=(0, 1, 0),
        makings=(made(1, 6400, line=7), made(100, 64, line=8)),  # windows of it
    )
    found = program.changes(objects)["sample at once"]
    assert "are of one sample, and of no graph: 80.00 MiB in 2 blocks" in found.sentence
    assert "give it a part of the sample at a time" in found.words and found.removed_bytes > 60 * _MIB


def test_rows_of_a_table_are_told_though_a_product_of_the_same_line_and_shape_is_what_is_there() -> None:
    """As of messages along edges, `weight[:, None] * x[source]`."""
    program = Recorded(capacity=100)
    program.make(60, layer(7))
    program.fail(60, layer(9))
    rows = Sized((9000, 200), "float32", 7_200_000)
    objects = following(
        second_run((60, 0), (60, 0)),
        distance=(1, 0),
        making=(0, 0),
        makings=(
            Making("aten::mul", (Sized((9000, 1), "float32", 36_000), rows), rows, "model.py", 7),
            Making("aten::index", (Sized((60, 200), "float32", 48_000),), rows, "model.py", 7),
        ),
    )
    told = program.changes(objects)["row for each index"].sentence
    assert "makes rows of a table that has 60, each 150 times on average" in told


@pytest.mark.parametrize(("rows", "cause"), [(128, "rows at once"), (1, "sample at once"), (77, "")])
def test_rows_of_a_call_are_those_of_its_input_where_no_second_run_tells(rows: int, cause: str) -> None:
    """The model is called at line 3 of train.py; 77 rows are not what its results have."""
    program = Recorded(capacity=100)
    program.make(60, layer(7))
    program.make(20, layer(8))
    program.fail(30, layer(9))
    given = Operand("pictures", "/home/me/train.py", 3, 9 << 20, (rows, 3, 64, 64), "float32")
    found = program.changes(replace(objects_of(in_graphs=frozenset()), operands=(given,)))
    assert {*found} & {"rows at once", "sample at once"} == ({cause} if cause else set())


@pytest.mark.parametrize(("operator", "width", "is_told"), [("bmm", 8, True), ("bmm", 96, False), ("mm", 8, False)])
def test_scores_of_attention_are_told_by_what_a_product_and_a_softmax_make(
    operator: str, width: int, is_told: bool
) -> None:
    """128 rows with 128, of 8 numbers each; rows of 96 numbers are no smaller than the product; mm may be a layer's."""
    program = Recorded(capacity=100)
    program.make(40, layer(7))
    program.make(40, layer(8))
    program.fail(40, layer(9))
    of_rows, scores = (Sized(shape, "float32", 4 * 128 * shape[-1]) for shape in ((2, 128, width), (2, 128, 128)))
    objects = following(
        second_run((40, 0), (40, 0), (40, 0)),
        distance=(2, 1, 0),
        making=(0, 1, 1),
        makings=(
            Making(f"aten::{operator}", (of_rows, of_rows), scores, "model.py", 7),
            Making("aten::_softmax", (scores,), scores, "model.py", 8),
        ),
    )
    found = program.changes(objects)
    assert ("attention matrix" in found) == is_told
    if is_told:
        assert found["attention matrix"].sentence.startswith(
            "Attention makes its scores as whole matrices: 80.00 MiB in 2 blocks"
        )


def test_what_is_made_before_the_first_is_read_is_told_with_its_reader() -> None:
    program = Recorded(capacity=100)
    for _ in range(5):
        program.make(15, [line(3)])
    program.fail(30, [line(4)])
    for left, is_told in ((4, True), (15 * _MIB, False)):
        used = replace(READ, operator="aten::linalg_vector_norm", leaves_bytes=left)
        objects = following(second_run(*[(15, 0)] * 5, used=used), is_last=(True,) * 5)
        assert ("made before read" in program.changes(objects)) == is_told
    assert "are each read once more, by linalg_vector_norm (train.py:5)" in told_first(program, used, left=4)


def told_first(program: Recorded, used: NextUse, *, left: int) -> str:
    objects = following(second_run(*[(15, 0)] * 5, used=replace(used, leaves_bytes=left)), is_last=(True,) * 5)
    return program.changes(objects)["made before read"].sentence


def test_an_evaluating_model_with_a_backward_behind_it_is_not_told_to_evaluate() -> None:
    """A picture that is changed by its gradient, through a network in evaluation mode."""
    program = Recorded(capacity=100)
    kept = [program.make(15, layer(7)) for _ in range(6)]
    program.fail(30, layer(8))
    graphs = frozenset(block.address for block in kept)
    for in_backward in (False, True):
        objects = second_run(*[(15, 0)] * 6, used=replace(READ, in_backward=in_backward), in_graphs=graphs)
        (device,) = replay_snapshot(snapshot_in_memory(program.snapshot())).devices
        event, _, _ = explain_failure(device, replace(objects, is_evaluating=True), device_bytes=None)
        assert ("no_grad" in event.advice) == (not in_backward)


def following(objects: ObjectsAtFailure, **columns: Any) -> ObjectsAtFailure:
    assert objects.second_run is not None and objects.second_run.uses is not None
    uses = replace(objects.second_run.uses, **columns)
    return replace(objects, second_run=replace(objects.second_run, uses=uses))


@pytest.mark.parametrize(("reserved_mib", "missing_mib", "is_so"), [(250, 0, True), (150, 0, False), (250, 1, False)])
def test_memory_is_in_pieces_where_all_fits_and_far_more_is_reserved(
    reserved_mib: int, missing_mib: int, is_so: bool
) -> None:
    program = Recorded(capacity=100)
    program.make(60, [line(3)])
    program.fail(60, [line(4)])
    (device,) = replay_snapshot(snapshot_in_memory(program.snapshot())).devices
    run = SecondRun((), missing_mib * _MIB, peak_bytes=120 * _MIB, reserved_bytes=reserved_mib * _MIB)
    assert Case(device, replace(objects_of(), second_run=run)).is_in_pieces == is_so


def test_no_setting_is_named_where_the_program_needs_more_than_there_is() -> None:
    program = Recorded(capacity=100)
    for piece in [program.make(30, [line(2)]) for _ in range(3)]:
        program.free(piece, [line(9)])
    for _ in range(3):
        program.make(18, [line(3)])
    program.fail(40, [line(4)])
    (device,) = replay_snapshot(snapshot_in_memory(program.snapshot())).devices
    whole, _, _ = explain_failure(device, objects_of(), device_bytes=None)
    needs_more = replace(objects_of(), second_run=SecondRun((), 30 * _MIB))
    more, first, _ = explain_failure(device, needs_more, device_bytes=None)
    assert whole.cause == more.cause == "fragmentation"
    assert "expandable_segments" in whole.advice and "expandable_segments" not in more.advice
    assert "the program asks later for more than there is" in more.advice
    grown, _, _ = explain_failure(device, objects_of(), device_bytes=None, grows=True)
    assert "expandable_segments" not in grown.advice
    assert first is not None and not any("expandable" in change.words for change in first.changes)


def test_gradients_that_wait_for_the_optimizer_are_told_in_a_backward() -> None:
    program = Recorded(capacity=100)
    program.make(40, MOVING)
    program.make(20, layer(7))
    program.make(30, ACCUMULATE)
    program.fail(30, BACKWARD)
    found = program.changes(second_run((40, 0), (20, 0), (30, 0)))["gradients that wait"]
    assert found.sentence.startswith("30.00 MiB in 1 block are gradients that wait")
    assert found.removed_bytes == 30 * _MIB
    assert "gradients that wait" not in program.changes(second_run((40, 0), (20, 0), (30, 1)))


def test_what_saves_all_that_is_missing_comes_first() -> None:
    """To let go of a block costs nothing; where more is missing, the list of results comes first."""
    program = Recorded(capacity=230)
    program.make(60, [line(3)])
    for _ in range(8):
        program.make(20, layer(7))
    program.fail(30, [line(4)])
    joined = replace(READ, operator="aten::cat")
    objects = second_run((60, NEVER), *[(20, 0)] * 8, used=joined, in_graphs=frozenset())
    objects = following(objects, is_last=(True,) * 9)
    assert objects.second_run is not None
    assert next(iter(program.changes(objects))) == "not read again"
    missing = replace(objects, second_run=replace(objects.second_run, missing_bytes=100 * _MIB))
    assert next(iter(program.changes(missing))) != "not read again"


@pytest.mark.parametrize(
    ("used", "is_said"), [(DIVIDED, True), (replace(DIVIDED, can_be_in_place=False), False), (READ, False)]
)
def test_an_operand_that_nothing_reads_afterwards_can_take_the_result(used: NextUse, is_said: bool) -> None:
    program = Recorded(capacity=100)
    program.make(60, [line(3)])
    program.fail(60, [line(4)])
    objects = second_run((60, 0), used=used, is_freed=True, in_graphs=frozenset())
    changes = program.changes(objects)
    assert ("not in place" in changes) == is_said
    if is_said:
        assert changes["not in place"].sentence.endswith(
            "makes a result of 60.00 MiB beside an operand of the same size (/home/me/train.py:3), which nothing reads "
            "afterwards."
        )
        graphs = replace(objects, in_graphs=None)
        assert "not in place" not in program.changes(graphs)
        is_there = second_run((60, 0), used=used, in_graphs=frozenset())
        assert "not in place" not in program.changes(is_there)


@pytest.mark.parametrize(("weights", "is_told"), [("bfloat16", True), ("float32", False)])
def test_copies_in_more_bits_that_a_backward_reads(weights: str, is_told: bool) -> None:
    """As many bits as the weights have are not too many."""
    program = Recorded(capacity=100)
    program.make(10, MOVING)
    program.make(40, layer(7))
    program.make(40, layer(8))
    program.fail(30, layer(9))
    narrow, wide = Sized((8, 64), "bfloat16", 20 * _MIB), Sized((8, 64), "float32", 40 * _MIB)
    cast = Making("aten::_to_copy", (narrow,), wide)
    weight = Making("aten::_to_copy", (Sized((8, 8), weights, 10 * _MIB),), Sized((8, 8), "bfloat16", 5 * _MIB))
    objects = second_run((10, 0), (40, 0), (40, 0), used=replace(READ, in_backward=True))
    objects = following(objects, makings=(cast, weight), making=(2, 0, 0))
    told = program.changes(objects)
    assert ("kept in more bits" in told) == is_told
    if is_told:
        assert "80.00 MiB in 2 blocks" in told["kept in more bits"].sentence


@pytest.mark.parametrize(("operator", "is_told"), [("aten::mul", True), ("aten::mm", False)])
def test_a_product_of_matrices_is_no_broadcast(operator: str, is_told: bool) -> None:
    """As the gradient of a layer with one result, (4096, 1) times (1, 4096)."""
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(80, [line(4)])
    given = (Sized((4096, 1), "float32", 1 << 14), Sized((1, 4096), "float32", 1 << 14))
    making = Making(operator, given, Sized((4096, 4096), "float32", 80 * _MIB))
    objects = following(second_run((40, 0), (80, 0)), distance=(1, 0), makings=(making,), making=(1, 0))
    assert ("every pair" in program.changes(objects)) == is_told


def test_what_expanded_tensors_are_combined_to_is_every_pair() -> None:
    """Each operand has the result's shape, and a hundredth of its bytes."""
    program = Recorded(capacity=100)
    program.make(20, [line(2)])
    program.fail(200, [line(4)])
    given = Sized((1024, 51200), "float32", 2 * _MIB)
    made_whole = Making("aten::empty", (), Sized((1024, 51200), "float32", 200 * _MIB), "/home/me/train.py", 4)
    objects = following(second_run((20, 0), (200, 0)), distance=(1, 0), making=(1, 0), makings=(made_whole,))
    assert "every pair" not in program.changes(objects)
    known = Making("aten::sub", (given, given), Sized((1024, 51200), "float32", 200 * _MIB), "/home/me/train.py", 4)
    objects = following(second_run((20, 0), (200, 0)), distance=(1, 0), making=(1, 0), makings=(known,))
    sentence = program.changes(objects)["every pair"].sentence
    assert "for every pair of two tensors, 2.00 MiB and 2.00 MiB to (1024, 51200)" in sentence


@pytest.mark.parametrize(("shape", "may_be_meant"), [((4096,), False), ((1, 4096), True)])
def test_a_value_for_each_of_another_shape_may_be_meant_for_one_alone(
    shape: tuple[int, ...], may_be_meant: bool
) -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.fail(80, [line(4)])
    given = (Sized((4096, 1), "float32", 1 << 14), Sized(shape, "float32", 1 << 14))
    making = Making("aten::sub", given, Sized((4096, 4096), "float32", 80 * _MIB), "/home/me/train.py", 4)
    objects = following(second_run((40, 0), (80, 0)), distance=(1, 0), making=(1, 0), makings=(making,))
    words = program.changes(objects)["every pair"].words
    assert words.startswith("give both the same shape") != may_be_meant


@pytest.mark.parametrize("later", [(), (13, 50 * _MIB)], ids=["none later", "as gradients of a later step"])
def test_what_the_program_then_needs_is_without_blocks_of_no_known_line(later: tuple[int, ...]) -> None:
    """As tensors of a file, or gradients: what is made later is as those of its size that were there."""
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.make(50, [line(3)])
    program.fail(30, [line(4)])
    made, size = (10, 11, 12, *later[:1]), (40 * _MIB, 50 * _MIB, 30 * _MIB, *later[1:])
    none, freed = (0,) * len(made), (0, *later[:1], 0, 0)[: len(made)]
    objects = following(
        second_run((40, 0), (50, NEVER), (30, 0)),
        distance=(2, 1, 0),
        making=(0, 0, 0),
        request=12,
        large=LargeBlocks(made, freed, size, none, none),
    )
    assert objects.second_run is not None
    run = replace(objects.second_run, peak_bytes=120 * _MIB, missing_bytes=20 * _MIB)
    change = program.changes(replace(objects, second_run=run))["not read again"]
    assert (change.needed_before_bytes, change.needed_bytes) == (120 * _MIB, 90 * _MIB)


@pytest.mark.parametrize(("copied_mib", "is_told"), [(20, True), (0, False), (50, False)])
def test_a_joined_result_that_has_the_same_values_several_times_is_a_copy_of_rows(
    copied_mib: int, is_told: bool
) -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.fail(80, [line(4)])
    parts = (Sized((4096, 2560), "float32", 40 * _MIB),) * 2
    result = Sized((4096, 5120), "float32", 80 * _MIB)
    making = Making("aten::cat", parts, result, "/home/me/train.py", 4, copied_bytes=copied_mib * _MIB)
    objects = following(second_run((40, 0), (80, 0)), distance=(1, 0), making=(1, 0), makings=(making,))
    assert ("copies of rows" in program.changes(objects)) == is_told


@pytest.mark.parametrize(
    ("operator", "words"), [("aten::_log_softmax", "take what is read"), ("aten::mm", "make only")]
)
def test_what_is_normalized_is_not_made_in_part(operator: str, words: str) -> None:
    program = Recorded(capacity=100)
    program.make(30, [line(2)])
    program.make(60, [line(3)])
    program.fail(30, [line(4)])
    makings = tuple(Making(name, (), Sized((), "float32", 0), "train.py", 3) for name in ("aten::mm", operator))
    objects = following(second_run((30, 0), (60, 0)), read_bytes=(30 * _MIB, _MIB), makings=makings, making=(0, 1))
    assert program.changes(objects)["read in part"].words.startswith(words)


def test_what_is_read_for_nothing_is_not_needed() -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(2)])
    program.make(50, [line(3)])
    program.fail(30, [line(4)])
    told = program.changes(following(second_run((40, 0), (50, 0)), ahead_bytes=(40 * _MIB, 0)))["not read again"]
    assert told.sentence.startswith(
        "Nothing reads 50.00 MiB in 1 block (/home/me/train.py:3), or what is made of them,"
    )
    assert told.words.startswith("do not keep them")


def test_a_holder_of_one_line_is_not_named_for_blocks_of_another() -> None:
    program = Recorded(capacity=100)
    program.make(20, [line(2)])
    program.make(60, [line(3)])
    small = program.make(10, [line(5)])
    program.fail(30, [line(4)])
    holder = Holder("x", "global variable of train.py", (small.address,))
    objects = second_run((20, 0), (60, NEVER), (10, NEVER), holders=(holder,))
    assert "held by" not in program.changes(objects)["not read again"].sentence


@pytest.mark.parametrize(("by_elements", "is_told"), [(True, True), (False, False)])
def test_a_function_that_computes_element_by_element_is_told_with_its_results(by_elements: bool, is_told: bool) -> None:
    """Three results of each of two calls, of which a graph keeps all."""
    program = Recorded(capacity=150)
    kept = [program.make(20, layer(7 + number % 3)).address for number in range(6)]
    program.make(5, [line(2)])
    program.fail(30, [line(4)])
    result = Sized((1024, 5120), "float32", 20 * _MIB)
    making = Making("aten::mul", (result, result), result, "/home/me/model.py", 7, by_elements)
    blocks = following(second_run(*[(20, 0)] * 6, (5, 0)), making=(0,) * 7, makings=(making,))
    told = program.changes(replace(blocks, is_training=True, in_graphs=frozenset(kept)))
    assert ("kept by elements" in told) == is_told
    if is_told:
        sentence = told["kept by elements"].sentence
        assert (
            "7 to 9) computes results of one shape element by element, of which backward keeps 120.00 MiB" in sentence
        )
        assert told["kept by elements"].removed_bytes == pytest.approx(80 * _MIB, rel=0.01)
