"""Training loops that need a device with times, with streams that lag, or without a history."""

from __future__ import annotations

import pickle
import tempfile
from typing import Any

import torch
from torch import Tensor, nn

from tests.accelerator.registered import pretend
from tests.on_null_gpu.jobs_sessions import PLAN, Told, told, train, usual_step
from tracer.exporters.cuda_timing import cuda_timing_text
from tracer.runs.session import Schedule
from tracer.runs.training import profile_training
from tracer.runs.workload_run import run_profile


def train_while_another_stream_works() -> Told:
    """A block is freed while another stream still uses it, right before the peak."""
    pretend().set_lag(1 << 40)
    model, side = nn.Linear(16, 64, device="pretend:0"), torch.Stream(device="pretend:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(index: int) -> None:
        optimizer.zero_grad()
        waited = torch.empty(500_000, device="pretend:0")
        with side:
            waited.zero_()
        waited.record_stream(side)
        del waited
        loss = model(torch.randn(32, 16, device="pretend:0")).sum()
        large = torch.empty(3_000_000, device="pretend:0")
        (loss + large[:1].sum() * 0).backward()
        del large
        optimizer.step()
        torch.accelerator.synchronize(0)

    return train(model, step, optimizer)


class _Timed:
    """A workload of a fixed number of kernels, with numbers of the device's own generator in each step."""

    def __init__(self) -> None:
        self.model, self.optimizer = nn.Linear(4, 4, device="pretend:0"), None
        self.device = torch.device("pretend:0")
        self.drawn: list[float] = []

    def next_batch(self) -> Tensor:
        batch = torch.rand(4, device=self.device)
        self.drawn.append(float(batch[0]))
        return batch

    def forward(self, batch: Tensor) -> Tensor:
        return batch.add(1).add(1).sum().requires_grad_()

    def backward(self, loss: Tensor) -> None:
        with torch.no_grad():
            loss.mul(2)

    def optimizer_step(self) -> None:
        pass

    def copy(self) -> _Timed:
        return self


def time_by_events() -> dict[str, Any]:
    """A run with its timing pass: durations of the phases in kernels, and whether the device's numbers go on after."""
    workload = _Timed()
    pretend().manual_seed_all(3)
    results = run_profile(workload, schedule=Schedule(0, 1, 1, 1), timing=True)
    next_one = float(torch.rand(4, device="pretend:0")[0])
    num_steps = results.num_steps
    pretend().manual_seed_all(3)
    expected = [float(torch.rand(4, device="pretend:0")[0]) for _ in range(num_steps + 1)]
    assert results.timings is not None, results.notes
    kernels = {name: workload_ms / pretend().KERNEL_MS for name, workload_ms in _means(results.timings).items()}
    return {
        "clock": results.timings.clock,
        "kernels": kernels,
        "drawn": workload.drawn[:num_steps],
        "next": next_one,
        "expected": expected,
        "text": cuda_timing_text(results.timings),
    }


def _means(timings: Any) -> dict[str, float]:
    return {name: timings.mean_ms(name) for name in timings.durations_ms}


def train_without_history() -> tuple[Told, dict[str, Any]]:
    """A backend whose allocator keeps none, and what memory_snapshot.pkl is made of then."""
    memory = pretend().memory
    record = memory._record_memory_history
    del memory._record_memory_history
    try:
        model = nn.Linear(16, 64, device="pretend:1")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tempfile.TemporaryDirectory() as folder:
            session = profile_training(model, optimizer, save_dir=folder, schedule=PLAN)
            step, counted = usual_step(model, optimizer, "pretend:1"), []
            with session:
                for index in range(PLAN.num_steps):
                    torch.accelerator.reset_peak_memory_stats(1)
                    step(index)
                    if 2 <= index < 4:
                        counted.append((0, torch.accelerator.max_memory_allocated(1)))
                    session.step()
            snapshot = pickle.loads((session.folder / "memory_snapshot.pkl").read_bytes())
            return told(session, counted), snapshot
    finally:
        memory._record_memory_history = record
