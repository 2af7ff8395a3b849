"""What to try first: programs of a few blocks, the peaks with and without each change worked out by hand."""

from __future__ import annotations

import pytest

from tests.allocator.recorded import MIB, Program
from tests.analysis.snapshots.allocator_samples import explain, fragmented, full, screen
from tests.analysis.snapshots.recorded_program import ACCUMULATE, BACKWARD, Recorded
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.analysis.snapshots.allocator_finding import explain_allocator
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.first_changes import FirstChange
from tracer.snapshot.load import snapshot_in_memory

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
STEP = [frame("step", "/x/torch/optim/sgd.py", 5), frame("main", "/home/me/train.py", 5)]
FOREACH = [frame("_multi_tensor_sgd", "/x/torch/optim/sgd.py", 9), *STEP]
ZERO_GRAD = [frame("zero_grad", "/x/torch/optim/optimizer.py", 2), frame("main", "/home/me/train.py", 2)]


def allocated(change: FirstChange) -> tuple[int, int]:
    return change.allocated_before_bytes // MIB, change.allocated_bytes // MIB


def test_fused_makes_no_temporaries() -> None:
    program = Recorded()
    weights = program.make(100, MODULE)
    temporaries = [program.make(20, FOREACH) for _ in range(10)]
    for block in temporaries:
        program.free(block, FOREACH)
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
        program.use(20, STEP)
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
        program.use(10, STEP)
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
        program.use(10, STEP)
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
    program.use(125, STEP)
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
    program.use(9, FOREACH)
    assert program.changes() == {}
    assert large


def test_expandable_segments_where_the_peak_is_in_pieces() -> None:
    found = explain(fragmented().snapshot())
    assert found.first is not None
    (change,) = found.first.changes
    assert change.words == "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert change.reserved_bytes < change.reserved_before_bytes
    assert "What to try first" in screen(found)


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
    assert "No change that was tried in a replay lowers the peak by 1 %." in screen(
        explain(program.allocator.snapshot())
    )
    assert large


@pytest.mark.parametrize(("scale", "is_said"), [(1, False), (10, True)])
def test_a_few_megabytes_in_pieces_are_no_reason_for_a_setting(scale: int, is_said: bool) -> None:
    """30 MiB of some GPU, where no request failed; 300 MiB are worth a setting."""
    program = Program(0)
    for piece in [program.allocator.allocate(12 * scale * MIB) for _ in range(3)]:
        program.allocator.free(piece)
    program.allocator.allocate(36 * scale * MIB)
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot()))
    (finding,) = explain_allocator(replayed)
    assert finding.first is not None
    assert any(change.cause == "fragmentation" for change in finding.first.changes) is is_said
