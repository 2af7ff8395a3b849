"""Why memory is full: for each cause a program of a few blocks, what is said first, and what it comes to without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.allocator.recorded import MIB
from tests.analysis.snapshots.allocator_samples import explain
from tests.analysis.snapshots.recorded_program import Recorded
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.copies import copies_of_weights
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.first_changes import FirstChange, first_changes
from tracer.analysis.snapshots.modelled import model_device
from tracer.capture.objects.objects_at_failure import ObjectsAtFailure
from tracer.snapshot.load import snapshot_in_memory

TORCH = "/x/site-packages/torch"
BACKWARD = [frame("torch::autograd::Engine::evaluate_function(x)", "??", 0)]
MODULE_CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1)


def line(number: int, function: str = "main", file: str = "/home/me/train.py") -> dict[str, Any]:
    return frame(function, file, number)


def layer(number: int, caller: int = 3) -> list[dict[str, Any]]:
    """A line of a model's forward, called by a line of the program."""
    return [line(number, "forward", "/home/me/model.py"), MODULE_CALL, line(caller)]


def linear(number: int, caller: int = 3) -> list[dict[str, Any]]:
    return [frame("forward", f"{TORCH}/nn/modules/linear.py", 9), MODULE_CALL, *layer(number, caller)]


LOADING = [frame("restore_location", f"{TORCH}/serialization.py", 5), line(1)]
MOVING = [frame("_apply", f"{TORCH}/nn/modules/module.py", 5), line(2)]
STEP = [frame("step", f"{TORCH}/optim/adam.py", 5), line(5)]
STATE = [frame("_init_group", f"{TORCH}/optim/adam.py", 4), *STEP]
SECOND_STATE = [frame("_init_group", f"{TORCH}/optim/adam.py", 6), *STEP]
FOREACH = [frame("_multi_tensor_adam", f"{TORCH}/optim/adam.py", 9), *STEP]


def train(program: Recorded, *, forward: int = 4, size: int = 10) -> None:
    """A step that ends where it began."""
    batch = program.make(size, [line(2)])
    kept = [program.make(size, layer(7)) for _ in range(forward)]
    gradient = program.make(size, BACKWARD)
    for block in [*kept, gradient, batch]:
        program.free(block, BACKWARD)
    program.free(program.make(1, STEP), STEP)


def backward_of(program: Recorded, number: int) -> None:
    """Parameters of 10 MiB each, a forward pass, and the first gradients."""
    for _ in range(number):
        program.make(10, MOVING)
    for block in [program.make(10, layer(7)) for _ in range(number)]:
        program.free(block, BACKWARD)
        program.make(10, [frame("torch::autograd::AccumulateGrad::apply(x)", "??", 0), *BACKWARD])


def first(program: Recorded) -> FirstChange:
    return next(iter(program.changes().values()))


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
    ("source", "cause"), [("p = p - k @ k.t()", "graphs kept"), ("ps.append(p - k @ k.t())", "results kept")]
)
def test_a_variable_that_is_updated_from_itself_holds_one_value_without_a_graph(
    source: str, cause: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"for x in data:\n    train(x)\n    {source}\n")
    program = Recorded(capacity=300)
    for _ in range(8):
        train(program)
        program.make(20, [line(3, "<module>", str(script))])
    program.fail(150, [line(2)])
    assert first(program).cause == cause


@pytest.mark.parametrize("kept", [1, 0])
def test_results_of_iterations_before_the_recording(kept: int) -> None:
    """Four of six passes were over before a second recording began; the stacks of their results are known."""
    program = Recorded(capacity=300)
    begins: list[int] = []
    for number in range(6):
        begins.append(len(program.allocator.history))
        passing = program.make(10, layer(7))
        result = program.make(30, [line(9)])
        program.free(passing, [line(2)])
        if number < 4 and not kept:
            program.free(result, [line(2)])
    program.fail(150 if kept else 300, [line(2)])
    recording = program.snapshot()
    frames = {row["addr"]: row["frames"] for row in recording["device_traces"][0] if row["action"] == "alloc"}
    for segment in recording["segments"]:
        for block in segment["blocks"]:
            block["frames"] = frames.get(block["address"], [])
    del recording["device_traces"][0][: begins[4]]
    (change, *_) = explain(recording).first.changes  # type: ignore[union-attr]
    assert (change.cause == "results kept") is bool(kept)
    assert not kept or "each of 5 iterations left 30.00 MiB, 150.00 MiB in 5 blocks" in change.sentence


