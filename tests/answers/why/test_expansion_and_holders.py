"""Results larger than what they are made of, and who holds memory: programs of a few blocks with their objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.blocks.from_snapshot.recorded_program import (
    BACKWARD,
    MOVING,
    STEP,
    TORCH,
    Recorded,
    backward_of,
    first,
    layer,
    line,
    objects_of,
    train,
)
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.answers.why.expansion import JOINED, REMEDIES
from tracer.capture.objects.at_failure import CYCLE, NOT_PYTHON, Holder, IdleModel, ListedState, Operand


def source(tmp_path: Path, text: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(f"{text}\n")
    return str(script)


LINES = {
    "full matrices": "u, s, v = torch.linalg.svd(x)",
    "sparse made dense": "x = adjacency.to_dense()",
    "one-hot labels": "labels = one_hot(y, 50000)",
    "copies of rows": "x = x.repeat(64, 1)",
    "row for each index": "messages = x[edges]",
    "contracted whole": "y = torch.einsum('ai,bij,aj->ab', x, w, z)",
    "every pair": "d = a[:, None] - b[None]",
    "cast up": "x = mask.float()",
    "resized": "masks = F.interpolate(masks, size)",
    "whole sorted": "ordered, _ = x.sort()",
    "value for each class": "p = logits.softmax(-1)",
    "made whole": "out = torch.zeros(size)",
}


ALONE = [remedy for remedy in REMEDIES if remedy is not JOINED]  # That one needs the list


@pytest.mark.parametrize("remedy", ALONE, ids=lambda remedy: remedy.name)
def test_each_row_is_told_by_its_line(remedy: Any, tmp_path: Path) -> None:
    """40 MiB in use, and 200 MiB asked for by a line: the row is the first that holds."""
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(200, [line(1, "<module>", source(tmp_path, LINES[remedy.name]))])
    change = first(program)
    assert change.cause == remedy.name
    assert f"`{LINES[remedy.name]}`" in change.sentence and "200.00 MiB in one tensor" in change.sentence
    assert not isinstance(remedy.change, str) or change.words == remedy.change
    assert change.num_served == 1


@pytest.mark.parametrize("are_gradients", [False, True])
def test_gradients_that_a_cast_has_made_are_no_results_of_its_line(are_gradients: bool, tmp_path: Path) -> None:
    """As autograd casts those of weights that autocast has cast."""
    program = Recorded(capacity=100)
    made = [program.make(20, [line(1, "<module>", source(tmp_path, LINES["cast up"]))]) for _ in range(3)]
    program.fail(50, [line(9)])
    addresses = frozenset(block.address for block in made) if are_gradients else frozenset()
    told = program.changes(replace(objects_of(), parameters=frozenset({1}), gradients=addresses))
    assert ("cast up" in told) == (not are_gradients)


def test_small_results_of_a_line_are_not_named_beside_a_large_one(tmp_path: Path) -> None:
    program = Recorded(capacity=100)
    program.make(1, [line(1, "<module>", source(tmp_path, LINES["every pair"]))])
    program.make(40, [line(9)])
    program.fail(200, [line(1, "<module>", source(tmp_path, LINES["every pair"]))])
    assert "200.00 MiB in one tensor" in first(program).sentence


def test_the_document_has_a_row_for_each_remedy() -> None:
    document = (Path(__file__).resolve().parents[3] / "docs" / "why.md").read_text("utf-8")
    assert [remedy.name for remedy in REMEDIES if f"\n| {remedy.name} |" not in document] == []


def test_an_operator_of_cpp_decides_where_a_line_calls_several(tmp_path: Path) -> None:
    made = frame("at::_ops::repeat_interleave_self_int::call(x)", "??", 0)
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(200, [made, line(1, "<module>", source(tmp_path, "x = x.to_dense().repeat_interleave(64)"))])
    assert first(program).cause == "copies of rows"


@pytest.mark.parametrize(
    ("size", "text", "is_said"),
    [
        (90, "y = torch.max(x, mask[:, None])", False),
        (30, "y = torch.max(x, mask[:, None])", True),
        (10, "y = torch.randn(2 * rows, width)", False),  # numbers
    ],
)
def test_a_broadcast_is_told_where_its_result_is_twice_as_large_as_all_there_was(
    size: int, text: str, is_said: bool, tmp_path: Path
) -> None:
    program = Recorded(capacity=110)
    program.make(size, [line(9)])
    program.fail(120, [line(1, "<module>", source(tmp_path, text))])
    assert (first(program).cause == "every pair") is is_said


def test_operands_and_their_factor_are_named(tmp_path: Path) -> None:
    file = source(tmp_path, "x = x.repeat(64, 1)")
    operand = Operand("x", file, 1, 2 << 20, (1024, 512), "float32")
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(128, [line(1, "<module>", file)])
    (sentence, *_) = (
        change.sentence for change in program.changes(replace(objects_of(), operands=(operand,))).values()
    )
    assert "from x (2.00 MiB), 64 times as much" in sentence


def test_what_is_computed_of_repeated_rows_counts_with_them(tmp_path: Path) -> None:
    program = Recorded(capacity=300)
    program.make(10, [line(9)])
    program.make(40, [line(1, "<module>", source(tmp_path, "x = x.repeat(4, 1)"))])
    for _ in range(5):
        program.make(40, layer(7))
    program.fail(60, layer(8))
    change = first(program)
    assert change.cause == "copies of rows" and "of its size 200.00 MiB in 5 blocks after it" in change.sentence


def test_a_joined_list_is_told_with_its_parts(tmp_path: Path) -> None:
    """The parts would be growth, if nothing joined them."""
    program = Recorded(capacity=250)
    for _ in range(20):
        program.use(1, [line(2)])
        program.make(10, layer(7))
    program.fail(200, [line(1, "<module>", source(tmp_path, "x = torch.cat(parts)"))])
    change = first(program)
    assert change.cause == "joined copy" and "beside 200.00 MiB in 20 blocks" in change.sentence


def test_weights_of_attention_are_told_by_the_line_of_torchs_that_makes_them(tmp_path: Path) -> None:
    """Not those of a call that makes none: it is in the same function of torch's."""
    torchs = tmp_path / "site-packages" / "torch" / "nn" / "functional.py"
    torchs.parent.mkdir(parents=True)
    torchs.write_text(
        "attn_output_weights = softmax(attn_output_weights)\nout = scaled_dot_product_attention(q, k, v)\n"
    )
    for number, is_said in ((1, True), (2, False)):
        program = Recorded(capacity=100)
        program.make(40, [line(9)])
        program.fail(200, [frame("multi_head_attention_forward", str(torchs), number), line(3)])
        assert (first(program).cause == "attention weights") is is_said


