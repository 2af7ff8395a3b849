"""Causes by copies, facts of the source, and the order of changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.allocator.recorded import MIB, Program
from tests.blocks.from_snapshot.recorded_program import (
    ACCUMULATE,
    BACKWARD,
    FOREACH,
    LOADING,
    MOVING,
    STATE,
    STEP,
    TORCH,
    Recorded,
    explain,
    first,
    fragmented,
    full,
    layer,
    line,
    screen,
    train,
)
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.answers.allocator.allocator_finding import explain_allocator
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.why.case import Case
from tracer.answers.why.copies import copies_of_weights
from tracer.answers.why.first_changes import FirstChange
from tracer.answers.why.source import reaches_backward_behind, updates_itself
from tracer.blocks.from_snapshot.sites import Site
from tracer.snapshot.load import snapshot_in_memory


# ---- Copies, other models, data and caches: for each cause a program of a few blocks, and its sentence.
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
    assert "40.00 MiB made in earlier steps" in change.sentence and "60.00 MiB in 3 blocks" in change.sentence
    assert change.allocated_before_bytes - change.allocated_bytes == 40 << 20


@pytest.mark.parametrize("again", [False, True])
def test_an_optimizer_that_steps_again_at_its_own_line_is_in_use(again: bool) -> None:
    program = Recorded()
    for _ in range(2):
        program.make(20, MOVING)
    for nth, place in enumerate((5, 6, 5 if again else 6)):
        step = [frame("step", f"{TORCH}/optim/adam.py", 5), line(place)]
        for at in range(3):
            made = [*(program.make(10, layer(7)) for _ in range(4)), program.make(10, BACKWARD)]
            for block in made:
                program.free(block, BACKWARD)
            program.use(1, step)
            for _ in range(2 * (at == 0 and nth < 2)):
                program.make(20, [frame("_init_group", f"{TORCH}/optim/adam.py", 4), *step])
    assert ("other models" in program.changes()) == (not again)


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
    ("text", "cause"), [("torch.zeros_like(w)", "state by hand"), ("w.detach().clone()", "copies of weights")]
)
def test_moments_that_a_program_makes_are_no_copies(text: str, cause: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"first = [{text} for w in weights]\n")
    found = _with_copies((10, 20, 10, 20), [frame("<listcomp>", str(script), 1)]).changes()
    assert {"state by hand", "copies of weights"} & set(found) == {cause}


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [
        ((20, 20, 20, 20), COPY),  # of one size
        ((5, 8, 5, 8), DEEPCOPY),  # layers that are made of one, which is gone
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


# ---- What the source says of a line.
SUM = "total = 0\nfor x in data:\n    out = model(x)\n    total += loss(out)\ntotal.backward()\n"
UNROLLED = (
    "for task in tasks:\n"
    "    for _ in range(5):\n"
    "        value = loss(model(task))\n"
    "        fast = [w - g for w, g in zip(fast, torch.autograd.grad(value, fast, create_graph=True))]\n"
    "    (loss(call(model, fast))).backward()\n"
)

BLOCKS = "for x in data:\n    out = model(x)\n    with lock:\n        kept = out\nif kept:\n    kept.backward()\n"


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        (SUM, 3, True),
        (SUM.replace("total.backward", "other.backward"), 3, False),
        ("for x in data:\n    out = model(x)\n    out.backward()\n", 2, False),
        ("for x in data:\n    self.out['a'].append(model(x))\nscaler.backward(sum(self.out['a']))\n", 2, True),
        ("for x in data:\n    a, (b, *c) = model(x)\ntorch.autograd.grad(c, w)\n", 2, True),
        (UNROLLED, 3, True),
        (f"def one():\n    out = model(x)\n    return out\n\n\n{SUM}", 2, False),
        (BLOCKS, 2, True),
        (f"{SUM.replace('total.backward', 'out = model(y)~out.backward')}".replace("~", "\n"), 3, False),
        ("while data:\n    out = model(x)\n    out.backward()\n", 2, False),
        ("for x in data:\n    out = model(x)\ndef later():\n    out.backward()\n", 2, False),
        ("for x in data:\n    out = model(x)\nself.manual_backward(out)\n", 2, True),
        ("this is no source", 1, False),
    ],
)
def test_whether_a_backward_behind_the_loop_needs_a_value(
    source: str, line: int, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    assert reaches_backward_behind(Site("main", str(file), line)) is expected


@pytest.mark.parametrize("file", ["missing.py", None])
def test_a_file_that_is_not_here_says_nothing(file: str | None) -> None:
    assert not reaches_backward_behind(Site("main", file, 3))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("mean = 0.9 * mean + x.mean()", True),
        ("self.p = self.p - k @ k.t()", True),
        ("total += loss", True),
        ("kept = kept + [x]", False),
        ("mean = other + x.mean()", False),
        ("kept.append(mean + x)", False),
        ("kept[0] = kept[1] + x", False),
    ],
)
def test_a_variable_that_is_computed_from_its_own_value(source: str, expected: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for x in data:\n    {source}\n")
    assert updates_itself(Site("main", str(file), 2)) is expected


# ---- What to try first: programs of a few blocks, the peaks with and without each change worked out by hand.
MODULE = [
    frame("forward", "/home/me/model.py", 7),
    frame("_call_impl", "/x/torch/nn/modules/module.py", 1),
    frame("main", "/home/me/train.py", 3),
]
HEAD = [frame("head", "/home/me/model.py", 9), *MODULE]
LOOP = [frame("main", "/home/me/train.py", 3)]
IN_DDP = [*MODULE[:2], frame("_run_ddp_forward", "/x/torch/nn/parallel/distributed.py", 4), *MODULE[1:]]
BUCKETS = [frame("_ddp_init_helper", "/x/torch/nn/parallel/distributed.py", 2), *LOOP]
LOSS = [frame("cross_entropy", "/x/torch/nn/functional.py", 9), frame("main", "/home/me/train.py", 4)]
SGD_STEP = [frame("step", "/x/torch/optim/sgd.py", 5), frame("main", "/home/me/train.py", 5)]
SGD_FOREACH = [frame("_multi_tensor_sgd", "/x/torch/optim/sgd.py", 9), *SGD_STEP]
ZERO_GRAD = [frame("zero_grad", "/x/torch/optim/optimizer.py", 2), frame("main", "/home/me/train.py", 2)]


def allocated(change: FirstChange) -> tuple[int, int]:
    return change.allocated_before_bytes // MIB, change.allocated_bytes // MIB


def test_fused_makes_no_temporaries() -> None:
    program = Recorded()
    weights = program.make(100, MODULE)
    temporaries = [program.make(20, SGD_FOREACH) for _ in range(10)]
    for block in temporaries:
        program.free(block, SGD_FOREACH)
    found = program.changes()
    assert allocated(found["optimizer temporaries"]) == (300, 100)
    assert "200.00 MiB in 10 blocks" in found["optimizer temporaries"].sentence
    assert "largest line" not in found  # the line of the same blocks: the first one says what to do about them
    assert weights


def with_logits_kept(num_iterations: int) -> dict[str, FirstChange]:
    """Changes of a loop that lets go of its logits so many iterations later."""
    program = Recorded()
    held: list[Block] = []
    for _ in range(num_iterations + 2):
        hidden, logits = program.make(100, MODULE), program.make(50, HEAD)
        if len(held) == num_iterations:
            program.free(held.pop(0), LOOP)
        program.free(hidden, BACKWARD)
        program.use(20, BACKWARD)
        program.use(20, SGD_STEP)
        held.append(logits)
    return program.changes()


def test_a_variable_that_lives_into_the_next_iteration() -> None:
    found = with_logits_kept(1)
    assert allocated(found["held over the step"]) == (200, 150)
    assert found["held over the step"].site is not None
    assert found["held over the step"].site.file == "/home/me/model.py"
    assert "held over the step" not in with_logits_kept(3)  # kept for good, or for long


def test_gradients_that_wait_for_zero_grad() -> None:
    program, gradient = Recorded(), None
    weight = program.make(60, MODULE)
    for _ in range(3):
        hidden = program.make(100, MODULE)
        if gradient is not None:
            program.free(gradient, ZERO_GRAD)
        program.free(hidden, BACKWARD)
        gradient = program.make(60, ACCUMULATE)
        program.use(10, SGD_STEP)
    found = program.changes()
    assert allocated(found["gradients freed late"]) == (220, 160)
    assert weight


@pytest.mark.parametrize("buckets", [60, 20])
def test_gradients_beside_buckets_of_the_same_bytes(buckets: int) -> None:
    """At 170 + 60 MiB; a bucket that is smaller is no copy of them."""
    program = Recorded()
    kept = [program.make(60, MODULE), program.make(buckets, BUCKETS)]
    for _ in range(2):
        hidden = program.make(50, IN_DDP)
        gradient = program.make(60, ACCUMULATE)
        program.free(hidden, BACKWARD)
        program.use(10, SGD_STEP)
        program.free(gradient, ZERO_GRAD)
    found = program.changes()
    if buckets < 60:
        assert "gradients beside buckets" not in found
    else:
        assert allocated(found["gradients beside buckets"]) == (230, 170)
        assert "2 blocks of gradients" in found["gradients beside buckets"].sentence
    assert kept


def test_the_loss_in_parts() -> None:
    program = Recorded()
    hidden = program.make(100, MODULE)
    log_softmax = program.make(80, LOSS)
    program.use(20, BACKWARD)
    program.free(log_softmax, BACKWARD)
    program.free(hidden, BACKWARD)
    assert allocated(program.changes()["logits"]) == (200, 140)


def test_emptying_between_phases() -> None:
    """The 120 MiB of forward are too few for the 125 of the optimizer's, which take a segment of 126."""
    program = Recorded()
    program.use(120, MODULE, freed=BACKWARD)
    program.use(2, BACKWARD)
    program.use(125, SGD_STEP)
    found = program.changes()
    change = found["cached memory"]
    assert (change.reserved_before_bytes, change.reserved_bytes) == (246 * MIB, 126 * MIB)