@pytest.mark.parametrize(
    ("learns", "words"),
    [
        ("sum(losses).backward()", "call backward() for each part of a batch"),
        ("print(losses)", "evaluate under `with torch.no_grad():`; in a training,"),
    ],
)
def test_graphs_that_one_backward_behind_the_loop_needs(learns: str, words: str, tmp_path: Path) -> None:
    """Nothing learned so far: whether it is a training is in the source."""
    script = tmp_path / "train.py"
    script.write_text(f"losses = []\nfor x in data:\n    losses.append(loss(model(x)))\n{learns}\n")
    program = Recorded(capacity=420)
    for _ in range(8):
        program.free(program.make(1, [line(2)]), [line(2)])
        for number in range(4):
            program.make(10, [*layer(7 + number)[:2], line(3, "<module>", str(script))])
    program.fail(110, [line(2)])
    change = first(program)
    assert change.cause == "graphs kept"
    assert change.words.startswith(words)


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
        program.free(program.make(1, [line(2)]), [line(2)])
        new = program.make(10 * length, caller)
        if old is not None:
            program.free(old, caller)
        old = new
    program.fail(150, caller)
    found = program.changes()
    assert next(iter(found)) == cause
    assert "10.00 MiB at first" in found[cause].sentence


def test_nothing_in_use_has_no_cause() -> None:
    """A recording of the driver's work alone."""
    program = Recorded()
    program.free(program.make(30, [line(1)]), [line(2)])
    recording = program.snapshot()
    recording["device_traces"][0] = [row for row in recording["device_traces"][0] if row["action"] == "segment_alloc"]
    replayed = replay_snapshot(snapshot_in_memory(recording))
    assert [*copies_of_weights(Case(replayed, replayed.devices[0]))] == []


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


def test_a_validation_with_gradients() -> None:
    """Two calls of another line than the training's, each with 10 blocks kept and no backward."""
    program = Recorded(capacity=320)
    train(program, forward=9)
    last: list[Block] = []
    for _ in range(2):
        batch = program.make(10, [line(12)])
        kept = [program.make(12, layer(7, caller=13)) for _ in range(10)]
        for block in last:
            program.free(block, [line(13)])
        last = [batch, *kept]
    program.fail(200, [line(14)])
    change = first(program)
    assert change.cause == "gradients in evaluation"
    assert "/home/me/train.py:13 without a backward behind it" in change.sentence
    assert "torch.no_grad()" in change.words


def test_the_first_forward_of_a_training_is_no_evaluation() -> None:
    program = Recorded(capacity=220)
    program.make(10, [line(2)])
    for _ in range(20):
        program.make(10, layer(7))
    program.fail(20, layer(7))
    assert "gradients in evaluation" not in program.changes()


@pytest.mark.parametrize(
    ("caller", "is_inference"),
    [
        (line(206, "_decode", "/x/site-packages/diffusers/models/autoencoders/autoencoder_kl.py"), True),
        (line(3), False),  # the program calls the whole, as a training does
    ],
)
def test_a_first_call_of_a_decoder_by_its_library_is_an_inference(caller: dict[str, Any], is_inference: bool) -> None:
    program = Recorded(capacity=220)
    inner = [line(7, "forward", "/x/site-packages/diffusers/models/autoencoders/vae.py"), MODULE_CALL]
    decoding = [*inner, caller, *([line(3)] if is_inference else ())]
    program.make(10, [line(2)])
    for _ in range(20):
        program.make(10, decoding)
    program.fail(20, decoding)
    changes = program.changes()
    assert "decoding at full size" in changes
    assert next(iter(changes)) == ("gradients in evaluation" if is_inference else "decoding at full size")