@pytest.mark.parametrize(("operator", "is_said"), [("cat", True), ("addmm", False)])
def test_a_cache_that_grows_is_joined_as_far_as_cpp_frames_tell(operator: str, is_said: bool) -> None:
    program = Recorded(capacity=200)
    frames = [frame(f"at::_ops::{operator}::call(x)", "??", 0), *layer(7)]
    kept = program.make(10, frames)
    for size in range(20, 110, 10):
        larger = program.make(size, frames)
        program.free(kept, [line(4)])
        kept = larger
    program.fail(110, frames)
    assert ("cache grown by cat" in program.changes()) is is_said


def test_samples_of_vmap_are_told_by_its_frames() -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(200, [line(7), frame("_flat_vmap", f"{TORCH}/_functorch/vmap.py", 9), line(3)])
    assert "chunk_size" in first(program).words


@pytest.mark.parametrize(("size", "is_said"), [(150, False), (60, True)])
def test_a_cause_whose_change_saves_less_than_half_of_what_it_names_is_not_said(
    size: int, is_said: bool, tmp_path: Path
) -> None:
    """150 MiB of the peak are named; as much as 180 or 90 is in use at another time, whatever becomes of them."""
    frames = [line(1, "<module>", source(tmp_path, "x = x.repeat(64, 1)"))]
    program = Recorded()
    program.make(30, [line(9)])
    program.use(170, frames)
    program.use(size, [line(8)])
    assert ("copies of rows" in program.changes()) is is_said


