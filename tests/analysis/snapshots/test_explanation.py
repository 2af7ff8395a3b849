"""The short answer, of a failure and of what grew."""

from __future__ import annotations

from tests.analysis.snapshots.recorded_program import Recorded
from tests.analysis.snapshots.test_causes import layer, line, train
from tracer.analysis.snapshots.allocator_finding import Explanation, explanation_of
from tracer.snapshot.load import snapshot_in_memory


def explained(capacity: int | None = None, *, fails: bool = False) -> Explanation:
    """Of 4 blocks that a metric's forward keeps in each of 8 steps."""
    program = Recorded(capacity=capacity)
    for _ in range(8):
        train(program)
        for _ in range(4):
            program.make(10, layer(8, caller=4))
    if fails:
        program.fail(110, [line(2)])
    found = explanation_of(snapshot_in_memory(program.snapshot()))
    assert found is not None
    return found


def test_a_failure_is_explained_with_its_line() -> None:
    found = explained(420, fails=True)
    assert (found.file, found.line, found.cause) == ("/home/me/train.py", 2, "graphs kept")
    assert found.sentences.startswith("Memory grows: each of 6 steps left 40.00 MiB")


def test_growth_is_explained_without_a_failure() -> None:
    found = explained()
    assert (found.file, found.cause) == ("", "graphs kept")
    assert "loss.item()" in found.sentences


def test_where_the_allocator_is_to_blame_it_says_why() -> None:
    program = Recorded(capacity=100)
    scratch = program.make(60, [line(1)])
    program.free(scratch, [line(1)])
    program.make(15, [line(2)])  # in the 60 MiB, of which 45 stay free; so do 40 MiB of the device
    program.fail(50, [line(3)])
    found = explanation_of(snapshot_in_memory(program.snapshot()))
    assert found is not None and found.cause == "fragmentation"
    assert found.sentences.startswith("This request would have fit if the free memory were in one piece")


def test_of_an_empty_recording_there_is_nothing_to_say() -> None:
    assert explanation_of(snapshot_in_memory({"segments": [], "device_traces": []})) is None
