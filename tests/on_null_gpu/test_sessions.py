"""Loops that only a device with memory of its own can show: several devices, no memory left, nothing allocated."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

from tests.on_null_gpu.small_cards import leave_bytes
from tests.skips import by_default
from tests.truth.isolate import Elsewhere, runs_elsewhere
from tracer import TimelineTracer
from tracer.answers.answer_of_findings import headline
from tracer.answers.failure_lines import failure_lines
from tracer.answers.findings import CycleFindings, RunFindings
from tracer.answers.run_results import RunResults
from tracer.blocks.from_recording.allocator_join import reserved_ranges
from tracer.capture.device.allocator_history import record_from_start
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.capture.torch_private.torch_history import allocator_history_enabled
from tracer.errors import Terminated
from tracer.exporters.page.html import data_of_html
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.session import ScriptVoice
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.training_profile import TrainingProfile, profile_training

PLAN = Schedule(1, 1, 2, 1)
DEVICES = ("cuda:0", "cuda:1")
MIB = 1 << 20
Step = Callable[[int], object]


@dataclass(frozen=True)
class Trained:
    """A profile, and the allocators' counts over the recorded steps."""

    session: TrainingProfile
    findings: RunFindings
    counted: tuple[int, int]
    files: set[str]
    pages: list[tuple[str, int, bool]]

    def assert_laws(self, device: int) -> None:
        """Compare the rows with what this device's allocator counted, and look for every file."""
        cycle = self.findings.worst
        peak, history = cycle.peak, cycle.peak.allocator
        assert self.findings.device == f"cuda:{device}"
        assert sum(row.bytes for row in peak.rows) == peak.allocator_peak_bytes == self.counted[device]
        assert history is None or history.num_joined == history.num_blocks
        # The history's segments are what the profiler counts as reserved, at every event.
        same, of = reserved_over(self.findings.parts[-1])
        assert same == of and (of > 0) == (history is not None)
        assert [written.error for written in self.session.written if written.error is not None] == []
        written = {"max_mem.txt", "peak.json", "memory_timeline.html", "memory_snapshot.pkl", "memory_report.sqlite"}
        assert self.files == written


def reserved_over(cycle: CycleFindings) -> tuple[int, int]:
    """At how many events the history's segments sum to what the profiler says is reserved, and of how many."""
    history = cycle.source.history
    found = reserved_ranges(history, cycle.source.lifetimes) if history is not None else None
    if found is None:
        return 0, 0
    events = cycle.source.lifetimes.events
    level = np.zeros(len(events) + 1, np.int64)
    np.add.at(level, np.maximum(found.begin, 0), found.size_bytes)
    np.add.at(level, found.end, -found.size_bytes)
    counted = cycle.source.recording.allocations.total_reserved_bytes[events]
    same = np.cumsum(level)[:-1] == counted
    return int(same[found.known_from :].sum()), len(events) - found.known_from


def train(
    model: nn.Module, step: Step, optimizer: torch.optim.Optimizer | None = None, device: str | None = None
) -> Trained:
    """Profile a loop of steps."""
    counted = []
    with tempfile.TemporaryDirectory() as folder:
        session = profile_training(model, optimizer, save_dir=folder, schedule=PLAN, device=device)
        with session:
            for index in range(PLAN.num_steps):
                for number in range(2):
                    torch.accelerator.reset_peak_memory_stats(number)
                step(index)
                if 2 <= index < 4:
                    counted.append([torch.accelerator.max_memory_allocated(number) for number in range(2)])
                session.step()
        assert session.results is not None and session.results.findings is not None, session.results
        (page,) = [data_of_html((session.folder / "memory_timeline.html").read_text("utf-8"))]
        pages = [(page["device"], page["peak"]["bytes"], page["space"] is not None) for page in page["pages"]]
        first, second = map(max, zip(*counted, strict=True))
        files = {path.name for path in session.folder.iterdir()}
        return Trained(session, session.results.findings, (first, second), files, pages)


class Split(nn.Module):
    """Layers on one device after another."""

    def __init__(self, *places: tuple[str, int]) -> None:
        super().__init__()
        widths = [16, *(width for _, width in places)]
        pairs = zip(places, widths, strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, width, device=place) for (place, width), before in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x.to(next(layer.parameters()).device)))
        return x