@pytest.mark.parametrize(
    ("text", "asked", "is_said"),
    [("y = image / 255", 160, False), ("y = a - b", 400, True), ("y = a[:, None] - b", 160, True)],
)
def test_a_wider_type_alone_is_no_broadcast(text: str, asked: int, is_said: bool, tmp_path: Path) -> None:
    """A byte becomes at most eight."""
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(asked, [line(1, "<module>", source(tmp_path, text))])
    assert (first(program).cause == "every pair") is is_said


@pytest.mark.parametrize(("text", "is_said"), [("torch.linalg.svd(x)", True), ("torch.svd(x)", False)])
def test_an_svd_of_the_smaller_side_is_not_told_to_be_one(text: str, is_said: bool, tmp_path: Path) -> None:
    program = Recorded(capacity=100)
    program.make(40, [line(9)])
    program.fail(200, [line(1, "<module>", source(tmp_path, text))])
    assert (first(program).cause == "full matrices") is is_said


# ---------------------------------------------------------------------------------------------- holders and owners
def held_by(blocks: list[Block], path: str, variable: str = "") -> Holder:
    return Holder(path, variable, tuple(block.address for block in blocks))


@pytest.mark.parametrize(("num_replaced", "is_said"), [(0, True), (1, False)])
def test_results_of_an_earlier_call_that_an_attribute_holds(num_replaced: int, is_said: bool) -> None:
    """Where the call lets go of them as it makes the next ones, like a cache, it needs the rest of them."""
    program = Recorded(capacity=200)
    earlier = [program.make(20, layer(7)) for _ in range(4)]
    program.make(1, [line(2)])
    for number in range(2):
        program.make(20, layer(7))
        if number < num_replaced:
            program.free(earlier[number], layer(8))
    program.fail(100, layer(7))
    holders = (held_by(earlier[num_replaced:], "model.acts[...].output", "global variable of train.py"),)
    changes = program.changes(replace(objects_of(in_graphs=frozenset()), holders=holders))
    assert ("results of earlier calls" in changes) is is_said
    if is_said:
        change = changes["results of earlier calls"]
        assert change.sentence.startswith("80.00 MiB in 4 blocks (/home/me/model.py:7) are of earlier calls")
        assert "holders is model.acts[...].output (global variable of train.py)" in change.sentence
        assert change.num_served == 1


@pytest.mark.parametrize(("num_calls", "cause"), [(1, "results of earlier calls"), (6, "results kept")])
def test_results_that_every_call_leaves_are_growth(num_calls: int, cause: str) -> None:
    program = Recorded(capacity=40 * num_calls + 60)
    kept: list[Block] = []
    for _ in range(num_calls):
        kept += [program.make(20, layer(7)) for _ in range(2)]
        program.use(1, [line(2)])
    for _ in range(2):
        program.make(20, layer(7))
    program.fail(50, layer(7))
    holders = (held_by(kept, "outputs[...]", "global variable of train.py"),)
    changes = program.changes(replace(objects_of(in_graphs=frozenset()), holders=holders))
    assert {*changes} & {"results of earlier calls", "results kept"} == {cause}


def test_a_cycle_that_alone_holds_memory() -> None:
    program = Recorded(capacity=300)
    blocks = [program.make(100, [line(7)]) for _ in range(2)]
    program.fail(150, [line(2)])
    objects = objects_of()
    (cycle,) = (
        change
        for cause, change in program.changes(
            replace(objects, holders=(held_by(blocks, f"{CYCLE}Tensor -> SwishBackward.out"),))
        ).items()
        if cause == "reference cycle"
    )
    assert "200.00 MiB in 2 blocks" in cycle.sentence and "Tensor -> SwishBackward.out" in cycle.sentence
    assert "save_for_backward" in cycle.words
    of_grad = held_by(blocks, f"{CYCLE}Tensor.grad -> Tensor -> CopyBackwards")
    assert "torch.autograd.grad" in program.changes(replace(objects, holders=(of_grad,)))["reference cycle"].words
    plain = program.changes(replace(objects, holders=(held_by(blocks, f"{CYCLE}Trainer.handlers"),)))
    assert "gc.collect()" in plain["reference cycle"].words
    held = program.changes(replace(objects, holders=(held_by(blocks, "kept[...]", "global variable of train.py"),)))
    assert "reference cycle" not in held


