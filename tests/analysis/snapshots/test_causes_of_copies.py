"""Copies, other models, data and caches: for each cause a program of a few blocks, and its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.analysis.snapshots.recorded_program import (
    ACCUMULATE,
    BACKWARD,
    FOREACH,
    LOADING,
    MOVING,
    STATE,
    STEP,
    TORCH,
    Recorded,
    first,
    layer,
    line,
    train,
)
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.copies import copies_of_weights
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.snapshot.load import snapshot_in_memory


def test_nothing_in_use_has_no_cause() -> None:
    """A recording of the driver's work alone."""
    program = Recorded()
    program.use(30, [line(1)], freed=[line(2)])
    recording = program.snapshot()
    recording["device_traces"][0] = [row for row in recording["device_traces"][0] if row["action"] == "segment_alloc"]
    replayed = replay_snapshot(snapshot_in_memory(recording))
    assert [*copies_of_weights(Case(replayed.devices[0]))] == []


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
    ("function", "file", "words"),
    [
        ("update", "transformers/cache_utils.py", 'cache_implementation="offloaded"'),
        ("_allocate_kv_cache_tensors", "vllm/v1/worker/gpu_model_runner.py", "set a lower gpu_memory_utilization"),
        ("_create_buffers", "sglang/srt/mem_cache/memory_pool.py", "set a lower mem_fraction_static"),
        ("allocate_inference_cache", "flash_attn/modules/mha.py", "use a smaller batch or a shorter length: this"),
    ],
)
def test_a_cache_of_keys_and_values_by_the_name_of_its_code(function: str, file: str, words: str) -> None:
    program = Recorded(capacity=130)
    for _ in range(10):
        program.make(10, [line(9, function, f"/x/site-packages/{file}"), *layer(8)])
    program.fail(40, layer(9))
    change = first(program)
    assert change.cause == "KV cache"
    assert words in change.words
    assert "holds 100.00 MiB in 10 blocks" in change.sentence


DEEPCOPY = [frame("__deepcopy__", f"{TORCH}/nn/parameter.py", 5), line(4, "copy")]
COPY = [line(4, "copy")]


def _with_copies(sizes: Sequence[int], frames: Any) -> Recorded:
    """Four parameters of two sizes, and a line that makes other blocks, without which a request is served."""
    program = Recorded(capacity=60 + sum(sizes) + 35)
    for size in (10, 20, 10, 20):
        program.make(size, MOVING)
    for size in sizes:
        program.make(size, frames)
    train(program, size=2)
    program.fail(40, layer(7))
    return program


@pytest.mark.parametrize(
    ("sizes", "frames", "words"),
    [
        ((20, 40, 20, 40), COPY, "There are further copies of the weights, or of their gradients, in twice the bits:"),
        ((10, 20, 10, 20), COPY, "There are further copies of the weights:"),
        ((5, 10, 5, 10), COPY, "There are further copies of the weights:"),
        ((10, 20, 10, 20), DEEPCOPY, "copy.deepcopy has made further copies of the weights:"),
    ],
)
def test_copies_of_weights(sizes: tuple[int, ...], frames: Any, words: str) -> None:
    found = _with_copies(sizes, frames).changes()
    assert found["copies of weights"].sentence.startswith(words)
    assert ("torch.autocast" in found["copies of weights"].words) == ("twice" in words)
    assert "data on the device" not in found


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [
        ((20, 20, 20, 20), COPY),  # of one size
        ((10, 20), COPY),  # of two weights in four
        ((10, 20, 10, 20, 30), COPY),  # with as much of another size
        ((10, 10, 10, 20), [COPY[0], *layer(7)]),
        ((10, 20, 10, 20), BACKWARD),
        ((10, 20, 10, 20), STEP),
        ((10, 20, 10, 20), LOADING),
        ((10, 20, 10, 20), []),
    ],
)
def test_blocks_of_the_sizes_of_weights_that_are_no_copies(sizes: tuple[int, ...], frames: Any) -> None:
    assert "copies of weights" not in _with_copies(sizes, frames).changes()


