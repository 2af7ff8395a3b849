"""Loops that only a device with memory of its own can show: several devices, no memory left, nothing allocated."""

from __future__ import annotations

import re
import signal

import pytest

from tests.on_null_gpu import jobs_sessions
from tests.on_null_gpu.jobs_sessions import Told
from tests.truth.isolate import Elsewhere
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.errors import Terminated

MIB = 1 << 20


def assert_laws(found: Told, device: int) -> None:
    """The rows are what this device's allocator counted, and every file was written."""
    assert found.device == f"cuda:{device}"
    assert found.rows_bytes == found.peak_bytes == found.counted[device]
    assert found.joined is None or found.joined[0] == found.joined[1]
    # The history's segments are what the profiler counts as reserved, at every event.
    assert found.reserved[0] == found.reserved[1]
    assert (found.reserved[1] > 0) == (found.joined is not None)
    assert found.failed_files == ()
    written = {"max_mem.txt", "peak.json", "memory_timeline.html", "memory_snapshot.pkl"}
    assert {*written, "memory_report.sqlite"} == set(found.files)


def test_the_rows_sum_to_the_count_in_every_schedule(elsewhere: Elsewhere) -> None:
    """Of blocks from before a recording the history has what was requested, and a look what the allocator gave."""
    for (steps, cycles), found in elsewhere(jobs_sessions.all_schedules).items():
        assert len(found) == cycles
        assert all(rows == peak == counted for rows, peak, counted in found), (steps, cycles, found)


def test_the_workspace_of_cublas_is_no_modules_and_said_not_to_grow(elsewhere: Elsewhere) -> None:
    rows, other_rows, screen = elsewhere(jobs_sessions.multiply)
    if are_workspaces_kept():
        assert rows == [] and "cuBLAS" not in screen
        return
    assert rows == [("WORKSPACE", "(cuBLAS)", "cuBLAS workspace", 32 * MIB)]
    assert other_rows == {"0", "(training loop)"}
    assert "cuBLAS has 32.00 MiB of the peak, a workspace that torch allocates for a call and frees behind it" in screen


def test_a_checkpointed_loss_goes_through_beside_a_history_with_stacks_of_frees(elsewhere: Elsewhere) -> None:
    """With torch 2.11 such a stack loses the error by which a recomputation ends: the backward would raise another."""
    failure, *notes = elsewhere(jobs_sessions.train_with_checkpointed_loss)
    assert failure == "None", notes


def test_of_two_devices_the_one_that_holds_most_is_explained_and_the_other_named(elsewhere: Elsewhere) -> None:
    """A small first layer, which has the first parameter, and large ones on the other device."""
    found = elsewhere(jobs_sessions.train_split, 8, 4096)
    assert_laws(found, 1)
    assert found.other_devices == {"cuda:0": found.counted[0]}
    (note,) = (note for note in found.notes if "Other devices" in note)
    assert "about cuda:1, which held most" in note and "cuda:0 up to" in note
    # The page has both, each with its own peak and segments.
    assert found.pages == (("cuda:1", found.counted[1], True), ("cuda:0", found.counted[0], True))


def test_a_device_that_was_named_is_explained_whatever_others_hold(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_sessions.train_split, 8, 4096, device="cuda:0")
    assert_laws(found, 0)
    assert found.other_devices == {"cuda:1": found.counted[1]}


def test_a_model_split_over_both(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_sessions.train_split, 8192, 8, 4096)
    assert_laws(found, 0)
    assert found.by_category["PARAMETER"] > 0 and found.by_category["OPTIMIZER_STATE"] > 0
    assert "BEFORE_RECORDING" not in found.by_category and "UNKNOWN" not in found.by_category


def test_an_embedding_on_the_cpu_makes_no_run_of_the_cpu(elsewhere: Elsewhere) -> None:
    assert_laws(elsewhere(jobs_sessions.train_behind_an_embedding_on_the_cpu), 0)


def test_a_device_without_a_number_is_the_current_one(elsewhere: Elsewhere) -> None:
    found, alone = elsewhere(jobs_sessions.train_on_the_current_device)
    assert_laws(found, 1)
    assert alone == "cuda:1"