def test_growth_of_a_cycle_is_told_as_such() -> None:
    program = Recorded(capacity=300)
    blocks = []
    for _ in range(8):
        train(program)
        blocks.append(program.make(25, [line(3)]))
    program.fail(150, [line(2)])
    objects = replace(objects_of(in_graphs=frozenset()), holders=(held_by(blocks, f"{CYCLE}Node.other"),))
    change = next(iter(program.changes(objects).values()))
    assert change.cause == "reference cycle" and "Node.other" in change.sentence
    assert change.sentence.startswith("Memory grows: each of")
    # Most of it no Python object has, such as what nodes of autograd keep.
    behind = held_by(blocks[:1], f"{CYCLE}Node.other"), held_by(blocks[1:], NOT_PYTHON)
    change = next(iter(program.changes(replace(objects, holders=behind)).values()))
    assert change.cause == "reference cycle"
    assert "no variable leads to them, and a reference cycle holds a part (Node.other)" in change.sentence
    variable = replace(objects, holders=(held_by(blocks, "history[...]", "global variable of train.py"),))
    change = next(iter(program.changes(variable).values()))
    assert "results kept on the device by history[...] (global variable of train.py)" in change.sentence


@pytest.mark.parametrize(("collected", "is_said"), [(10, False), (100, True)])
def test_what_the_collector_freed_after_the_failure(collected: int, is_said: bool) -> None:
    program = Recorded(capacity=300)
    there, gone = program.make(100, [line(6)]), program.make(150, [line(7)])
    program.fail(150, [line(2)])
    assert there.address != gone.address
    objects = replace(objects_of(), seen=frozenset({there.address}), collected_bytes=collected << 20)
    changes = program.changes(objects)
    assert ("reference cycle" in changes) is is_said
    if is_said:
        assert "collector freed 100.00 MiB" in changes["reference cycle"].sentence


def test_gradients_that_no_optimizer_uses() -> None:
    program = Recorded(capacity=300)
    gradients = [program.make(50, [line(7)]) for _ in range(4)]
    program.fail(150, [line(2)])
    addresses = frozenset(block.address for block in gradients)
    objects = replace(objects_of(), unowned_gradients=addresses, unowned_name="Linear.weight")
    change = next(iter(program.changes(objects).values()))
    assert change.cause == "gradients that nobody uses" and "such as Linear.weight" in change.sentence
    assert "requires_grad_(False)" in change.words and "results stay the same" in change.effect


@pytest.mark.parametrize(("fails_at", "is_said"), [("forward", True), ("backward", False)])
def test_gradients_that_a_forward_finds_though_a_step_has_used_them(fails_at: str, is_said: bool) -> None:
    """Gradients of a first step, 80 MiB; one that a backward finds may be added to."""
    program = Recorded(capacity=200)
    backward_of(program, 8)
    program.use(1, STEP)
    kept = [program.make(10, layer(7)) for _ in range(3)]
    program.fail(60, layer(8) if fails_at == "forward" else BACKWARD)
    assert kept
    change = program.changes().get("gradients freed late")
    assert (change is not None) is is_said
    if change is not None:
        assert "80.00 MiB in 8 blocks are there as this forward asks for more" in change.sentence


def test_lists_in_an_optimizers_state() -> None:
    program = Recorded(capacity=300)
    listed = [program.make(12, [line(5)]) for _ in range(20)]
    program.fail(100, [line(2)])
    states = (ListedState("LBFGS", "old_dirs", tuple(block.address for block in listed)),)
    change = next(iter(program.changes(replace(objects_of(), listed_states=states)).values()))
    assert (
        "240.00 MiB in 20 blocks" in change.sentence and "history_size: this is with 10 in place of 20" in change.words
    )