def usual_step(model: nn.Module, optimizer: torch.optim.Optimizer, place: str = "cuda:0") -> Step:
    """Forward, backward, optimizer."""

    def step(index: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 16, device=place)).pow(2).mean().backward()
        optimizer.step()

    return step


def train_split(*widths: int, device: str | None = None) -> Trained:
    """A model whose layers take turns on the two devices."""
    model = Split(*((DEVICES[number % 2], width) for number, width in enumerate(widths)))
    optimizer = torch.optim.AdamW(model.parameters())
    return train(model, usual_step(model, optimizer), optimizer, device)


@runs_elsewhere
def test_of_two_devices_the_one_that_holds_most_is_explained_and_the_other_named() -> None:
    """A small first layer, which has the first parameter, and large ones on the other device."""
    found = train_split(8, 4096)
    found.assert_laws(1)
    assert found.findings.other_devices == {"cuda:0": found.counted[0]}
    assert found.session.results is not None
    (note,) = (note for note in found.session.results.notes if "Other devices" in note)
    assert "about cuda:1, which held most" in note and "cuda:0 up to" in note
    # The page has both, each with its own peak and segments.
    assert found.pages == [("cuda:1", found.counted[1], True), ("cuda:0", found.counted[0], True)]


@runs_elsewhere
def test_a_device_that_was_named_is_explained_whatever_others_hold() -> None:
    found = train_split(8, 4096, device="cuda:0")
    found.assert_laws(0)
    assert found.findings.other_devices == {"cuda:1": found.counted[1]}


@runs_elsewhere
def test_an_embedding_on_the_cpu_makes_no_run_of_the_cpu() -> None:
    """The first parameter, and most of all bytes, are on the CPU."""
    embedding, top = nn.EmbeddingBag(20_000, 16), nn.Linear(16, 64, device="cuda:0")
    optimizer = torch.optim.SGD([*embedding.parameters(), *top.parameters()], lr=0.1)

    def step(index: int) -> None:
        optimizer.zero_grad()
        top(embedding(torch.randint(0, 20_000, (32, 4), device="cpu")).to("cuda:0")).sum().backward()
        optimizer.step()

    train(nn.Sequential(embedding, top), step, optimizer).assert_laws(0)


@runs_elsewhere
def test_a_device_without_a_number_is_the_current_one() -> None:
    """In a session and in the bare callback."""
    torch.cuda.set_device(1)
    model = nn.Linear(16, 64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = usual_step(model, optimizer, "cuda")
    train(model, step, optimizer, "cuda").assert_laws(1)
    tracer = TimelineTracer(device="cuda")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
        on_trace_ready=tracer,
    ) as profiler:
        for index in range(3):
            step(index)
            profiler.step()
    assert tracer.findings.device == "cuda:1"


@runs_elsewhere
def test_steps_that_allocate_nothing_are_told_what_the_device_holds() -> None:
    """As a replayed CUDA graph: everything is where it was, and nobody allocates.

    Weight and bias of 4096 and 256 bytes, and 20,000 bytes that a local variable holds, rounded up to 20,480.
    """
    model, held = nn.Linear(16, 64, device="cuda:0"), torch.zeros(5000, device="cuda:0")

    def step(index: int) -> None:
        with torch.no_grad():
            for tensor in (*model.parameters(), held):
                tensor.zero_()

    found = train(model, step)
    found.assert_laws(0)
    assert found.findings.worst.peak.allocator_peak_bytes == 4096 + 512 + 20480
    assert found.findings.worst.peak.by_category() == {"HELD": 20480, "PARAMETER": 4608}


# ---- out of memory ---------------------------------------------------------------------------------------------------


class _Greedy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ask: Callable[[], None]) -> Tensor:
        ctx.ask = ask
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.ask()
        return gradients[0], None


