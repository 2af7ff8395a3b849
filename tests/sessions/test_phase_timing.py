"""Phase times with a clock made of numbers and with CUDA events made of a log: every expected value is arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tracer.capture.run_facts import PHASES, PhaseTimings
from tracer.sessions import workload_run
from tracer.sessions.workload_run import time_phases

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")
MS = 1_000_000


def run(device: torch.device, *, num_warmup_steps: int = 0, num_steps: int, **callbacks: Any) -> PhaseTimings:
    does: dict[str, Callable[..., Any]] = {
        "forward": lambda: "loss",
        "backward": lambda loss: None,
        "optimizer_step": lambda: None,
    }
    return time_phases(device=device, num_warmup_steps=num_warmup_steps, num_steps=num_steps, **{**does, **callbacks})


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that reads 0, 1, 4, 9, ... ms. A step looks 8 times: around everything, and around each phase."""
    looks = itertools.count()
    monkeypatch.setattr(workload_run.time, "perf_counter_ns", lambda: next(looks) ** 2 * MS)  # type: ignore[attr-defined]


def expected(step: int) -> dict[str, float]:
    at = 8 * step
    edges = {"model_fwd": (1, 2), "loss_bk": (3, 4), "opt_step": (5, 6), "total_time": (0, 7)}
    return {name: float((at + end) ** 2 - (at + start) ** 2) for name, (start, end) in edges.items()}


@pytest.mark.usefixtures("squares")
def test_durations_on_the_hosts_clock() -> None:
    timings = run(CPU, num_steps=2)
    assert timings.durations_ms == {phase: (expected(0)[phase], expected(1)[phase]) for phase in PHASES}
    # By hand: forward of step 0 lies between 1 and 4 ms, all of it between 0 and 49 ms.
    assert timings.durations_ms["model_fwd"] == (3.0, 19.0)
    assert timings.durations_ms["total_time"] == (49.0, 161.0)
    assert (timings.mean_ms("model_fwd"), timings.std_ms("model_fwd")) == (11.0, 8.0)
    assert (timings.device, timings.clock) == ("cpu", "CPU")


def test_what_is_called_and_in_which_order() -> None:
    log: list[str] = []
    run(
        CPU,
        num_warmup_steps=1,
        num_steps=1,
        forward=lambda: log.append("forward") or "the loss",
        backward=lambda loss: log.append(f"backward of {loss}"),
        optimizer_step=lambda: log.append("optimizer"),
        after_step=lambda: log.append("after"),
    )
    assert log == ["forward", "backward of the loss", "optimizer", "after"] * 2


@pytest.mark.usefixtures("squares")
def test_what_comes_after_a_step_is_not_timed() -> None:
    def reads_the_clock() -> None:
        workload_run.time.perf_counter_ns()  # type: ignore[attr-defined]

    timings = run(CPU, num_steps=2, after_step=reads_the_clock)
    # Eight looks, one outside, and then the second step's total from look 9 to look 16.
    assert timings.durations_ms["total_time"] == (49.0, 16.0**2 - 9.0**2)


def test_the_loss_of_a_step_is_gone_before_the_next() -> None:
    """Else the timing pass would hold one graph more than training does."""
    import weakref

    refs: list[weakref.ref[torch.Tensor]] = []

    def forward() -> torch.Tensor:
        assert all(ref() is None for ref in refs)
        loss = torch.zeros(3)
        refs.append(weakref.ref(loss))
        return loss

    run(CPU, num_steps=3, forward=forward)
    assert len(refs) == 3


# ---- CUDA, from a log ------------------------------------------------------------------------------------------------


class FakeCuda:
    """A device that finishes an event 10 ms after the one before it, once the host waits."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.finished_ms = itertools.count(0, 10)
        self.pending: list[FakeEvent] = []

    def synchronize(self, device: torch.device) -> None:
        self.log.append(f"synchronize {device}")
        for event in self.pending:
            event.at_ms = next(self.finished_ms)
        self.pending.clear()


class FakeEvent:
    cuda: FakeCuda

    def __init__(self, *, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_ms: int | None = None

    def record(self, stream: str) -> None:
        self.cuda.log.append(f"event on {stream}")
        self.cuda.pending.append(self)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at_ms is not None, "read before the device was waited for"
        assert end.at_ms is not None, "read before the device was waited for"
        return float(end.at_ms - self.at_ms)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    FakeEvent.cuda = fake
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", fake.synchronize)
    return fake


def test_cuda_events_lie_around_the_phases_and_the_host_waits_once_a_step(cuda: FakeCuda) -> None:
    timings = run(
        GPU,
        num_steps=1,
        forward=lambda: cuda.log.append("forward"),
        backward=lambda loss: cuda.log.append("backward"),
        optimizer_step=lambda: cuda.log.append("optimizer"),
        after_step=lambda: cuda.log.append("after"),
    )
    edge, wait = "event on stream of cuda:1", "synchronize cuda:1"
    step = [edge, edge, "forward", edge, edge, "backward", edge, edge, "optimizer", edge, edge, wait, "after"]
    assert cuda.log == [wait, *step]
    assert timings.durations_ms == {"model_fwd": (10,), "loss_bk": (10,), "opt_step": (10,), "total_time": (70,)}
    assert (timings.device, timings.clock) == ("cuda:1", "CUDA")


def test_cuda_warmup_steps_are_dropped_but_waited_for(cuda: FakeCuda) -> None:
    timings = run(GPU, num_warmup_steps=2, num_steps=3)
    assert {len(durations) for durations in timings.durations_ms.values()} == {3}
    assert cuda.log.count("synchronize cuda:1") == 1 + 5


def test_the_host_is_not_waited_for_on_the_cpu(cuda: FakeCuda) -> None:
    run(CPU, num_steps=2)
    assert cuda.log == []


@pytest.mark.gpu
def test_cuda_events_lie_between_hand_placed_ones() -> None:
    """Around the work within, and within the time from one step's end to the next one's."""
    device = torch.device("cuda", torch.cuda.current_device())
    a = torch.randn(4096, 4096, device=device)
    start, end, *step_ends = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    ended = iter(step_ends)

    def forward() -> None:
        start.record()
        for _ in range(20):
            a @ a
        end.record()

    timings = time_phases(
        forward=forward,
        backward=lambda loss: None,
        optimizer_step=lambda: None,
        device=device,
        num_warmup_steps=1,
        num_steps=1,
        after_step=lambda: next(ended).record(),
    )
    torch.cuda.synchronize(device)
    inside, around = start.elapsed_time(end), step_ends[0].elapsed_time(step_ends[1])
    (measured,) = timings.durations_ms["model_fwd"]
    resolution_ms = 0.001
    assert inside - resolution_ms <= measured <= around + resolution_ms
