"""Time of kernels by operator: a made-up device below real recordings of the CPU, and a plain loop beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.training_steps import Recorded
from tracer.analysis.operators.kernel_times import kernel_times
from tracer.analysis.operators.run_times import run_times
from tracer.analysis.profiles.attribution import attribute
from tracer.capture.device.device_kernels import Kernels
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.profiler.kernel_events import read_kernels
from tracer.capture.recording import Recording
from tracer.capture.torch_private.torch_profiler import HOST_DEVICE_TYPE
from tracer.errors import RecordingError

GPU = "a GPU"


@dataclass(frozen=True)
class FakeEvent:
    """As torch's list of events has them."""

    number: int
    linked: int = 0
    device: Any = HOST_DEVICE_TYPE
    start: int = 0
    duration: int = 0
    thread: int = 1
    called: str = "aten::mm"
    is_region: bool = False

    def is_user_annotation(self) -> bool:
        return self.is_region

    def name(self) -> str:
        return self.called

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_type(self) -> Any:
        return self.device

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def start_thread_id(self) -> int:
        return self.thread


@dataclass(frozen=True)
class FakeResults:
    listed: tuple[FakeEvent, ...]

    def events(self) -> tuple[FakeEvent, ...]:
        return self.listed


def test_a_kernel_is_the_operators_that_launched_it() -> None:
    """Operators 5 and 6, on two threads; the driver's calls have numbers of their own, which may be an operator's too.

    A span on the device stands for a `record_function` region, with all its kernels' time: it is no kernel, linked or
    not.
    """
    results = FakeResults((
        FakeEvent(5, start=100, thread=1),
        FakeEvent(6, start=200, thread=9),
        FakeEvent(6, linked=5, start=110, thread=1, called="cudaLaunchKernel"),
        FakeEvent(5, start=900, thread=1, called="cudaDeviceSynchronize"),
        FakeEvent(6, device=GPU, start=1000, duration=5000, called="aten::mm"),
        FakeEvent(31, linked=6, device=GPU, start=1000, duration=40),
        FakeEvent(32, linked=5, device=GPU, start=1040, duration=7),
        FakeEvent(33, linked=5, device=GPU, start=1050, duration=3),
        FakeEvent(34, linked=0, device=GPU, start=1060, duration=1000),
        FakeEvent(35, linked=77, device=GPU, start=1070, duration=1000),
        FakeEvent(5, linked=5, device=GPU, start=1000, duration=5000, called="my region", is_region=True),
    ))  # fmt: skip
    kernels = read_kernels(results, {1: 0}, {"aten::mm"})
    assert kernels is not None
    columns = (kernels.launched_ns, kernels.thread, kernels.duration_ns)
    assert [column.tolist() for column in columns] == [[200, 100, 100], [-1, 0, 0], [40, 7, 3]]


def test_without_a_device_there_are_none() -> None:
    assert read_kernels(FakeResults((FakeEvent(5), FakeEvent(6, linked=5))), {}, {"aten::mm"}) is None


def test_a_torch_without_these_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._autograd, "_KinetoEvent", object)
    with pytest.raises(RecordingError, match="linked_correlation_id"):
        read_kernels(FakeResults((FakeEvent(1, linked=5, device=GPU),)), {}, set())


def test_columns_of_one_length() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Kernels(np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64))


def with_kernels(recording: Recording, seed: int) -> Recording:
    """The recording, with a device that got work at random moments of random operators."""
    random = np.random.default_rng(seed)
    ops = recording.ops
    row = random.integers(0, len(ops.name), 500)
    launched = ops.start_ns[row] + (random.random(500) * (ops.end_ns - ops.start_ns)[row]).astype(np.int64)
    thread = ops.thread[row].copy()
    thread[:20] = -1
    return replace(recording, kernels=Kernels(launched, thread, random.integers(0, 1000, 500)))


@pytest.mark.parametrize("name", ["fno_2d_new_zeros", "checkpointing_reentrant", "custom_function", "lstm"])
def test_each_operator_has_the_kernels_launched_while_it_ran(name: str, recorded: Callable[[str], Recorded]) -> None:
    recording = with_kernels(recorded(name).recordings[-1], seed=1)
    ops, kernels = recording.ops, recording.kernels
    assert kernels is not None
    expected = np.zeros(len(ops.name), np.int64)
    for thread, start, ns in zip(kernels.thread, kernels.launched_ns, kernels.duration_ns, strict=True):
        for op in range(len(ops.name)):
            if ops.thread[op] == thread and ops.start_ns[op] <= start <= ops.end_ns[op]:
                expected[op] += ns
    found = kernel_times(recording)
    assert found is not None
    # Two operators may touch in one nanosecond, in which only one of them can have launched it.
    touching = np.isin(ops.end_ns, ops.start_ns) | np.isin(ops.start_ns, ops.end_ns)
    assert (found == expected)[~touching].all()
    top = (ops.parent < 0) & ~touching
    assert top.sum() > 0
    assert found[ops.parent < 0].sum() == kernels.duration_ns[kernels.thread >= 0].sum()


def test_on_a_device_the_rows_are_by_its_clock(recorded: Callable[[str], Recorded]) -> None:
    recording = recorded("fno_2d_new_zeros").recordings[-1]
    assert kernel_times(recording) is None
    assert run_times([(recording, attribute(recording))]).clock == "host"
    on_device = with_kernels(recording, seed=2)
    report = run_times([(on_device, attribute(on_device))])
    assert report.clock == "device"
    assert sum(row.forward_ns for row in report.rows) > 0
    device = report.device
    assert device is not None
    parts = (device.forward_rows_ns, device.backward_rows_ns, device.bookkeeping_ns, device.elsewhere_ns)
    assert sum(parts) == device.total_ns == on_device.kernels.duration_ns.sum()  # type: ignore[union-attr]
    assert min(parts[:2]) > 0
    assert min(parts) >= 0
    assert device.forward_rows_ns == pytest.approx(sum(row.forward_ns * row.num_steps for row in report.rows))


@pytest.mark.gpu
@pytest.mark.needs_kernels
def test_kernels_are_those_of_torchs_own_list() -> None:
    """torch's `prof.events()` joins kernels to operators by its own code."""
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)
    batch = torch.randn(64, 256, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as prof:
        for _ in range(3):
            ((batch @ weight).relu().sum()).backward()
    recording = read_recording(prof)
    found = kernel_times(recording)
    assert found is not None
    theirs = sum(kernel.duration for event in prof.events() for kernel in event.kernels)
    assert recording.kernels is not None
    assert recording.kernels.duration_ns.sum() == pytest.approx(theirs * 1000, rel=0.01)
    assert found[recording.ops.parent < 0].sum() == recording.kernels.duration_ns.sum()
    names = [recording.strings[name] for name in recording.ops.name]
    assert found[names.index("aten::matmul")] > 0
