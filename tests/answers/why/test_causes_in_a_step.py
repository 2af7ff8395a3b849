"""Why a step takes as much as it does: for each cause a program of a few blocks, what is said, what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.allocator.recorded import MIB
from tests.blocks.from_snapshot.recorded_program import (
    BACKWARD,
    FOREACH,
    MODULE_CALL,
    MOVING,
    RELEASE,
    SECOND_STATE,
    STATE,
    STEP,
    TORCH,
    Recorded,
    backward_of,
    changes_in,
    first,
    layer,
    line,
    linear,
    objects_of,
    train,
)
from tests.snapshot.dumps import frame
from tracer.capture.objects.at_failure import Holder, Padding


@pytest.mark.parametrize(
    ("failed_in", "change"),
    [([], "(such as [:, -1])"), ([frame("cross_entropy", f"{TORCH}/nn/functional.py", 3)], "Compute the loss")],
)
def test_the_logits_and_their_copies(failed_in: list[dict[str, Any]], change: str) -> None:
    """100 MiB of logits, and 200 for each of two copies in full precision, the second of which fails.

    What fails in a loss needs all of the logits, also where no backward was recorded.
    """
    program = Recorded(capacity=480)
    program.make(20, MOVING)
    program.make(10, [line(2)])
    program.make(10, linear(7))
    program.make(10, linear(8))
    program.make(100, linear(9))
    program.make(200, [line(4)])
    program.fail(200, [*failed_in, line(5)])
    found = first(program)
    assert found.cause == "logits"
    what = "logits" if failed_in else "last layer's results"
    assert f"The {what} (100.00 MiB)" in found.sentence and "200.00 MiB more were asked for" in found.sentence
    assert change in found.order


@pytest.mark.parametrize("failed_in", [linear(10), [frame("embedding", f"{TORCH}/nn/modules/sparse.py", 9)]])
def test_no_layer_is_the_last_where_a_later_one_fails_nor_is_an_embedding(failed_in: list[dict[str, Any]]) -> None:
    program = Recorded(capacity=480)
    program.make(10, linear(7))
    program.make(10, linear(8))
    program.make(100, [*failed_in, *layer(9)] if len(failed_in) == 1 else linear(9))
    program.make(200, [line(4)])
    program.fail(200, failed_in if len(failed_in) > 1 else [line(5)])
    assert "logits" not in program.changes()


def test_a_loss_that_ignores_tokens_needs_no_logits_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("loss = F.cross_entropy(logits, targets, ignore_index=-1)\n")
    program = Recorded(capacity=380)
    program.make(10, linear(7))
    program.make(100, linear(9))
    loss = [frame("cross_entropy", f"{TORCH}/nn/functional.py", 3), line(1, file=str(tmp_path / "train.py"))]
    program.make(100, loss)
    program.fail(200, loss)
    words = "give the last layer the tokens alone that the loss does not ignore (ignore_index); or compute the loss"
    assert program.changes()["logits"].words.startswith(words)


def test_logits_of_several_calls_that_a_loop_goes_over_row_by_row() -> None:
    """The reference's call is another line's, and of modules with hooks: it is a call, too. 100 and 4 x 25 of 230."""
    program = Recorded()
    hook = frame("inner", f"{TORCH}/nn/modules/module.py", 2)
    for hooks, caller in (([hook], 21), ([], 22)):
        calls = [MODULE_CALL, *hooks, line(9, "log_probabilities"), line(caller)]
        made = [
            program.make(
                size, [frame("forward", f"{TORCH}/nn/modules/linear.py", 9), MODULE_CALL, *hooks, place, *calls]
            )
            for size, place in ((10, line(7, "forward")), (10, line(8, "forward")), (100, line(9, "forward")))
        ]
        frames = [line(14, "log_probabilities"), line(caller)]
        for _ in range(2):
            program.use(25, frames, freed=[line(14)])
        rows = [program.make(25, frames) for _ in range(4)]
        for block in (*made, *rows):
            program.free(block, [line(20)])
    change = first(program)
    assert change.cause == "logits"
    assert "as copies, a softmax and gradients, fill 200.00 MiB in 5 blocks" in change.sentence


def test_what_is_as_large_as_the_logits_and_made_before_them_is_none() -> None:
    """Four activations of 100 MiB come before 100 MiB of logits and two copies of them."""
    program = Recorded(capacity=760)
    program.make(10, linear(6))
    for _ in range(4):
        program.make(100, layer(7))
    program.make(100, linear(9))
    program.make(100, [line(4)])
    program.fail(200, [frame("cross_entropy", f"{TORCH}/nn/functional.py", 3), line(5)])
    assert "fill 200.00 MiB in 2 blocks" in program.changes()["logits"].sentence


def test_a_layer_as_large_as_the_others_makes_no_logits() -> None:
    program = Recorded(capacity=380)
    for number in (7, 8, 9):
        program.make(100, linear(number))
    program.fail(100, [line(5)])
    assert "logits" not in program.changes()


def test_the_first_step_of_an_optimizer_and_its_temporaries() -> None:
    program = Recorded(capacity=240)
    program.make(40, MOVING)
    program.use(40, layer(7), freed=BACKWARD)
    program.make(40, BACKWARD)
    for _ in range(2):
        program.make(40, STATE)
    program.make(40, FOREACH)
    program.fail(60, FOREACH)
    change = first(program)
    assert change.cause == "optimizer temporaries"
    assert "the optimizer's first step, which makes its state (80.00 MiB" in change.sentence
    assert "fused=True" in change.words


def test_a_need_with_blocks_that_only_live_shorter_is_no_exact_one() -> None:
    program = Recorded(capacity=100)
    program.make(60, MOVING)
    program.fail(60, [line(9)])
    known = replace(first(program), needed_before_bytes=100, needed_bytes=50, horizon="to the end")
    assert "needs about 50 B or less in place of 100 B, no more than there is" in known.effect
    assert "which may be 9 B more than there is" in replace(known, missing_bytes=9).effect
    shorter = replace(known, needs_more=True).effect
    assert "needs 50 B or more in place of 100 B;" in f"{shorter};" and "and up to 30.00 MiB less" in shorter


def test_a_change_that_leaves_nearly_all_that_is_missing_is_too_little() -> None:
    program = Recorded(capacity=100)
    program.make(60, MOVING)
    program.fail(60, [line(9)])
    known = replace(first(program), needed_before_bytes=1000, needed_bytes=980, missing_bytes=480)
    assert known.is_too_little and not replace(known, needed_bytes=900, missing_bytes=400).is_too_little
    assert not replace(known, needed_bytes=0).is_too_little


def test_a_cache_that_attention_joins_anew_is_no_matrix_of_scores() -> None:
    """Of two layers, larger with each token: the old block is freed once the new one is there."""
    joined = [line(20, "eager_attention", "/home/me/model.py"), *layer(8)]
    program = Recorded(capacity=218)
    program.make(4, linear(7))
    old = [program.make(30, joined) for _ in range(2)]
    for length in range(31, 50):
        new = [program.make(length, joined) for _ in range(2)]
        for block in old:
            program.free(block, joined)
        old = new
    program.make(50, joined)
    program.fail(50, joined)
    assert next(iter(program.changes())) == "cache grown by cat"
    assert "attention matrix" not in program.changes()


def test_attention_as_a_matrix() -> None:
    """By the name of the function: 64 MiB of scores and of weights, beside layers of 4."""
    scores = [line(20, "eager_attention", "/home/me/model.py"), *layer(8)]
    program = Recorded(capacity=240)
    for _ in range(3):
        program.make(4, linear(7))
    made = [program.make(64, scores).address for _ in range(3)]
    program.fail(64, scores)
    keeper = Holder("self.layers[...].bias", "attribute of Encoder", tuple(made))
    assert "attention matrix" not in program.changes(replace(objects_of(), holders=(keeper,)))
    change = first(program)
    assert change.cause == "attention matrix"
    assert "192.00 MiB in 3 blocks" in change.sentence
    assert "scaled_dot_product_attention" in change.words


HOOKS = [frame("inner", f"{TORCH}/nn/modules/module.py", 2), MODULE_CALL]


def test_blocks_outside_of_modules_that_are_larger_than_all_before() -> None:
    program = Recorded(capacity=340)
    for _ in range(3):
        train(program)
        program.use(20, [line(9)])
    program.make(200, [line(9)])
    program.fail(200, [line(9)])
    assert program.changes()["long batch"].words.startswith("make these in parts")


@pytest.mark.parametrize("frames", [layer(7), [layer(7)[0], *HOOKS, line(3)]])
def test_a_batch_that_is_longer_than_all_before(frames: list[dict[str, Any]]) -> None:
    """Lines that made 10 MiB in three steps make 60, also in modules that have hooks by now."""
    program = Recorded(capacity=340)
    for _ in range(3):
        train(program)
    program.make(60, [line(2)])
    for _ in range(4):
        program.make(60, frames)
    program.fail(60, frames)
    change = first(program)
    assert change.cause == "long batch"
    assert "blocks at least 6 times as large, 300.00 MiB in 5 blocks" in change.sentence
    assert change.words.startswith("limit the length (or size) of a sample")


def test_memory_that_streams_keep_for_themselves() -> None:
    program = Recorded()
    for stream in range(5):
        program.use(50, [line(2)], stream=stream)
    change = first(program)
    assert change.cause == "stranded in streams"
    assert (change.reserved_before_bytes, change.reserved_bytes) == (250 << 20, 50 << 20)


def decoder(number: int, caller: int = 3) -> list[dict[str, Any]]:
    """A line of a layer's forward, which the model's forward calls in a loop."""
    inner = line(number, "forward", "/home/me/layers.py")
    return [inner, MODULE_CALL, *layer(20, caller)]


def eight_calls(frames_of: Callable[[int], list[dict[str, Any]]]) -> Recorded:
    """Eight calls of a layer keep 3 x 10 MiB each, by lines 7 to 9, and memory runs out behind them."""
    program = Recorded(capacity=300)
    program.make(10, [line(2)])
    for number in (7, 8, 9) * 8:
        program.make(10, frames_of(number))
    program.fail(100, [line(4)])
    return program


def test_parts_that_repeat_are_checkpointed() -> None:
    """Of seven calls a checkpoint keeps the last block: 140 MiB fewer."""
    program = eight_calls(decoder)
    change = first(program)
    assert change.cause == "repeated parts" and change.num_served == 1
    assert change.allocated_before_bytes - change.allocated_bytes >= 40 << 20  # of the peak with what is then served
    assert change.sentence.startswith("8 calls of forward (/home/me/layers.py:7) keep their activations for backward")
    assert "140.00 MiB in 14 blocks" in change.sentence
    assert "torch.utils.checkpoint" in change.words


COMPILED_FORWARD = frame("forward", f"{TORCH}/_functorch/_aot_autograd/runtime_wrappers.py", 1585)


@pytest.mark.parametrize(
    ("is_training", "around", "are_kept"), [(False, [], False), (True, [], True), (False, [COMPILED_FORWARD], True)]
)
def test_parts_without_any_graph_keep_nothing_for_backward(
    is_training: bool, around: list[dict[str, Any]], are_kept: bool
) -> None:
    """A graph may be made when the call is over: of a training and of a compiled forward its absence says nothing."""
    program = eight_calls(lambda number: [*decoder(number)[:-1], *around, *decoder(number)[-1:]])
    objects = objects_of(is_training=is_training, in_graphs=frozenset())
    assert ("repeated parts" in program.changes(objects)) is are_kept


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("layers.py", "class Decoder:\n    def forward(self, x):\n" + "        x = x + 1\n" * 9, "Decoder"),
        ("layers.py", "class Decoder(:\n", "forward"),
        ("layers.py", "(" * 100_000, "forward"),
        ("layers.py", "class Decoder:\n" + "    x = 1\n" * (1 << 19), "forward"),  # larger than any source
        ("missing.py", None, "forward"),
    ],
)
def test_a_part_has_the_name_of_its_class_where_its_source_is_here(
    name: str, text: str | None, named: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text, "utf-8")
    program = eight_calls(lambda number: [line(number, "forward", str(file)), MODULE_CALL, *layer(20)])
    assert first(program).sentence.startswith(f"8 calls of {named} ({file}:7)")


def test_the_layers_of_a_public_library_have_a_switch() -> None:
    library = "/x/site-packages/transformers/models/llama/modeling_llama.py"
    program = eight_calls(lambda number: [line(number, "forward", library), MODULE_CALL, *layer(20)])
    assert first(program).words.startswith("call model.gradient_checkpointing_enable()")


def test_a_single_request_that_nothing_leaves_room_for() -> None:
    program = Recorded(capacity=200)
    program.make(10, [line(2)])
    program.fail(320, [line(3)])
    change = first(program)
    assert change.cause == "one request" and change.num_served == 1
    assert "train.py:3 is what does not fit: 320.00 MiB" in change.sentence
    assert "2 parts" in change.words


@pytest.mark.parametrize(("fraction", "parts"), [(0.25, "4 parts"), (None, "64 parts")])
def test_a_single_request_that_a_limit_of_the_process_refuses(fraction: float | None, parts: str) -> None:
    """The device had 1,590 MiB free, of which a quarter of 1,600 is for the process; or nobody knows how much."""
    program = Recorded(capacity=400)
    program.make(10, [line(2)])
    program.fail(1000, [line(3)])
    recorded = program.snapshot()
    recorded["device_traces"][0][-1]["device_free"] = 1590 * MIB
    if fraction is not None:
        recorded["allocator_settings"] = {"per_process_memory_fraction": fraction}
    change = next(iter(changes_in(recorded).values()))
    assert (change.cause, change.num_served) == ("one request", 1)
    assert parts in change.words


@pytest.mark.parametrize("source", ["targets = F.one_hot(labels, 150)", "targets = labels.float()"])
def test_one_hot_labels_by_the_source_of_their_line(source: str, tmp_path: Path) -> None:
    """Of int64, and of float32 beside them; a line that makes as much of anything else is named as a line."""
    file = tmp_path / "train.py"
    file.write_text(source, "utf-8")
    program = Recorded(capacity=300)
    program.make(40, [line(9)])
    program.make(200, [line(1, file=str(file))])
    program.fail(100, [line(1, file=str(file))])
    causes = program.changes()
    assert ("one-hot labels" in causes) == ("one_hot" in source)
    if change := causes.get("one-hot labels"):
        assert "200.00 MiB in 1 block" in change.sentence and "100.00 MiB more" in change.sentence
        assert change.num_served == 1


def test_a_call_of_the_model_with_more_than_the_training_has() -> None:
    """The same lines of the model, called by another line of the program."""
    program = Recorded(capacity=400)
    for _ in range(3):
        train(program)
    program.make(30, [line(12)])
    for _ in range(2):
        program.make(80, layer(7, caller=13))
    program.fail(240, layer(7, caller=13))
    change = first(program)
    assert change.cause == "long batch"
    assert change.sentence.startswith("The call at /home/me/train.py:13 is larger than those before")
    assert (
        "with less at once there (a smaller batch, or shorter samples), and put the results together on the host"
        in change.words
    )
    in_training = program.changes(objects_of(is_training=True))["long batch"]
    assert "or shorter samples), and backward for each part" in in_training.words


def test_the_state_of_a_first_step_that_is_still_to_come() -> None:
    """Ten gradients of 10 MiB; of 200 MiB of state 110 are there, and in one piece there is room for 80 more."""
    program = Recorded(capacity=420)
    backward_of(program, 10)
    between = []
    for number in range(11):
        between.append(program.make(8, STEP))
        program.make(10, STATE if number % 2 == 0 else SECOND_STATE)
    for block in between:
        program.free(block, STEP)
    program.fail(50, SECOND_STATE)
    found = program.changes()
    assert "110.00 MiB of 200.00 MiB are there" in found["optimizer state"].sentence
    assert next(iter(found)) == "optimizer state"


def test_a_first_step_makes_its_own_state_and_none_of_a_model_trained_before() -> None:
    """Of an earlier model 20 MiB of weights and 40 of state; of 60 MiB of state of this one 40 are there."""
    program = Recorded(capacity=240)
    program.make(20, MOVING)
    for at in range(3):
        train(program, size=2)
        if at == 0:
            program.make(20, STATE)
            program.make(20, STATE)
    backward_of(program, 3)
    for frames in (STATE, SECOND_STATE, STATE, SECOND_STATE):
        program.make(10, frames)
    program.fail(120, STATE)
    found = program.changes()
    assert "40.00 MiB of 60.00 MiB are there" in found["optimizer state"].sentence
    assert "40.00 MiB made in earlier steps" in found["other models"].sentence


@pytest.mark.parametrize(
    ("num_calls", "kept"),
    [
        (20, "114.00 MiB in 38 blocks (/home/me/model.py:7), some 6.00 MiB for each of the 19 before the last,"),
        (2, "6.00 MiB in 2 blocks (/home/me/model.py:7) of the first,"),
    ],
)
def test_calls_of_a_line_that_makes_blocks_of_several_sizes(num_calls: int, kept: str) -> None:
    """Each call of a cell makes 4, 2 and 2 MiB by one line: all but the last pass the last 2 MiB on."""
    cell = [frame("forward", f"{TORCH}/nn/modules/rnn.py", 9), MODULE_CALL, *layer(7)]
    program = Recorded(capacity=10 * num_calls)
    for _ in range(num_calls):
        for size in (4, 2, 2):
            program.make(size, cell)
    program.fail(3 * num_calls, layer(8))
    change = first(program)
    assert change.cause == "repeated parts" and change.sentence.startswith(
        f"{num_calls} parts that are alike, of the model called at"
    )
    assert kept in change.sentence


@pytest.mark.parametrize(("num_units", "is_whole"), [(1, True), (8, False)])
def test_fsdp_that_gathers_the_whole_model_at_once(num_units: int, is_whole: bool) -> None:
    """In each of two steps; where blocks are sharded on their own, each is let go of before the next is gathered."""
    gathering = [frame("_alloc_padded_unsharded_flat_param", f"{TORCH}/distributed/fsdp/_flat_param.py", 9), *layer(7)]
    program = Recorded(capacity=180 if is_whole else 140)
    for _ in range(10):
        program.make(4, MOVING)
    for _ in range(2):
        program.use(1, layer(6), freed=[line(3)])
        for number in range(num_units):
            unit = program.make(80 if is_whole else 40, gathering)
            program.make(1, layer(8))
            if number + 1 < num_units:
                program.free(unit, [line(3)])
        kept = program.make(1, layer(8))
        program.free(kept, BACKWARD)
        program.free(unit, BACKWARD)
    unit = program.make(80 if is_whole else 40, gathering)
    program.fail(70, layer(9))
    assert ("gathered whole" in program.changes()) == is_whole


@pytest.mark.parametrize("has_graph", [True, False])
def test_a_graph_that_a_backward_made(has_graph: bool) -> None:
    """Of 4 blocks of 10 MiB autograd lets go as of what it saved, where they are no gradients that a variable keeps."""
    program = Recorded(capacity=210)
    for _ in range(2):
        program.make(3, MOVING)
    train(program)
    for _ in range(4):
        program.make(10, layer(7))
    made = [program.make(10, BACKWARD) for _ in range(4)]
    program.use(1, BACKWARD)
    program.make(10, layer(8))
    program.fail(130, layer(9))
    for block in made:
        program.free(block, RELEASE if has_graph else [line(9)])
    changes = program.changes()
    assert ("graph of a gradient" in changes) == has_graph
    if has_graph:
        change = changes["graph of a gradient"]
        assert change.num_served == 1 and "40.00 MiB in 4 blocks" in change.sentence
        assert "call backward() for each term of the loss" in change.words


@pytest.mark.parametrize("asked_at", [7, 9])
def test_float64_in_half_the_size_and_the_request_only_where_its_line_makes_it(asked_at: int) -> None:
    """Half of 40 MiB gives 20 back: 30 MiB more are served where the request is halved, too."""
    program = Recorded(capacity=85)
    addresses = frozenset(program.make(20, layer(7)).address for _ in range(2))
    program.make(30, layer(8))
    program.fail(50, layer(asked_at))
    change = program.changes(objects_of(is_training=True, float64=addresses)).get("float64")
    assert (change is not None) == (asked_at == 7)
    assert change is None or (change.num_served == 1 and "40.00 MiB in 2 blocks" in change.sentence)


EMBEDDING = [frame("torch::autograd::generated::EmbeddingBackward0::apply(x)", "??", 0), *BACKWARD]


@pytest.mark.parametrize(("size", "is_cause"), [(80, True), (10, False)])
def test_the_gradient_of_a_large_embedding(size: int, is_cause: bool) -> None:
    program = Recorded(capacity=225)
    program.make(80, MOVING)
    program.make(40, layer(7))
    program.make(size, EMBEDDING)
    program.fail(100, layer(8))
    assert ("gradient of an embedding" in program.changes()) is is_cause


def test_the_gradient_of_an_embedding_that_is_asked_for() -> None:
    program = Recorded(capacity=150)
    program.make(80, MOVING)
    program.fail(80, EMBEDDING)
    assert first(program).sentence.endswith("though a batch looks up a few rows: 80.00 MiB.")


VMAP = frame("vmap_impl", f"{TORCH}/_functorch/vmap.py", 3)
OTHER = frame("other", f"{TORCH}/_functorch/other.py", 3)


@pytest.mark.parametrize(
    ("function", "sizes", "asked", "frames", "more"),
    [
        (VMAP, (80, 40), 80, BACKWARD, ", and 80.00 MiB more were asked for."),
        (VMAP, (80, 40), 80, layer(7), "."),
        (VMAP, (80, 40), 72, BACKWARD, "."),
        (VMAP, (80,), 40, BACKWARD, ", and 40.00 MiB more were asked for."),
        (OTHER, (80, 40), 80, BACKWARD, None),
        (VMAP, (80, 80), 80, BACKWARD, None),  # of one size
        (VMAP, (80, 35), 80, BACKWARD, None),  # by 8 and by 7
        (VMAP, (20, 10), 300, layer(7), None),  # a small part
    ],
)
def test_gradients_of_each_sample(
    function: Any, sizes: tuple[int, ...], asked: int, frames: Any, more: str | None
) -> None:
    """Of 8 samples: 80 and 40 MiB, as parameters have 10 and 5, where vmap is somewhere in the recording."""
    program = Recorded(capacity=15 + sum(sizes) + asked - 2)
    for size in (10, 5):
        program.make(size, MOVING)
    program.use(1, [function, line(3)], freed=[line(3)])
    for size in sizes:
        program.make(size, BACKWARD)
    program.fail(asked, frames)
    found = program.changes()
    assert ("gradients of samples" in found) is (more is not None)
    if more is not None:
        blocks = f"{sum(sizes)}.00 MiB in {len(sizes)} block{'s' * (len(sizes) > 1)}"
        assert f"a gradient for each of 8 samples: {blocks}{more}" in found["gradients of samples"].sentence


@pytest.mark.parametrize("backward", [BACKWARD, []], ids=["with C++ frames", "from Python alone"])
def test_logits_that_a_variable_keeps_through_backward(backward: list[dict[str, Any]]) -> None:
    """100 MiB that only the next iteration lets go of; without them the second backward has what it needs."""
    program = Recorded(capacity=300)
    held = None
    for is_last in (False, True):
        for number in (7, 8):
            program.use(10, linear(number), freed=backward)
        logits = program.make(100, linear(9))
        if held is not None:
            program.free(held, [line(3)])
        loss = program.make(50, [frame("cross_entropy", f"{TORCH}/nn/functional.py", 3), line(4)])
        root = program.make(1, [frame("backward", f"{TORCH}/_tensor.py", 9), line(4)])
        gradient = program.make(100 - 50 * is_last, backward)
        if is_last:
            program.fail(120, backward)
            break
        for block in (root, loss, gradient):
            program.free(block, backward)
        program.use(1, STEP)
        held = logits
    change = program.changes()["held over the step"]
    assert "A variable keeps the logits, 100.00 MiB in 1 block" in change.sentence
    assert change.num_served == 1


def test_a_call_that_is_larger_than_those_before_where_no_optimizer_steps() -> None:
    """The program goes on behind the failure with small calls."""
    program = Recorded(capacity=330)
    for _ in range(2):
        block = program.make(20, layer(7))
        program.free(block, [line(4)])
    program.make(200, layer(7))
    program.make(1, [line(5)])
    program.fail(200, layer(7))
    for _ in range(2):
        program.use(20, layer(7), freed=[line(4)])
    assert program.changes()["long batch"].words.startswith("call the model with less at once there")


def test_a_request_beside_what_its_function_has_made_for_it() -> None:
    """60 MiB asked for, beside as many and a mask of 15 by the same function, of 145 in all."""
    program = Recorded(capacity=130)
    program.make(10, [line(2)])
    for size in (60, 15):
        program.make(size, [line(9, "distances"), line(3)])
    program.fail(60, [line(10, "distances"), line(3)])
    change = first(program)
    assert change.cause == "one request"
    assert "beside 75.00 MiB in 2 blocks" in change.sentence


@pytest.mark.parametrize(("num_rows", "is_told"), [(8, True), (7, False)])
def test_results_for_columns_that_are_filled_up(num_rows: int, is_told: bool) -> None:
    """Blocks whose bytes are a multiple of 8 x 512 tokens; of 7 x 512 they are none."""
    program = Recorded(capacity=100)
    program.make(10, MOVING)
    program.make(40, layer(7))
    program.make(40, layer(8))
    program.fail(32, layer(9))
    told = program.changes(replace(objects_of(), padding=Padding("tokens", num_rows, 512, 64)))
    assert ("padding" in told) == is_told
    if is_told:
        assert told["padding"].sentence.startswith(
            "In every row of tokens, a batch of 8, 448 of 512 columns are filled with the same value; results for all "
            "columns take 80.00 MiB in 2 blocks"
        )
        assert "this is with 64 columns" in told["padding"].words
        assert told["padding"].removed_bytes == (112 - 112 // 8) * MIB


@pytest.mark.parametrize(("num_calls", "is_told"), [(4, True), (1, False)])
def test_weights_that_a_parametrization_makes_for_each_call(num_calls: int, is_told: bool) -> None:
    program = Recorded(capacity=100)
    program.make(10, MOVING)
    parametrized = [frame("forward", f"{TORCH}/nn/utils/parametrize.py", 9), *layer(7)]
    made = [program.make(80 // num_calls, parametrized).address for _ in range(num_calls)]
    program.fail(20, layer(8))
    told = program.changes(objects_of(in_graphs=frozenset(made)))
    assert "weights made anew" not in program.changes(objects_of(in_graphs=frozenset()))
    assert ("weights made anew" in told) == is_told
    if is_told:
        assert told["weights made anew"].removed_bytes == 60 * MIB


@pytest.mark.parametrize(("kind", "is_told"), [(MOVING, True), (STATE, False)])
def test_weights_of_32_bits_where_nothing_is_trained(kind: Any, is_told: bool) -> None:
    program = Recorded(capacity=100)
    weights = [program.make(30, MOVING).address for _ in range(2)]
    program.make(10, kind)
    program.fail(40, MOVING)
    told = program.changes(replace(objects_of(in_graphs=frozenset()), float32=frozenset(weights)))
    assert ("weights in 32 bits" in told) == is_told
    if is_told:
        assert (
            told["weights in 32 bits"].sentence
            == "60.00 MiB in 2 blocks (/home/me/train.py:2) are parameters of float32."
        )
        assert told["weights in 32 bits"].removed_bytes == pytest.approx(50 * MIB, rel=0.05)


@pytest.mark.parametrize("number", [1, 3])
def test_what_the_failed_line_made_in_the_iteration_before_and_no_growth(number: int) -> None:
    """A batch that is scaled: the last one is there until the variable is set anew; three of them are a list."""
    program = Recorded(capacity=50 + 50 * number)
    for _ in range(number):
        program.make(25, [line(4)])
        program.use(5, layer(7), freed=BACKWARD)
        program.use(1, BACKWARD)
    program.make(30, [line(3)])
    program.fail(20 + 45 * number, [line(4)])
    changes = program.changes()
    assert ("held until made again" in changes) == (number == 1)
    # Nor is it a whole set of data, though it was there before the model was first called.
    assert "data on the device" not in changes
    if number == 1:
        assert changes["held until made again"].sentence.startswith(
            "The line that failed has made 25.00 MiB in 1 block"
        )


@pytest.mark.parametrize(
    ("sizes", "is_told"),
    [((5, 11, 14, 17), True), ((15, 15, 15, 15), False), ((5, 15, 10, 17), False), ((5, 11, 14), False)],
)
def test_batches_that_grow_from_iteration_to_iteration(sizes: tuple[int, ...], is_told: bool) -> None:
    program = Recorded(capacity=80)
    for number, size in enumerate((*sizes, 20)):
        kept = [program.make(size, layer(of)) for of in (7, 8, 9)]
        if number == len(sizes):
            program.fail(30, layer(10))
        for block in kept:
            program.free(block, BACKWARD)
        program.use(1, STEP)
    found = program.changes()
    assert ("growing batches" in found) == is_told
    if is_told:
        assert "has 5.00 MiB in the first of 5, and 20.00 MiB in this one; 60.00 MiB in 3 blocks" in (
            found["growing batches"].sentence
        )