def test_a_first_forward_that_frees_most_of_its_blocks_keeps_the_large_ones_for_its_backward() -> None:
    """Of two blocks' tensors half are freed on the way, and a workspace is: three of eight are left, 64 % of bytes."""
    program = Recorded(capacity=200)
    program.make(10, [line(2)])
    program.free(program.make(1, layer(6)), layer(6))
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


def test_a_checkpoint_of_which_the_model_has_a_copy() -> None:
    """Three sets are loaded; the model copies one, and the optimizer takes over the other two."""
    program = Recorded(capacity=200)
    for _ in range(3):
        for size in (20, 15):
            program.make(size, LOADING)
    for size in (20, 15):
        program.make(size, MOVING)
    program.make(40, layer(7))
    program.fail(45, layer(8))
    change = first(program)
    assert change.cause == "checkpoint left"
    assert "35.00 MiB in 2 blocks" in change.sentence
    assert 'map_location="cpu"' in change.words


def test_weights_that_were_loaded_to_the_device_and_are_used_there_are_no_copy() -> None:
    program = Recorded(capacity=200)
    for size in (40, 30):
        program.make(size, LOADING)
    program.make(60, layer(7))
    program.fail(90, layer(8))
    assert "checkpoint left" not in program.changes()


def test_a_model_that_was_trained_before() -> None:
    """Two models of 20 MiB, and state of the first (40) of earlier steps; without them its own step is the peak."""
    program = Recorded()
    for _ in range(2):
        program.make(20, MOVING)
    for _ in range(2):
        for at in range(3):
            train(program)
            if at == 0:
                program.make(20, STATE)
                program.make(20, STATE)
    change = program.changes()["other models"]
    assert "40.00 MiB of optimizer state" in change.sentence and "60.00 MiB in 3 blocks" in change.sentence
    assert change.allocated_before_bytes - change.allocated_bytes == 40 << 20


def test_the_logits_and_their_copies() -> None:
    """100 MiB of logits, and 200 for each of two copies in full precision, the second of which fails."""
    program = Recorded(capacity=480)
    program.make(20, MOVING)
    program.make(10, [line(2)])
    program.make(10, linear(7))
    program.make(10, linear(8))
    program.make(100, linear(9))
    program.make(200, [line(4)])
    program.fail(200, [line(5)])
    change = first(program)
    assert change.cause == "logits"
    assert "The logits (100.00 MiB)" in change.sentence and "200.00 MiB more were asked for" in change.sentence


def test_a_layer_as_large_as_the_others_makes_no_logits() -> None:
    program = Recorded(capacity=380)
    for number in (7, 8, 9):
        program.make(100, linear(number))
    program.fail(100, [line(5)])
    assert "logits" not in program.changes()


def test_the_first_step_of_an_optimizer_and_its_temporaries() -> None:
    program = Recorded(capacity=240)
    program.make(40, MOVING)
    program.free(program.make(40, layer(7)), BACKWARD)
    program.make(40, BACKWARD)
    for _ in range(2):
        program.make(40, STATE)
    program.make(40, FOREACH)
    program.fail(60, FOREACH)
    change = first(program)
    assert change.cause == "optimizer temporaries"
    assert "the optimizer's first step, which makes its state (80.00 MiB" in change.sentence
    assert "fused=True" in change.words


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


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_kept_exception_holds(is_kept: bool) -> None:
    """An attempt of five blocks fails in its forward, and the next one fails as it makes its model."""
    program = Recorded(capacity=210)
    blocks = [program.make(40, layer(7)) for _ in range(5)]
    program.fail(40, layer(7))
    for block in [] if is_kept else blocks:
        program.free(block, [line(4)])
    program.fail(20 if is_kept else 300, MOVING)
    found = program.changes()
    assert ("held by a traceback" in found) is is_kept
    assert not is_kept or "str(error)" in first(program).words


def test_a_forward_that_goes_on_after_a_failure_holds_nothing() -> None:
    """A layer that catches a failure and takes another way; the optimizer runs out of memory later."""
    program = Recorded(capacity=210)
    for _ in range(3):
        program.make(40, layer(7))
    program.fail(120, layer(7))
    program.make(40, layer(8))
    program.fail(120, STEP)
    assert "held by a traceback" not in program.changes()