def test_the_line_that_fills_the_peak_comes_last() -> None:
    program = Recorded()
    kept = [program.make(30, MODULE) for _ in range(4)] + [program.make(100, [frame("load", "/home/me/data.py", 2)])]
    for block in kept[:4]:
        program.free(block, BACKWARD)
    found = program.changes()
    assert list(found) == ["largest line"]
    assert allocated(found["largest line"]) == (220, 100)
    assert "4 blocks there (activation)" in found["largest line"].words


def test_no_more_than_three_and_none_below_a_hundredth() -> None:
    program = Recorded()
    large = program.make(1000, [])
    program.use(9, SGD_FOREACH)
    assert program.changes() == {}
    assert large


def test_expandable_segments_where_the_peak_is_in_pieces() -> None:
    found = explain(fragmented().snapshot())
    assert found.first is not None
    (change,) = found.first.changes
    assert change.words == "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert change.reserved_bytes < change.reserved_before_bytes
    assert "What to try first" in screen(found)


def test_of_a_long_recording_that_had_enough_memory_no_settings_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.answers.why.first_changes.LONG_HISTORY", 3)
    found = explain(fragmented().snapshot())
    assert found.first is not None and not found.first.changes
    failed = explain(full().snapshot())
    assert failed.first is not None and failed.first.changes


