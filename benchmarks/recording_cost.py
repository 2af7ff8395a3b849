"""Cost of recording beside bare torch.profiler with the same flags: processor time a step, and memory an event.

    uv run python -m benchmarks.recording_cost [--programs gpt modules] [--rounds 3] [--device cuda]

Two programs: a GPT of 12 blocks, and a chain of 2,001 modules, whose steps are short and whose parameters are many.
Each runs alone, under torch.profiler, whose results nobody keeps, and in our session: two cycles of three recorded
steps, every run in a process of its own with one thread. Times are the processor's, since other programs disturb them
least; on a GPU they are the clock's, to the end of each step's kernels, and two further runs have the allocator's
history on, and a watch.

"Recording" is the whole run less the same run alone: steps, all that happens between them, and letting go of what was
recorded. What reads a recording into columns, analyses it and writes files is counted apart: torch.profiler does
nothing of the kind here. Memory is the
highest resident set less what it was before the loop, `VmHWM` and `VmRSS`, over the events of a cycle. The aim is that
our recording is less than 10 % above torch.profiler's own share; the exit status is 1 where it is not.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.engine import (
    GPT,
    Table,
    as_markdown,
    in_own_process,
    next_token,
    profiler,
    status_bytes,
    step_of,
)
from tracer.sessions import timeline_tracer
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile
from tracer.sessions.training_watch import TrainingWatch

MODES = ("alone", "torch.profiler", "ours")
WITHOUT_PROFILER = ("history", "watch")
"""Further modes on a GPU, whose cost is in their steps."""
PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=3, num_repeats=2)
AIM = 0.10
Program = tuple[nn.Module, torch.optim.Optimizer | None, Callable[[], None]]


def gpt() -> Program:
    workload = next_token(GPT())
    return workload.model, workload.optimizer, step_of(workload)


def modules() -> Program:
    model = nn.Sequential(*(layer for _ in range(1000) for layer in (nn.Linear(8, 8), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    return model, optimizer, step


PROGRAMS: dict[str, Callable[[], Program]] = {"gpt": gpt, "modules": modules}


@dataclass(slots=True)
class Cost:
    """Processor seconds of one run, and the highest of the resident set.

    Attributes:
        steps_s: Of each step, with what happens at its end.
        apart_s: Of that, reading and analysing.
        files_s: Analysing what is left and writing files, after the loop.
        total_s: From before the first step until everything is let go of.
        loop_bytes: The resident set at its highest in the loop, less what it was before.
        peak_bytes: The same at the end of all.
        num_events: Of a cycle; 0 where nobody read one.
    """

    steps_s: list[float] = field(default_factory=list)
    apart_s: float = 0.0
    files_s: float = 0.0
    total_s: float = 0.0
    loop_bytes: int = 0
    peak_bytes: int = 0
    num_events: int = 0

    @property
    def recording_s(self) -> float:
        """Seconds without reading, analysing and writing."""
        return self.total_s - self.apart_s - self.files_s

    @property
    def recorded_step_s(self) -> float:
        """The median of the recorded steps but the last of each cycle."""
        first = PLAN.num_wait_steps + PLAN.num_warmup_steps
        length = first + PLAN.num_active_steps
        chosen = [s for number, s in enumerate(self.steps_s) if first <= number % length < length - 1]
        return statistics.median(chosen)


@contextmanager
def apart(cost: Cost, clock: Callable[[], float]) -> Iterator[None]:
    """Count what reads and analyses, wherever it is called, and how many events were read."""
    read = timeline_tracer.read_recording  # type: ignore[attr-defined]
    finish = TrainingProfile._finish  # type: ignore[attr-defined]

    def timed(call: Callable[..., Any], part: str = "apart_s") -> Callable[..., Any]:
        def measured(*args: Any, **kwargs: Any) -> Any:
            before = clock()
            found = call(*args, **kwargs)
            setattr(cost, part, getattr(cost, part) + clock() - before)
            return found

        return measured

    def counted(results: Any) -> Any:
        recording = read(results)
        cost.num_events = max(cost.num_events, recording.num_events)
        return recording

    timeline_tracer.read_recording = timed(counted)  # type: ignore[attr-defined]
    TrainingProfile._finish = timed(finish, "files_s")  # type: ignore[method-assign]
    try:
        yield
    finally:
        timeline_tracer.read_recording = read  # type: ignore[attr-defined]
        TrainingProfile._finish = finish  # type: ignore[method-assign]


@contextmanager
def history() -> Iterator[None]:
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


def measure(name: str, mode: str, device: str) -> Cost:
    """One run."""
    torch.set_num_threads(1)  # threads that wait for each other use as much processor time as those that work
    torch.set_default_device(device)
    clock, wait = (time.perf_counter, torch.cuda.synchronize) if device == "cuda" else (time.process_time, lambda: None)
    model, optimizer, step = PROGRAMS[name]()
    cost = Cost()
    for _ in range(2):
        step()
    with tempfile.TemporaryDirectory() as folder, apart(cost, clock):
        ours: dict[str, Any] = {"save_dir": folder, "device": device, "screen": "none"}
        contexts: dict[str, Any] = {
            "alone": nullcontext(),
            "torch.profiler": profiler(
                PLAN.num_active_steps, lambda prof: None, num_cycles=PLAN.num_repeats, device=device
            ),
            "ours": TrainingProfile(model, optimizer, schedule=PLAN, **ours),
            "history": history(),
            "watch": TrainingWatch(model, optimizer, **ours),
        }
        before_bytes, start = status_bytes("VmRSS"), clock()
        with contexts[mode] as running:
            end_step = getattr(running, "step", lambda: None)
            for _ in range(PLAN.num_steps):
                began = clock()
                step()
                end_step()
                wait()
                cost.steps_s.append(clock() - began)
            cost.loop_bytes = status_bytes("VmHWM") - before_bytes
        del running, end_step
        contexts.clear()
        gc.collect()
        cost.total_s = clock() - start
        cost.peak_bytes = status_bytes("VmHWM") - before_bytes
    return cost


HEADER = [
    "program", "", "a recorded step", "the whole run", "of it recording", "reading and analysis", "files",
    "memory in the loop", "an event", "memory at the end",
]  # fmt: skip


def middle(costs: Sequence[Cost], read: Callable[[Cost], float]) -> float:
    return statistics.median(read(cost) for cost in costs)


def rows(name: str, num_rounds: int, device: str) -> tuple[list[list[str]], float, float]:
    """A row for each mode; then our recording above torch.profiler's own share, in time and in memory."""
    found: dict[str, list[Cost]] = {mode: [] for mode in MODES + WITHOUT_PROFILER * (device == "cuda")}
    for _ in range(num_rounds):
        for mode, costs in found.items():
            costs.append(in_own_process(measure, name, mode, device))
    num_events = max(cost.num_events for cost in found["ours"])
    alone_s = middle(found["alone"], lambda cost: cost.recording_s)
    alone_bytes = middle(found["alone"], lambda cost: cost.loop_bytes)
    seconds = {mode: middle(costs, lambda cost: cost.recording_s) - alone_s for mode, costs in found.items()}
    sizes = {mode: middle(costs, lambda cost: cost.loop_bytes) - alone_bytes for mode, costs in found.items()}
    table = [
        [
            name,
            mode,
            f"{middle(costs, lambda cost: cost.recorded_step_s) * 1e3:.0f} ms",
            f"{middle(costs, lambda cost: cost.total_s):.2f} s",
            f"{seconds[mode]:.2f} s",
            f"{middle(costs, lambda cost: cost.apart_s):.2f} s",
            f"{middle(costs, lambda cost: cost.files_s):.2f} s",
            f"{sizes[mode] / 2**20:.0f} MiB",
            f"{sizes[mode] / num_events / 1e3:.2f} KB",
            f"{middle(costs, lambda cost: cost.peak_bytes) / 2**20:.0f} MiB",
        ]
        for mode, costs in found.items()
    ]
    bare, ours = MODES[1:]
    print(f"{name}: {num_events:,} events a cycle", flush=True)
    return table, seconds[ours] / seconds[bare] - 1, sizes[ours] / sizes[bare] - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    print(f"torch {torch.__version__}, 1 thread, on {options.device}, medians of {options.rounds}")
    table: Table = [HEADER]
    shares: Table = [["program", "time of recording, above torch.profiler's own", "memory", f"aim {AIM:.0%}"]]
    is_met = True
    for name in options.programs:
        of_program, in_time, in_memory = rows(name, options.rounds, options.device)
        table += of_program
        met = in_time < AIM and in_memory < AIM
        is_met &= met
        shares.append([name, f"{in_time:+.1%}", f"{in_memory:+.1%}", "met" if met else "missed"])
    print(f"\n{as_markdown(table)}\n\n{as_markdown(shares)}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