def run_out_in(where: str, at_step: int = 2, on: int = 0) -> tuple[RunResults, dict[str, int]]:
    """Ask for 100 MiB of 64 in one of the phases of a step; step 2 is recorded, step 0 is not.

    Args:
        where: forward, backward or optimizer.
        at_step: In which step.
        on: On which device; the model is on the first.

    Returns:
        The results, and the allocator's counters at that moment.
    """
    counted = dict[str, int]()
    leave_bytes(on, 64 << 20)
    model = nn.Sequential(nn.Linear(16, 4096), nn.GELU(), nn.Linear(4096, 16)).to("cuda:0")

    def ask(now: str, index: int) -> None:
        if (now, index) != (where, at_step):
            return
        try:
            torch.empty(100 << 20, dtype=torch.uint8, device=torch.device("cuda", on))
        except torch.OutOfMemoryError:
            stats = torch.accelerator.memory_stats(on)
            counted.update(
                {name: stats[f"{name}_bytes.all.current"] for name in ("allocated", "reserved", "requested")}
            )
            raise

    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: ask("optimizer", index))
    index = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(torch.OutOfMemoryError),
        profile_training(model, optimizer, save_dir=folder, schedule=PLAN) as session,
    ):
        for index in range(PLAN.num_steps):
            optimizer.zero_grad()
            y = model(torch.randn(32, 16, device="cuda:0"))
            ask("forward", index)
            y = _Greedy.apply(y, partial(ask, "backward", index))  # type: ignore[no-untyped-call]
            y.pow(2).mean().backward()
            optimizer.step()
            session.step()
    assert session.results is not None
    return session.results, counted


@pytest.mark.parametrize(
    ("where", "step"),
    by_default(
        product(("forward", "backward", "optimizer"), (0, 2)), [("forward", 0), ("backward", 2), ("optimizer", 2)]
    ),
)
@runs_elsewhere
def test_out_of_memory_is_explained_with_the_allocators_numbers(where: str, step: int) -> None:
    results, counted = run_out_in(where, step)
    assert results.device == "cuda:0" and results.failed_allocation is not None and results.failure is not None
    failed = results.failed_allocation.event
    assert failed.asked_bytes == 100 * MIB
    assert failed.allocated_bytes == counted["allocated"]
    assert failed.reserved_bytes == counted["reserved"]
    assert sum(group.bytes for group in failed.groups) == failed.requested_bytes == counted["requested"]
    free_bytes = (64 << 20) - failed.reserved_bytes
    assert failed.device_free_bytes == free_bytes == dict(results.failure.allocator)["free on the device"]
    assert failed.site.file is not None and failed.site.file.endswith("test_sessions.py")
    # Recorded or not: of step 0 by what the program holds when it fails.
    kinds = {group.kind.words for group in failed.groups}
    assert "parameter" in kinds and "not known" not in kinds
    if step == 2:
        assert "optimizer state" in kinds
    else:
        assert ("activation" in kinds) == ("input" in kinds) == (where != "optimizer")
    assert ("gradient" in kinds) == (where == "optimizer")


@runs_elsewhere
def test_out_of_memory_on_the_second_device_is_about_that_one() -> None:
    results, _ = run_out_in("forward", 2, on=1)
    assert results.failed_allocation is not None and results.failure is not None
    failed = results.failed_allocation.event
    assert (failed.asked_bytes, failed.allocated_bytes, failed.reserved_bytes) == (100 * MIB, 0, 0)
    assert failed.device_free_bytes == dict(results.failure.allocator)["free on the device"] == 64 * MIB
    assert any("step 3 ran out of memory" in line.lower() for line in failure_lines(results))