def test_a_library_that_asks_again_for_less_holds_nothing() -> None:
    program = Recorded(capacity=210)
    for _ in range(5):
        program.make(40, layer(7))
    program.fail(40, layer(7))
    program.fail(20, layer(7))
    assert "held by a traceback" not in program.changes()


def test_attention_as_a_matrix() -> None:
    """By the name of the function: 64 MiB of scores and of weights, beside layers of 4."""
    scores = [line(20, "eager_attention", "/home/me/model.py"), *layer(8)]
    program = Recorded(capacity=240)
    for _ in range(3):
        program.make(4, linear(7))
    for _ in range(3):
        program.make(64, scores)
    program.fail(64, scores)
    change = first(program)
    assert change.cause == "attention matrix"
    assert "192.00 MiB in 3 blocks" in change.sentence
    assert "scaled_dot_product_attention" in change.words


def test_a_batch_that_is_longer_than_all_before() -> None:
    """Lines that made 10 MiB in three steps make 60."""
    program = Recorded(capacity=340)
    for _ in range(3):
        train(program)
    program.make(60, [line(2)])
    for _ in range(4):
        program.make(60, layer(7))
    program.fail(60, layer(7))
    change = first(program)
    assert change.cause == "long batch"
    assert "blocks 6 times as large, 300.00 MiB in 5 blocks" in change.sentence


def test_memory_that_streams_keep_for_themselves() -> None:
    program = Recorded()
    for stream in range(5):
        program.free(program.make(50, [line(2)], stream=stream), [line(2)])
    change = first(program)
    assert change.cause == "stranded in streams"
    assert (change.reserved_before_bytes, change.reserved_bytes) == (250 << 20, 50 << 20)


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
        program.free(program.make(2, STEP), STEP)
    program.fail(118, [line(2)])
    found = program.changes()
    assert [*found] == ["graphs kept", "largest line", "fragmentation"]
    assert found["fragmentation"].num_served == 1
    assert found["fragmentation"].words.endswith("expandable_segments:True (memory grows: that is for a while)")


def decoder(number: int, caller: int = 3) -> list[dict[str, Any]]:
    """A line of a layer's forward, which the model's forward calls in a loop."""
    inner = line(number, "forward", "/home/me/layers.py")
    return [inner, MODULE_CALL, *layer(20, caller)]


def test_parts_that_repeat_are_checkpointed() -> None:
    """Eight calls of a layer keep 3 x 10 MiB each; of seven a checkpoint keeps the last block: 140 MiB fewer."""
    program = Recorded(capacity=300)
    program.make(10, [line(2)])
    for _ in range(8):
        for number in (7, 8, 9):
            program.make(10, decoder(number))
    program.fail(100, [line(4)])
    change = first(program)
    assert change.cause == "repeated parts" and change.num_served == 1
    assert change.allocated_before_bytes - change.allocated_bytes >= 40 << 20  # of the peak with what is then served
    assert change.sentence.startswith("8 calls of forward (/home/me/layers.py:7) keep their activations for backward")
    assert "140.00 MiB in 14 blocks" in change.sentence
    assert "torch.utils.checkpoint" in change.words


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("layers.py", "class Decoder:\n    def forward(self, x):\n" + "        x = x + 1\n" * 9, "Decoder"),
        ("layers.py", "class Decoder(:\n", "forward"),
        ("layers.py", "(" * 100_000, "forward"),
        ("missing.py", None, "forward"),
    ],
)
def test_a_part_has_the_name_of_its_class_where_its_source_is_here(
    name: str, text: str | None, named: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text, "utf-8")
    program = Recorded(capacity=300)
    for _ in range(8):
        for number in (7, 8, 9):
            program.make(10, [line(number, "forward", str(file)), MODULE_CALL, *layer(20)])
    program.fail(100, [line(4)])
    assert first(program).sentence.startswith(f"8 calls of {named} ({file}:7)")