def test_steps_that_allocate_nothing_are_told_what_the_device_holds(elsewhere: Elsewhere) -> None:
    """Weight and bias of 4096 and 256 bytes, and 20,000 bytes that a local variable holds, rounded up to 20,480."""
    found = elsewhere(jobs_sessions.train_without_allocating)
    assert_laws(found, 0)
    assert found.peak_bytes == 4096 + 512 + 20480
    assert found.by_category == {"HELD": 20480, "PARAMETER": 4608}


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_out_of_memory_is_explained_with_the_allocators_numbers(elsewhere: Elsewhere, where: str, step: int) -> None:
    found = elsewhere(jobs_sessions.run_out_in, where, step)
    assert found.device == "cuda:0"
    assert found.asked_bytes == 100 * MIB
    assert found.allocated_bytes == found.counted["allocated"]
    assert found.reserved_bytes == found.counted["reserved"]
    assert found.group_bytes == found.requested_bytes == found.counted["requested"]
    assert found.device_free_bytes == found.capacity - found.reserved_bytes == found.state["free on the device"]
    assert found.file is not None and found.file.endswith("jobs_sessions.py")
    kinds = {kind for kind, _ in found.groups}
    assert "parameter" in kinds
    if step == 2:  # recorded: what each block is, is known from the recording
        assert "not known" not in kinds
        assert "optimizer state" in kinds
    else:  # not recorded: by what the program holds when it fails
        assert "not known" not in kinds
        assert ("activation" in kinds) == ("input" in kinds) == (where != "optimizer")
    assert ("gradient" in kinds) == (where == "optimizer")


def test_out_of_memory_on_the_second_device_is_about_that_one(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_sessions.run_out_in, "forward", 2, on=1)
    assert found.asked_bytes == 100 * MIB
    assert (found.allocated_bytes, found.reserved_bytes) == (0, 0)
    assert found.device_free_bytes == found.state["free on the device"] == 64 * MIB
    assert any("step 3 ran out of memory" in line.lower() for line in found.lines)


def test_a_history_of_somebody_elses_is_left_on(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_sessions.history_of_somebody_else) == (True, 12345)


def test_a_history_that_is_on_from_the_start_ends_with_the_first_session(elsewhere: Elsewhere) -> None:
    is_on, lines, line_of_table = elsewhere(jobs_sessions.history_from_start)
    assert not is_on and lines[f"HELD {line_of_table}"] == 12800  # 12,345, rounded


def test_a_failure_right_behind_the_recorded_steps_is_explained(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_sessions.run_out_behind_the_recorded_steps) == (4, True)


def test_a_failure_behind_a_recording_that_was_dropped_is_explained(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_sessions.run_out_behind_a_dropped_recording) == (1, 1 << 40)


def test_a_session_that_begins_on_the_cpu_goes_over_to_the_history_of_the_gpu(elsewhere: Elsewhere) -> None:
    device, has_history, notes = elsewhere(jobs_sessions.begin_on_the_cpu)
    assert (device, has_history) == ("cuda:0", True)
    assert not any("does not offer" in note for note in notes)


def test_training_on_the_cpu_beside_a_tensor_of_the_gpu_and_after_it(elsewhere: Elsewhere) -> None:
    """The view of all memory, by which the null GPU reads values, is no memory of the CPU's."""
    beside, num_bytes = elsewhere(jobs_sessions.train_on_the_cpu, "behind")
    assert beside.startswith("Peak: 512 B on cuda:0 ") and num_bytes == 512
    after, num_bytes = elsewhere(jobs_sessions.train_on_the_cpu, "before")
    assert " on cpu in " in after and 0 < num_bytes < MIB
    named, num_bytes = elsewhere(jobs_sessions.train_on_the_cpu, "within", device="cuda")
    assert named.startswith("The recorded steps allocated nothing on cuda:0.") and num_bytes == 0


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("training", r"The model is called at \S+ without a backward behind it"),
        ("evaluation", r"Memory grows: each of \d+ iterations left 8\.12 MiB"),
    ],
)
def test_a_validation_with_gradients_on_is_told_of_no_grad(mode: str, cause: str, elsewhere: Elsewhere) -> None:
    """First of all, by a replay without what it keeps, and again where a kept recording is read; in whatever mode."""
    advice, first, again = elsewhere(jobs_sessions.run_out_while_validating, trains_in=mode)
    assert re.search(cause, advice)
    assert first.startswith("evaluate under `with torch.no_grad():`")
    assert again == advice


def test_nothing_is_said_of_it_without_gradients(elsewhere: Elsewhere) -> None:
    advice, first, again = elsewhere(jobs_sessions.run_out_while_validating, with_gradients=False)
    assert "no_grad" not in advice + first
    assert again == advice


@pytest.mark.parametrize(
    ("number", "raised", "is_handled_by_program"),
    [
        (signal.SIGTERM, Terminated, False),
        (signal.SIGINT, KeyboardInterrupt, False),
        (signal.SIGALRM, TimeoutError, True),
    ],
)
def test_a_signal_while_autograds_thread_runs_python_ends_the_step_and_not_the_recording(
    number: int, raised: type[BaseException], is_handled_by_program: bool, elsewhere: Elsewhere
) -> None:
    """CPython 3.11 would run that thread in circles until the main thread, which waits for it, has run the handler."""
    num_steps, files = elsewhere(
        jobs_sessions.sent_in_backward, number, raised, is_handled_by_program=is_handled_by_program
    )
    assert num_steps == 2
    assert {"peak.json", "memory_timeline.html", "memory_snapshot.pkl"} <= files