def run_out_while_validating(*, with_gradients: bool = True, trains_in: str = "training") -> tuple[str, str]:
    """A validation that adds up its losses: what is advised, also where it is read again, and what is tried first.

    Args:
        with_gradients: Whether its calls record them; if not, memory ends at a request of its own.
        trains_in: The mode that the training is in.
    """
    leave_bytes(0, 64 << 20)
    model = nn.Sequential(nn.Linear(16, 1024), nn.GELU(), nn.Linear(1024, 16)).to("cuda:0")
    model.train(trains_in == "training")
    optimizer = torch.optim.SGD(model.parameters())
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(torch.OutOfMemoryError),
        profile_training(model, optimizer, save_dir=folder, schedule=PLAN) as session,
    ):
        for _ in range(3):
            model(torch.randn(32, 16, device="cuda:0")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
        model.eval()
        total = torch.zeros((), device="cuda:0")
        with torch.set_grad_enabled(with_gradients):
            for _ in range(20):
                total = total + model(torch.randn(1024, 16, device="cuda:0")).square().mean()
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda:0")
    results: Any = session.results
    again = results_of(kept_run(results)).failed_allocation
    assert again is not None and again.event.advice == results.failed_allocation.event.advice
    first = results.failed_allocation.first.changes
    return again.event.advice, first[0].words if first else ""


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("training", r"The model is called at \S+ without a backward behind it"),
        pytest.param("evaluation", r"Memory grows: each of \d+ iterations left 8\.12 MiB", marks=pytest.mark.slow),
    ],
)
@runs_elsewhere
def test_a_validation_with_gradients_on_is_told_of_no_grad(mode: str, cause: str) -> None:
    """First of all, by a replay without what it keeps, and again where a kept recording is read; in whatever mode."""
    advice, first = run_out_while_validating(trains_in=mode)
    assert re.search(cause, advice)
    assert first.startswith("evaluate under `with torch.no_grad():`")


@pytest.mark.slow
@runs_elsewhere
def test_nothing_is_said_of_it_without_gradients() -> None:
    advice, first = run_out_while_validating(with_gradients=False)
    assert "no_grad" not in advice + first


