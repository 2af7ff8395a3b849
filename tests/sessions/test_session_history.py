"""A session and the allocator's history, on a CUDA device made of a log."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.pieces import Pieces
from tests.sessions.loops import assert_all_off, plain_run
from tests.skips import by_default
from tests.snapshot.dumps import block, entry, segment, snapshot
from tracer.blocks.from_recording.allocator_join import join_history
from tracer.capture.device import allocator_history
from tracer.capture.device.allocator_history import MAX_ENTRIES, AllocatorHistory
from tracer.capture.device.devices import allocator_counters
from tracer.capture.torch_private import torch_history
from tracer.errors import RecordingError
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.recorded_cycles import RecordedCycles
from tracer.sessions.schedule import Schedule

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Profiler clears events", "ignore:.*CUDA is not available", "ignore:Profiler won't be using warmup"
)


@pytest.fixture
def history_log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the allocator, and what it was asked with."""
    log: list[str] = []
    running = [False]

    def start(device: torch.device, max_entries: int, *, stacks_of_frees: bool = False) -> None:
        log.append(f"start on {device} for {max_entries}")
        running[0] = True

    def stop(device: torch.device) -> None:
        log.append(f"stop on {device}")
        running[0] = False

    def dump(device: torch.device) -> dict[str, Any]:
        assert running[0] or "somebody else's" in log
        log.append(f"dump of {device}")
        return {"dump": log.count(f"dump of {device}")}

    monkeypatch.setattr(torch_history, "allocator_history_enabled", lambda device: "somebody else's" in log)
    monkeypatch.setattr(torch_history, "start_allocator_history", start)
    monkeypatch.setattr(torch_history, "stop_allocator_history", stop)
    monkeypatch.setattr(torch_history, "allocator_snapshot", dump)
    return log


CUDA = torch.device("cuda:0")
START, DUMP, STOP = f"start on cuda:0 for {MAX_ENTRIES}", "dump of cuda:0", "stop on cuda:0"


@pytest.mark.parametrize(("torch_version", "stacks"), [((2, 11), ["all", "alloc"]), ((2, 12), ["all"])])
def test_a_history_has_stacks_of_frees_until_a_checkpoint_where_they_lose_errors(
    torch_version: tuple[int, int], stacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    switch = "_cuda_record_memory_history"
    monkeypatch.setattr(torch._C, switch, lambda on, context, *how: asked.append(on and context), False)
    monkeypatch.setattr(torch_history, "TORCH", torch_version)
    frame = torch.utils.checkpoint._CheckpointFrame
    for is_stopped in (False, True):
        asked.clear()
        torch_history.start_allocator_history(torch.device("cuda"), 100)
        if is_stopped:  # by another name of the device
            torch_history.stop_allocator_history(CUDA)
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
        assert asked == (["all", None] if is_stopped else stacks)
        assert torch.utils.checkpoint._CheckpointFrame is frame


def test_an_allocator_that_tells_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises, in words of its own, where it is asked whether such an allocator's history is on."""
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(RecordingError, match="cudaMallocAsync records no allocations"):
        AllocatorHistory(CUDA).start()
    enabled = {"now": False}
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: enabled["now"], raising=False)
    assert not torch_history.allocator_history_enabled(CUDA)
    enabled["now"] = True
    assert torch_history.allocator_history_enabled(CUDA)


@pytest.mark.parametrize(("num_entries", "goes_on"), [(50_000, True), (50_001, False)])
def test_a_watch_goes_on_with_the_entries_of_the_recorded_steps_if_its_ring_has_room(
    num_entries: int, goes_on: bool, history_log: list[str]
) -> None:
    first = AllocatorHistory(CUDA)
    first.start()
    first.snapshot, first.goes_on = {"device_traces": [[None] * num_entries]}, True
    first.stop()
    later = AllocatorHistory(CUDA, max_entries=100_000, stacks_of_frees=False)
    later.start()
    later.stop()
    assert history_log == [START, *[STOP] * (not goes_on), "start on cuda:0 for 100000", STOP]


def test_a_dump_says_the_memory_fraction(history_log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.25)
    history = AllocatorHistory(CUDA)
    history.start()
    history.dump()
    assert history.snapshot is not None
    assert history.snapshot["allocator_settings"] == {"per_process_memory_fraction": 0.25}


def cuda_session(schedule: Schedule, log: list[str], *, num_steps: int, error: BaseException | None = None) -> Any:
    """A session that believes its model to be on a GPU; the work happens on the CPU."""
    workload = Pieces()
    session = ProfileSession(workload.model, workload.optimizer, device="cuda:0", schedule=schedule)
    try:
        with session:
            for index in range(num_steps):
                log.append(f"step {index}")
                plain_run(workload, 1)
                if error is not None and index == num_steps - 1:
                    raise error
                session.step()
    except BaseException as caught:
        assert caught is error
    assert_all_off(workload)
    return session


def test_the_history_is_on_until_all_is_recorded(history_log: list[str]) -> None:
    session = cuda_session(Schedule(1, 1, 2, 2), history_log, num_steps=9)
    assert history_log == [
        START, "step 0", "step 1", "step 2", "step 3", DUMP,
        "step 4", "step 5", "step 6", "step 7", STOP, "step 8",
    ]  # fmt: skip
    assert session.cycles.history.snapshot == {"dump": 1}