def test_of_a_failed_request_only_what_serves_it() -> None:
    found = explain(full().snapshot())
    assert found.first is not None
    assert [(change.words, change.num_served) for change in found.first.changes] == [
        ("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 1)
    ]
    assert "1 of 1" in screen(found)


def test_that_nothing_helps_is_one_line() -> None:
    program = Recorded()
    large = program.make(1000, [])
    assert "None that was tried in a replay lowers the peak by 1 %." in screen(explain(program.allocator.snapshot()))
    assert large


@pytest.mark.parametrize(("scale", "is_said"), [(1, False), (10, True)])
def test_a_few_megabytes_in_pieces_are_no_reason_for_a_setting(scale: int, is_said: bool) -> None:
    """30 MiB of some GPU, where no request failed; 300 MiB are worth a setting."""
    program = Program(0)
    for piece in [program.allocator.allocate(12 * scale * MIB) for _ in range(3)]:
        program.allocator.free(piece)
    program.allocator.allocate(36 * scale * MIB)
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot()))
    finding = explain_allocator(replayed.devices[0])
    assert finding.first is not None
    assert any(change.cause == "fragmentation" for change in finding.first.changes) is is_said


@pytest.mark.parametrize(("is_called", "sizes"), [(True, (20, 12)), (False, (20, 12)), (True, (12, 20))])
def test_a_model_is_made_again_where_another_one_was_called_that_has_its_sizes(
    is_called: bool, sizes: tuple[int, ...]
) -> None:
    program = Recorded(capacity=530)
    for size in (20, 12) * 10:
        program.make(size, MOVING)
    if is_called:
        program.free(program.make(1, layer(7)), layer(7))
    for size in sizes * 6:
        program.make(size, MOVING)
    program.fail(20, MOVING)
    told = program.changes()
    assert ("made again" in told) == (is_called and sizes == (20, 12))
    if "made again" in told:
        assert told["made again"].sentence == (
            "The model that is being made looks like one that is there: 192.00 MiB in 12 blocks (/home/me/train.py:2) "
            "have, in order, the sizes of 192.00 MiB in 12 blocks from before."
        )
