"""The flight recorder on a device: a late failure is explained from the ring and the counters alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_null_gpu import jobs_watch
from tests.truth.isolate import Elsewhere
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept

MIB = 1 << 20
# cuBLAS's, in each step; where torch keeps workspaces, the fixture allows none.
WORKSPACE = 0 if are_workspaces_kept() else 32 * MIB


def line_of(function: str) -> int:
    """Of the first statement of a function of the jobs."""
    text = Path(jobs_watch.__file__).read_text().splitlines()
    return next(at for at, line in enumerate(text, 1) if line.startswith(f"def {function}(")) + 1


@pytest.mark.parametrize("num_steps", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_leak_of_a_mebibyte_a_step_is_named_with_line_holder_growth_and_end(
    elsewhere: Elsewhere, num_steps: int
) -> None:
    found = elsewhere(jobs_watch.leak, num_steps, (num_steps - 2) * MIB + WORKSPACE)
    assert found["event"]["what"] == "out of memory" and found["fault"] == "None"
    assert found["ended_in"] > 0.98 * num_steps
    growth = found["findings"]["growth"]
    assert growth["trend"]["bytes_per_step"] == MIB
    assert abs(growth["end_step"] - found["ended_in"]) <= 2
    (kept, *_) = found["kept"]
    assert (kept["frame"], kept["line"], kept["bytes_per_step"]) == ("remember", line_of("remember"), MIB)
    assert kept["what"] == "held" and kept["count"] >= found["ended_in"] - 3
    assert [holder["path"] for holder in kept["holders"]] == ["history[...]"]
    assert kept["holders"][0]["variable"].startswith("local variable of leak(), jobs_watch.py:")
    # It is the workspace of a backward that no longer fits, asked for by autograd's thread, which runs no Python.
    assert found["out_of_memory"]["asked_bytes"] == (WORKSPACE or MIB)
    text = found["text"]
    assert "In-use memory grows by 1.00 MiB a step" in text and "held by history[...]" in text
    assert sum(group["bytes"] for group in found["in_use"]) == sum(found["by_kind"].values())
    assert found["snapshot_ooms"] == 1
    # It was told long before, when the run had hardly begun, with the step in which it would end.
    assert [event["what"] for event in found["events"]] == [
        "memory grows from step to step", "out of memory", "out of memory",
    ]  # fmt: skip
    # The allocator said it before it raised, and the exception when it had come through.


def test_where_nothing_is_held_nothing_is_named(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_watch.hold_nothing)
    assert found["fault"] == "None"
    assert found["kept"] == []
    assert found["findings"]["growth"] is None
    assert set(found["by_kind"]) <= {"parameter", "gradient", "optimizer state", "input", "held", "activation"}


def test_a_loss_that_has_been_through_backward_keeps_itself_alone(elsewhere: Elsewhere) -> None:
    """512 bytes a step: real, and too little for a word."""
    found = elsewhere(jobs_watch.keep_losses)
    assert found["kept"] == []


def test_activations_of_kept_graphs_are_named_by_the_tensor_that_has_the_graph(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_watch.keep_outputs)
    assert found["findings"]["growth"] is not None
    (kept, *_) = found["kept"]
    assert kept["what"] == "activation"
    (holder, *_) = kept["holders"]
    assert holder["path"] == "outputs[...] -> graph of the tensor"
    assert holder["graph_file"].endswith("jobs_watch.py") and holder["graph_line"] > line_of("keep_outputs")


def test_a_failure_that_the_program_catches_is_told_too(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_watch.caught)
    assert [event["what"] for event in found["events"]] == ["out of memory", "asked for", "the end of the run"]
    assert found["events"][0]["step"] == 3


def test_where_the_allocator_tells_nobody_its_count_of_failures_does(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_watch.caught_untold)
    told = [event["what"] for event in found["events"]]
    assert told == ["out of memory, and the program went on", "asked for", "the end of the run"]
    assert found["events"][0]["step"] == 4


@pytest.mark.parametrize("where", ["forward", "optimizer"])
def test_kinds_are_right_without_a_profiler(elsewhere: Elsewhere, where: str) -> None:
    found = elsewhere(jobs_watch.runs_out_in, where)
    kinds = found["by_kind"]
    assert kinds["parameter"] == found["sizes"]["parameter"]
    # Two states a parameter, and its step number in 4 bytes on the host.
    assert kinds["optimizer state"] == found["sizes"]["optimizer state"]
    assert "not known" not in kinds
    if where == "optimizer":
        assert kinds["gradient"] == found["sizes"]["parameter"]
    else:  # zero_grad has let go of the gradients; what the graph of the output keeps is there
        assert "gradient" not in kinds
        assert kinds["activation"] >= 2 * 512 * 256 * 4
        assert kinds["input"] == 512 * 16 * 4
    assert found["out_of_memory"]["asked_bytes"] == 100 * MIB


def test_the_history_is_off_when_it_is_over(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_watch.history_is_off_afterwards) == (True, False)


def test_the_ring_has_a_bound(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_watch.bounded, 1000) == (50, 1000)