@pytest.mark.parametrize(
    ("peaks", "num_dumps", "num_later"),
    by_default([([5, 5], 1, 1), ([5, 7], 2, 0), ([5, 3], 2, 0)], [([5, 5], 1, 1), ([5, 7], 2, 0)]),
)
def test_the_history_is_of_the_cycle_with_the_highest_peak(
    history_log: list[str], monkeypatch: pytest.MonkeyPatch, peaks: list[int], num_dumps: int, num_later: int
) -> None:
    """A counter that has fallen was set back by the program: the later cycle may be the highest."""
    monkeypatch.setattr(allocator_history, "peak_allocated_bytes", lambda device: peaks[int("step 4" in history_log)])
    session = cuda_session(Schedule(1, 1, 2, 2), history_log, num_steps=9)
    assert history_log.count(DUMP) == num_dumps
    assert session.cycles.run_history.num_later == num_later


def test_a_long_wait_is_let_go_of_when_a_cycle_begins(history_log: list[str]) -> None:
    cuda_session(Schedule(11, 0, 1, 1), history_log, num_steps=13)
    assert history_log[-7:] == ["step 10", STOP, START, "step 11", DUMP, STOP, "step 12"]


def test_the_history_begins_before_a_first_step_that_is_recorded(history_log: list[str]) -> None:
    cuda_session(Schedule(0, 0, 1, 1), history_log, num_steps=2)
    assert history_log == [START, "step 0", DUMP, STOP, "step 1"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.OutOfMemoryError()])
def test_a_failure_dumps_the_history_at_once(history_log: list[str], error: BaseException) -> None:
    """What follows, the end of the profiler included, would push the moment of the failure out of it."""
    session = cuda_session(Schedule(0, 1, 2, 2), history_log, num_steps=2, error=error)
    assert history_log == [START, "step 0", "step 1", DUMP, STOP]
    assert session.cycles.history.snapshot == {"dump": 1}


def test_the_reading_of_a_failures_history_is_not_recorded(
    history_log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million entries are read by millions of calls, of which torch's profiler would make events."""

    def own_call() -> None:
        pass

    def dump_at_failure(cycles: RecordedCycles, *, is_recorded: bool) -> None:
        own_call()

    monkeypatch.setattr(RecordedCycles, "dump_at_failure", dump_at_failure)
    session = cuda_session(Schedule(0, 0, 1, 1), history_log, num_steps=1, error=torch.OutOfMemoryError())
    recording = session.cycles._tracer.last_recording
    assert "plain_run" in recording.strings
    assert own_call.__name__ not in recording.strings


def test_a_history_that_nobody_can_read_is_a_note(history_log: list[str]) -> None:
    session = cuda_session(Schedule(0, 0, 1, 1), history_log, num_steps=2)
    assert session.cycles.failed_allocation is None
    (note,) = session.notes
    assert note.startswith("Requested sizes and segments are left out: the allocator's history holds other data")


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError()])
def test_a_history_that_contradicts_itself_is_a_note_too(
    history_log: list[str], monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    """What the profiler recorded is explained without it."""
    twice = segment(1 << 40, 1024, [block(1 << 40, 512), block(1 << 40, 512)])
    odd = snapshot([entry("alloc", 1 << 40, 512), entry("oom", 0, 512)], [twice])
    monkeypatch.setattr(torch_history, "allocator_snapshot", lambda device: odd)
    session = cuda_session(Schedule(0, 0, 1, 1), history_log, num_steps=1 if error else 2, error=error)
    monkeypatch.setattr(session.cycles._tracer, "device", "cpu")
    joined = "tracer.blocks.from_recording.allocator_join.join_history"
    monkeypatch.setattr(joined, lambda snapshot, _, storages: join_history(snapshot, "cuda:0", storages))
    assert session.findings.worst.peak.allocator is None
    assert session.findings is session.findings
    assert session.cycles.failed_allocation is None
    (note,) = set(session.notes)
    assert note.startswith("Requested sizes and segments are left out: Device 0 has two live blocks")
    assert len(session.notes) == 1


def test_the_device_says_what_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"mem_get_info": (3, 10), "memory_allocated": 5, "memory_reserved": 6, "max_memory_allocated": 7}
    for name, value in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert allocator_counters(CUDA) == {
        "allocated": 5,
        "reserved": 6,
        "largest allocated so far": 7,
        "free on the device": 3,
        "device": 10,
    }


def test_a_device_that_answers_no_more_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kernel's error every call of the driver raises it again; the allocator's counters do not ask it."""

    def raises(device: torch.device) -> Any:
        raise getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: device-side assert triggered")

    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", raises)
    assert allocator_counters(CUDA) == {"allocated": 5, "reserved": 5, "largest allocated so far": 5}


def test_a_history_that_cannot_be_dumped_keeps_nothing_on(
    history_log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that an assertion has stopped answers no more."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(torch_history, "allocator_snapshot", refuse)
    monkeypatch.setattr(torch_history, "stop_allocator_history", refuse)
    workload = Pieces()
    with (
        pytest.raises(KeyError, match="bug") as caught,
        ProfileSession(workload.model, workload.optimizer, device="cuda:0", schedule=Schedule(0, 0, 2, 1)),
    ):
        plain_run(workload, 1)
        raise KeyError("bug")
    assert any("device-side assert" in note for note in caught.value.__notes__)
    assert_all_off(workload)