@pytest.mark.parametrize("frames", [BACKWARD, FOREACH])
def test_temporaries_of_a_backward_or_of_a_step_are_no_copies_of_weights(frames: Any) -> None:
    """At the peak their line has a block in use for each weight, of its size."""
    program = Recorded()
    for size in (10, 20, 10, 20):
        program.make(size, MOVING)
    program.use(1, layer(7), freed=BACKWARD)
    for block in [program.make(size, frames) for size in (10, 20, 10, 20)]:
        program.free(block, frames)
    program.make(1, ACCUMULATE)
    assert "copies of weights" not in program.changes()


@pytest.mark.parametrize(
    ("batch", "is_behind", "kept", "is_data"),
    [(5, True, 5, True), (5, False, 5, False), (10, True, 5, False), (5, True, 60, False)],
)
def test_a_set_of_data_before_a_first_backward(batch: int, is_behind: bool, kept: int, is_data: bool) -> None:
    """A batch of it is far smaller and made behind it, and the model keeps less of it than the data is."""
    program = Recorded(capacity=350 + batch + 2 * kept)
    for size, number in ((50, 4), (50, 4), (batch, 5)) if is_behind else ((batch, 5), (50, 4), (50, 4)):
        program.make(size, [line(number)])
    program.make(60, MOVING)
    for _ in range(2):
        program.make(kept, layer(7))
    program.fail(200, [line(6)])
    assert ("data on the device" in program.changes()) is is_data


def _step(program: Recorded, gradients: Sequence[int]) -> list[Block]:
    """Forward, backward and a step of the optimizer; returns the gradients."""
    kept = [program.make(1, layer(7)) for _ in gradients]
    for block in kept:
        program.free(block, BACKWARD)
    made = [program.make(size, ACCUMULATE) for size in gradients]
    program.use(1, STEP)
    return made


@pytest.mark.parametrize(
    ("sizes", "gradients", "is_frozen"),
    [
        ((30, 50), (10, 20), True),
        ((10, 20, 10, 20), (10, 20), True),
        ((30, 50, 20), (10, 20, 20), True),  # a fifth is trained
        ((30, 50, 40), (10, 20, 40), False),  # a third
        ((12, 13), (10, 20), False),  # too small
        ((30, 50), (), False),  # nothing is trained
    ],
)
def test_models_without_gradients_beside_one_that_is_trained(
    sizes: tuple[int, ...], gradients: tuple[int, ...], is_frozen: bool
) -> None:
    """Parameters of 10 and 20 MiB are trained; the others' line comes behind, of other sizes or of the same."""
    program = Recorded(capacity=80 + 30 + sum(sizes) + sum(gradients))
    for size in (10, 20):
        program.make(size, [MOVING[0], line(1)])
    for size in sizes:
        program.make(size, [MOVING[0], line(2)])
    _step(program, gradients)
    program.fail(80 + sum(sizes) // 2, layer(7))
    found = program.changes()
    assert ("frozen models" in found) is is_frozen
    if is_frozen:
        assert f"{sum(sizes)}.00 MiB in {len(sizes)} blocks (/home/me/train.py:2)" in found["frozen models"].sentence


def test_a_frozen_model_beside_two_whose_optimizers_step_in_turn() -> None:
    """Each has its gradients at its own step alone; the frozen one has the sizes of the first."""
    program = Recorded(capacity=112)
    models = (10, 20), (5, 15), (10, 20)
    for number, sizes in enumerate(models, start=1):
        for size in sizes:
            program.make(size, [MOVING[0], line(number)])
    for _ in range(2):
        for sizes in models[:2]:
            for block in _step(program, sizes):
                program.free(block, [line(9)])
    program.fail(40, layer(7))
    assert "30.00 MiB in 2 blocks (/home/me/train.py:3)" in program.changes()["frozen models"].sentence