@runs_elsewhere
def test_the_workspace_of_cublas_is_no_modules() -> None:
    model = nn.Sequential(nn.Linear(16, 16)).to("cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = usual_step(model, optimizer)
    with tempfile.TemporaryDirectory() as folder, profile_training(model, optimizer, save_dir=folder) as session:
        for index in range(8):
            step(index)
            session.step()
    assert session.results is not None and session.results.findings is not None
    cycle = session.results.findings.worst
    scratch = [row for row in cycle.peak.rows if row.category == "WORKSPACE"]
    if are_workspaces_kept():
        assert scratch == []
        return
    assert [(row.module, row.name, row.bytes) for row in scratch] == [("(cuBLAS)", "cuBLAS workspace", 32 * MIB)]
    assert {row.module for row in cycle.peak.rows if row not in scratch} == {"0", "(training loop)"}


# ---- histories -------------------------------------------------------------------------------------------------------


@runs_elsewhere
def test_a_history_of_somebody_elses_is_left_on() -> None:
    record_from_start()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    first = torch.empty(12345, dtype=torch.uint8, device="cuda:0")
    model = nn.Linear(16, 64, device="cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, usual_step(model, optimizer), optimizer)
    entries = [entry for entry in torch.cuda.memory._snapshot()["device_traces"][0] if entry["action"] == "alloc"]
    del first
    assert allocator_history_enabled(torch.device(DEVICES[0])) and entries[0]["size"] == 12345


@runs_elsewhere
def test_a_history_that_is_on_from_the_start_ends_with_the_first_session() -> None:
    record_from_start()
    table = torch.empty(12345, dtype=torch.uint8, device="cuda:0")
    line = sys._getframe().f_lineno - 1
    model = nn.Linear(16, 64, device="cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(torch.OutOfMemoryError),
        profile_training(model, optimizer, save_dir=folder, schedule=Schedule(0, 0, 1, 1)) as session,
    ):
        model(torch.randn(32, 16, device="cuda:0"))
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda:0")
    assert session.results is not None and session.results.failed_allocation is not None
    in_use = session.results.failed_allocation.in_use
    assert in_use is not None
    lines = {(row.category, row.line): row.bytes for row in in_use.rows if row.phase == "before recording"}
    del table
    assert not allocator_history_enabled(torch.device(DEVICES[0])) and lines["HELD", line] == 12800  # 12,345, rounded


@runs_elsewhere
def test_a_failure_right_behind_the_recorded_steps_is_explained() -> None:
    model = nn.Linear(16, 64, device="cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, plan = usual_step(model, optimizer), Schedule(0, 1, 1, 2)
    with (
        suppress(torch.OutOfMemoryError),
        ProfileSession(model, optimizer, schedule=plan, voice=ScriptVoice()) as session,
    ):
        for index in range(plan.num_steps - 1):
            step(index)
            session.step()
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda:0")
    assert session.num_steps_done == 4 and session.cycles.failed_allocation is not None


@pytest.mark.slow
@runs_elsewhere
def test_a_failure_behind_a_recording_that_was_dropped_is_explained() -> None:
    """For its imports."""
    model = nn.Linear(16, 64, device="cuda:0")
    with (
        suppress(torch.OutOfMemoryError),
        ProfileSession(model, schedule=Schedule(0, 0, 2, 1), voice=ScriptVoice()) as session,
    ):
        model(torch.ones(1, 16, device="cuda:0"))
        for index in range(200):
            with suppress(ImportError):
                import_module(f"no_module_{index}")
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda:0")
    failed = session.cycles.failed_allocation
    assert len(session.findings.parts) == 1 and failed is not None and failed.event.asked_bytes == 1 << 40


@pytest.mark.slow
@runs_elsewhere
def test_a_session_that_begins_on_the_cpu_goes_over_to_the_history_of_the_gpu() -> None:
    record_from_start()
    with (
        tempfile.TemporaryDirectory() as folder,
        profile_training(nn.Linear(16, 8), save_dir=folder, schedule=Schedule(0, 0, 2, 1)) as session,
    ):
        for device in ("cpu", "cuda"):
            model = nn.Linear(16, 64, device=device)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.randn(32, 16, device=device)).sum().backward()
            optimizer.step()
            session.step()
    findings = session.results.findings
    assert findings is not None and findings.device == "cuda:0" and findings.worst.peak.allocator is not None
    assert not any("does not offer" in note for note in session.results.notes)


def train_on_the_cpu(freed: str, device: str | None = None) -> tuple[str, int]:
    """While a tensor lies on the GPU, or after one that was read.

    Args:
        freed: When it is: `before`, `within` the step that is recorded, or `behind` it, where no step ends.

    Returns:
        The headline, and the bytes of the rows.
    """
    there = [torch.ones(4, device="cuda")]
    float(there[0].sum())
    if freed == "before":
        there.clear()
    model = nn.Linear(16, 64)
    optimizer = torch.optim.Adam(model.parameters())
    with (
        tempfile.TemporaryDirectory() as folder,
        profile_training(model, optimizer, device=device, save_dir=folder, schedule=Schedule(0, 0, 1, 2)) as session,
    ):
        model(torch.randn(32, 16)).sum().backward()
        if freed == "within":
            there.clear()
        optimizer.step()
        session.step()
        there.clear()
    findings = session.results.findings
    assert findings is not None
    return headline(findings), sum(row.bytes for row in findings.worst.peak.rows)


class PythonInBackward(torch.autograd.Function):
    """Sends this process a signal in its own backward, where asked to, and then calls Python functions."""

    signal_now: ClassVar[int | None] = None

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return a copy."""
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient, after the calls."""
        number, PythonInBackward.signal_now = PythonInBackward.signal_now, None
        if number is not None:
            assert threading.current_thread() is not threading.main_thread(), "or there is nothing to be seen"
            os.kill(os.getpid(), number)
            for _ in range(20_000):
                _function()
        return gradients[0]


def _function() -> None:
    """Be called."""


def sent_in_backward(number: int, raised: type[BaseException], *, is_handled_by_program: bool) -> tuple[int, set[str]]:
    """Send a signal in the backward of a recorded step.

    Returns:
        Steps that ended before, and names of the files.
    """

    def limit(number: int, frame: object) -> None:
        raise raised

    before = signal.signal(number, limit) if is_handled_by_program else signal.getsignal(number)
    model = nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        try:
            with profile_training(
                model, optimizer, save_dir=folder, schedule=Schedule(1, 1, 2, 1), screen="none"
            ) as session:
                for step in range(5):
                    if step == 2:
                        PythonInBackward.signal_now = number
                    PythonInBackward.apply(model(torch.rand(8, 64, device="cuda"))).sum().backward()
                    optimizer.step()
                    session.step()
        except raised:
            pass
        finally:
            signal.signal(number, before)
        return session.num_steps_done, {path.name for path in Path(folder).iterdir()}


def rows_and_count(schedule: Schedule) -> list[tuple[int, int, int]]:
    """Return for each cycle its rows' bytes, its peak, and torch's highest counter over its steps.

    The gradient of 4,096,000 bytes takes a hole of 4 MiB, of which the rest is too little to split off. It is in use at
    the peak, in the next step's forward, and a recording of one step has not seen it being allocated.
    """
    model = nn.Linear(1024, 1000, bias=False).cuda()
    hole, behind = (torch.empty(size, dtype=torch.uint8, device="cuda") for size in (4 << 20, 3 << 19))
    del hole
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counted: list[int] = []
    with ProfileSession(model, optimizer, schedule=schedule) as session:
        for _ in range(schedule.num_steps):
            torch.cuda.reset_peak_memory_stats()
            loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
            torch.empty(32 << 20, device="cuda")  # the peak
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del loss
            counted.append(torch.cuda.max_memory_allocated())
            session.step()
    del behind
    length = schedule.num_wait_steps + schedule.num_warmup_steps + schedule.num_active_steps
    found = []
    for number, cycle in enumerate(session.findings.parts):
        recorded = counted[(number + 1) * length - schedule.num_active_steps : (number + 1) * length]
        rows = sum(row.bytes for row in cycle.peak.rows)
        found.append((rows, cycle.peak.allocator_peak_bytes, max(recorded)))
    return found


@runs_elsewhere
def test_the_rows_sum_to_the_count_in_every_schedule() -> None:
    """Of blocks from before a recording the history has what was requested, and a look what the allocator gave."""
    for steps, cycles in ((1, 1), (1, 4), (2, 1), (4, 2)):
        found = rows_and_count(Schedule(1, 1, steps, cycles))
        assert len(found) == cycles
        assert all(rows == peak == counted for rows, peak, counted in found), (steps, cycles, found)


@runs_elsewhere
def test_a_checkpointed_loss_goes_through_beside_a_history_with_stacks_of_frees() -> None:
    """With torch 2.11 such a stack loses the error by which a recomputation ends: the backward would raise another."""
    head = nn.Linear(512, 3000, bias=False, device="cuda")
    optimizer = torch.optim.SGD(head.parameters(), 0.1)

    def loss_of(hidden: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(head(hidden), wanted)

    with tempfile.TemporaryDirectory() as folder, profile_training(head, optimizer, save_dir=Path(folder)) as session:
        for _ in range(3):
            hidden = torch.randn(512, 512, device="cuda", requires_grad=True)
            checkpoint(loss_of, hidden, torch.randint(0, 3000, (512,), device="cuda"), use_reentrant=False).backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    assert session.results is not None
    assert session.results.failure is None, session.results.notes


@pytest.mark.slow
def test_training_on_the_cpu_beside_a_tensor_of_the_gpu_and_after_it(elsewhere: Elsewhere) -> None:
    """The view of all memory, by which the null GPU reads values, is no memory of the CPU's."""
    beside, num_bytes = elsewhere(train_on_the_cpu, "behind")
    assert beside.startswith("Peak: 512 B on cuda:0 ") and num_bytes == 512
    after, num_bytes = elsewhere(train_on_the_cpu, "before")
    assert " on cpu in " in after and 0 < num_bytes < MIB
    named, num_bytes = elsewhere(train_on_the_cpu, "within", device="cuda")
    assert named.startswith("The recorded steps allocated nothing on cuda:0.") and num_bytes == 0


@pytest.mark.parametrize(
    ("number", "raised", "is_handled_by_program"),
    [
        pytest.param(signal.SIGTERM, Terminated, False, marks=pytest.mark.slow),
        (signal.SIGINT, KeyboardInterrupt, False),
        pytest.param(signal.SIGALRM, TimeoutError, True, marks=pytest.mark.slow),
    ],
)
def test_a_signal_while_autograds_thread_runs_python_ends_the_step_and_not_the_recording(
    number: int, raised: type[BaseException], is_handled_by_program: bool, elsewhere: Elsewhere
) -> None:
    """CPython 3.11 would run that thread in circles until the main thread, which waits for it, has run the handler."""
    num_steps, files = elsewhere(sent_in_backward, number, raised, is_handled_by_program=is_handled_by_program)
    assert num_steps == 2
    assert {"peak.json", "memory_timeline.html", "memory_snapshot.pkl"} <= files