def test_a_model_that_is_not_called_any_more() -> None:
    program = Recorded(capacity=300)
    weights = [program.make(50, MOVING) for _ in range(4)]
    program.fail(150, [line(2)])
    model = IdleModel("TextEncoder", "pipeline.text_encoder", tuple(block.address for block in weights))
    change = program.changes(replace(objects_of(), idle_models=(model,)))["idle models"]
    assert "TextEncoder" in change.sentence and "held by pipeline.text_encoder" in change.sentence


@pytest.mark.parametrize(("text", "is_said"), [("with torch.no_grad():", True), ("if True:", False)])
def test_results_of_the_turns_of_one_call(text: str, is_said: bool, tmp_path: Path) -> None:
    script = source(tmp_path, f"def main():\n    {text}\n        model(x)")
    program = Recorded(capacity=300)
    frames = [*layer(7)[:2], line(3, "main", script)]
    for _ in range(10):
        program.use(2, frames)
        program.make(25, frames)
    program.fail(100, [line(2)])
    assert ("results of turns kept" in program.changes()) is is_said


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ("model = model.to(device)\nmodel = model.half()", True),
        ("dtype = torch.bfloat16\nmodel.to(device).to(dtype)", True),
        ("model = model.to(device)\nother = other.half()", False),
        ("model = model.half().to(device)", False),
        ("model = model.to(torch.float16).to(device).eval()", False),
    ],
)
def test_a_model_that_is_cast_behind_its_move(text: str, is_said: bool, tmp_path: Path) -> None:
    script = source(tmp_path, text)
    number = next(number for number, of in enumerate(text.splitlines(), 1) if "to(device)" in of)
    frames = [frame("_apply", f"{TORCH}/nn/modules/module.py", 5), line(number, "<module>", script)]
    program = Recorded(capacity=300)
    for _ in range(5):
        program.make(50, frames)
    program.fail(60, frames)
    assert ("moved before cast" in program.changes()) is is_said


@pytest.mark.parametrize(("parameter", "is_said"), [(7, True), (30, False)])
def test_buffers_of_modules(parameter: int, is_said: bool) -> None:
    """Four of 30 MiB, and a fifth is asked for; as large as a parameter they are likely copies of weights."""
    program = Recorded(capacity=160)
    weight = program.make(parameter, MOVING)
    buffers = [program.make(30, [line(6, "__init__")]) for _ in range(4)]
    program.fail(30, [line(6, "__init__")])
    objects = replace(
        objects_of(),
        buffers=frozenset(block.address for block in buffers),
        parameters=frozenset({weight.address}),
        holders=(held_by(buffers, "model.layers[...].cache", "global variable of train.py"),),
    )
    changes = program.changes(objects)
    assert ("large buffers" in changes) is is_said
    assert "results kept" not in changes
    if is_said:
        sentence = changes["large buffers"].sentence
        assert "such as model.layers[...].cache (global" in sentence and "120.00 MiB in 4 blocks" in sentence


@pytest.mark.parametrize(("source", "is_told"), [("return x[inside]", True), ("return x[:, inside]", False)])
def test_a_tensor_taken_whole_for_each_index(source: str, is_told: bool, tmp_path: Path) -> None:
    """2,048 indices of the first axis of (4, 8, 1024) numbers make 64 MiB."""
    file = tmp_path / "train.py"
    file.write_text(source, "utf-8")
    program = Recorded(capacity=60)
    program.make(10, [line(3)])
    program.fail(64, [line(1, file=str(file))])
    x = Operand("x", str(file), 1, 128 << 10, (4, 8, 1024), "float32")
    inside = Operand("inside", str(file), 1, 16 << 10, (4, 1, 512), "int64")
    found = program.changes(replace(objects_of(), operands=(x, inside)))
    assert ("row for each index" in found) == is_told
    if is_told:
        told = found["row for each index"]
        assert "takes x[i], of shape (8, 1024), for each of the 2,048 indices: 64.00 MiB in one tensor" in told.sentence
        assert told.words.startswith("give an index for each axis")