def test_the_layers_of_a_public_library_have_a_switch() -> None:
    program = Recorded(capacity=300)
    library = "/x/site-packages/transformers/models/llama/modeling_llama.py"
    for _ in range(8):
        for number in (7, 8, 9):
            program.make(10, [line(number, "forward", library), MODULE_CALL, *layer(20)])
    program.fail(100, [line(4)])
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
    (change, *_) = explain(recorded).first.changes  # type: ignore[union-attr]
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


def test_a_whole_set_of_data_on_the_device() -> None:
    program = Recorded(capacity=240)
    program.make(150, [line(1)])
    for _ in range(3):
        train(program)
    for _ in range(4):
        program.make(10, layer(7))
    program.fail(80, layer(7))
    change = first(program)
    assert change.cause == "data on the device"
    assert change.sentence.startswith("150.00 MiB in 1 block (/home/me/train.py:1)")


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("update", "transformers/cache_utils.py"),
        ("_allocate_kv_cache_tensors", "vllm/v1/worker/gpu_model_runner.py"),
        ("_create_buffers", "sglang/srt/mem_cache/memory_pool.py"),
        ("allocate_inference_cache", "flash_attn/modules/mha.py"),
    ],
)
def test_a_cache_of_keys_and_values_by_the_name_of_its_code(function: str, file: str) -> None:
    program = Recorded(capacity=130)
    for _ in range(10):
        program.make(10, [line(9, function, f"/x/site-packages/{file}"), *layer(8)])
    program.fail(40, layer(9))
    change = first(program)
    assert change.cause == "KV cache"
    assert ('cache_implementation="offloaded"' in change.words) == file.startswith("transformers/")
    assert "holds 100.00 MiB in 10 blocks" in change.sentence


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
    assert change.sentence.startswith("The call of the model at /home/me/train.py:13 is larger than those before")
    assert "smaller batches there" in change.words


def test_two_optimizers_that_step_in_turn_make_one_iteration() -> None:
    """Each of 10 iterations keeps 2 x 10 MiB; 8 are over before the last whole one."""
    program = Recorded(capacity=400)
    critic = [frame("step", f"{TORCH}/optim/adam.py", 5), line(6)]
    for _ in range(10):
        for step, number in ((STEP, 7), (critic, 8)):
            passing = program.make(5, layer(number))
            program.make(10, layer(number + 10))
            program.free(passing, BACKWARD)
            program.free(program.make(1, step), step)
    program.fail(230, [line(2)])
    assert "each of 8 steps left 20.00 MiB, 160.00 MiB in 16 blocks" in first(program).sentence


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
    assert "40.00 MiB of optimizer state" in found["other models"].sentence


@pytest.mark.parametrize(
    ("num_calls", "kept"),
    [
        (20, "114.00 MiB in 38 blocks (/home/me/model.py:7), some 6.00 MiB each,"),
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
        program.free(program.make(1, layer(6)), [line(3)])
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
    release = [frame("torch::autograd::generated::MmBackward0::release_variables()", "??", 0), *BACKWARD]
    program = Recorded(capacity=210)
    for _ in range(2):
        program.make(3, MOVING)
    train(program)
    for _ in range(4):
        program.make(10, layer(7))
    made = [program.make(10, BACKWARD) for _ in range(4)]
    program.free(program.make(1, BACKWARD), BACKWARD)
    program.make(10, layer(8))
    program.fail(130, layer(9))
    for block in made:
        program.free(block, release if has_graph else [line(9)])
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
    for _ in range(2):
        program.make(20, layer(7))
    program.make(30, layer(8))
    program.fail(50, layer(asked_at))
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot()))
    (device,) = replayed.devices
    lives = device.replay.lives
    addresses = frozenset(lives.addr[lives.requested_bytes == 20 * MIB].tolist())
    objects = ObjectsAtFailure(is_evaluating=False, is_training=True, untrained=frozenset(), float64=addresses)
    first = first_changes(replayed, device, model_device(device), objects=objects)
    assert first is not None
    found = [change for change in first.changes if change.cause == "float64"]
    assert [change.num_served for change in found] == ([1] if asked_at == 7 else [])
    assert all("40.00 MiB in 2 blocks" in change.sentence for change in found)
