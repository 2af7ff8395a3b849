"""The parts of `on_device.py`: each measures one thing on a device and returns its facts by name."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.on_device_options import ROOT, Facts, Options
from models import gpt, resnet
from models.fno_workload import build_fno_workload
from tracer.analysis.kinds import Kind
from tracer.capture.device import devices
from tracer.capture.device.phase_timing import time_phases
from tracer.capture.torch_private import torch_history
from tracer.null_gpu.process import is_active
from tracer.sessions.profile_session import ProfileSession, Schedule

PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
_RECORDED = (2, 3)
_NO_TIMES: Facts = {"left out": "the null GPU computes nothing, so that no time says anything"}
Build = Callable[[Options], Any]
Step = Callable[[], object]


# ---- the program as it stands ----------------------------------------------------------------------------------------


def gpu_tests(options: Options) -> Facts:
    """The tests that need a GPU."""
    if (missing := _missing("pytest", "hypothesis")) is not None:
        return missing
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = ended.stdout.strip().splitlines()
    failed = [line.removeprefix("FAILED ").split(" - ")[0] for line in lines if line.startswith("FAILED")]
    return {"result": lines[-1] if lines else ended.stderr.strip(), "failed": failed}


def command(options: Options) -> Facts:
    """The command line with every file, each read back."""
    if (missing := _missing("typer", "rich")) is not None:
        return missing
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "main.py", "--batch-size", "8", "--device", str(options.device), "--save-dir", folder]
        words += [word for module in options.backends for word in ("--import", module)]
        words += ["--hidden-channels", "8", "--data-size", "16", "--n-modes", "4"] if options.small else []
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(ended.stderr)
        return {**_read_back(Path(folder)), "notes": [line for line in ended.stderr.splitlines() if "Note:" in line]}


def _read_back(folder: Path) -> Facts:
    peak, timing = json.loads((folder / "peak.json").read_text(encoding="utf-8")), folder / "cuda_timing.txt"
    snapshot = pickle.loads((folder / "memory_snapshot.pkl").read_bytes())
    return {
        "peak": peak["allocator_peak_bytes"],
        "rows sum to it": sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"],
        "unexplained": peak["unexplained_bytes"],
        "history entries": sum(map(len, snapshot["device_traces"])),
        "rows of the reports": [_num_rows(report) for report in sorted(folder.glob("*_report.sqlite"))],
        "timing": timing.read_text(encoding="utf-8").strip().splitlines()[-1] if timing.is_file() else "none",
        "files": len(list(folder.iterdir())),
    }


def _num_rows(report: Path) -> int:
    with closing(sqlite3.connect(report)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in tables)


# ---- peaks -----------------------------------------------------------------------------------------------------------


def fno(options: Options) -> Any:
    """The command line's own model."""
    size = {"hidden_channels": 8, "data_size": 16, "n_modes": 4, "n_layers": 1} if options.small else {}
    return build_fno_workload(device=options.device, **size)  # type: ignore[arg-type]


def convnet(options: Options) -> Any:
    """ResNet-50, whose convolutions are cuDNN's."""
    if options.small:
        return resnet.build(batch_size=2, image_size=32, device=options.device)
    return resnet.build_resnet50(batch_size=32, device=options.device)


def transformer(options: Options) -> Any:
    """A GPT with the sizes of GPT-2's smallest."""
    if options.small:
        return gpt.build(batch_size=2, device=options.device)
    return gpt.build(
        batch_size=4, vocabulary=50257, context=1024, width=768, n_layers=12, n_heads=12, device=options.device
    )


def peak_of(build: Build, around: Callable[[Options], AbstractContextManager[Any]], options: Options) -> Facts:
    """Rows, peak and history of a workload's recorded steps against the allocator's own count."""
    with around(options):
        workload = build(options)
        return _peak(options, _step_of(workload), workload.model, workload.optimizer)


def _step_of(workload: Any) -> Step:
    def step() -> None:
        workload.backward(workload.forward(workload.next_batch()))
        workload.optimizer_step()

    return step


def _peak(options: Options, step: Step, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Facts:
    counted = []
    session = ProfileSession(model, optimizer, device=options.device, schedule=PLAN)
    with session:
        for index in range(PLAN.num_steps):
            _reset_peak(options)
            step()
            if index in _RECORDED:
                counted.append(devices.allocator_counters(options.device).get("largest allocated so far", 0))
            session.step()
    peak = session.findings.worst.peak
    facts: Facts = {
        "peak": peak.allocator_peak_bytes,
        "rows sum to it": sum(row.bytes for row in peak.rows) == peak.allocator_peak_bytes,
        "in": f"{peak.phase} of {peak.step}",
        "explained": f"{100 * _explained(peak) / max(1, peak.peak_bytes):.1f} %",
    }
    if max(counted):
        facts |= {"the allocator's count": max(counted), "equal": max(counted) == peak.allocator_peak_bytes}
    if peak.allocator is not None:
        facts |= {
            "blocks in the history": f"{peak.allocator.num_joined:,} of {peak.allocator.num_blocks:,}",
            "asked for": peak.allocator.requested_bytes,
            "reserved": peak.allocator.reserved_bytes,
        }
    return {**facts, "notes": list(session.notes)}


def _explained(peak: Any) -> int:
    return sum(row.bytes for row in peak.rows if row.category not in ("BEFORE_RECORDING", "UNKNOWN"))


def _reset_peak(options: Options) -> None:
    if devices.is_accelerator(options.device):
        torch.accelerator.reset_peak_memory_stats(options.device)


def plainly(options: Options) -> AbstractContextManager[Any]:
    """As it comes."""
    return nullcontext()


def attention(backend: SDPBackend, options: Options) -> AbstractContextManager[Any]:
    """With one kind of attention kernel; bfloat16, which flash attention needs."""
    return _both(sdpa_kernel(backend), torch.autocast(options.device.type, torch.bfloat16))


def in_bfloat16(options: Options) -> AbstractContextManager[Any]:
    """With autocast."""
    return torch.autocast(options.device.type, torch.bfloat16)


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield


def compiled(options: Options) -> Facts:
    """A model behind torch.compile."""
    workload = transformer(options)
    workload.model.compile()
    step = _step_of(workload)
    step()  # compiles
    return _peak(options, step, workload.model, workload.optimizer)


def graph(options: Options) -> Facts:
    """A training step captured once and replayed: no operator and no allocation is seen any more."""
    if not hasattr(devices.module_of(options.device), "CUDAGraph"):
        return {"left out": f"{options.device.type} captures no graphs"}
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.randn(64, 1024, device=options.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream(options.device)
    side.wait_stream(torch.cuda.current_stream(options.device))
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream(options.device).wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return _peak(options, captured.replay, model, optimizer)


def out_of_memory(options: Options) -> Facts:
    """A step that asks for more than the device has, explained."""
    state = devices.allocator_counters(options.device)
    if not state.get("device"):
        return {"left out": "the device does not say how much memory it has"}
    workload = fno(options)
    step = _step_of(workload)
    session = ProfileSession(workload.model, workload.optimizer, device=options.device, schedule=PLAN)
    try:
        with session:
            for index in range(PLAN.num_steps):
                step()
                if index in _RECORDED:
                    torch.empty(2 * state["device"], dtype=torch.uint8, device=options.device)
                session.step()
    except torch.OutOfMemoryError:
        allocated = devices.allocated_bytes(options.device)
    explained = session.failed_allocation
    if explained is None:
        return {"explained": False, "notes": list(session.notes)}
    failed = explained.event
    kinds = {group.kind: 0 for group in failed.groups}
    for group in failed.groups:
        kinds[group.kind] += group.bytes
    return {
        "explained": True,
        "asked for": failed.asked_bytes,
        "allocated": failed.allocated_bytes,
        "the allocator's count": allocated,
        "equal": allocated == failed.allocated_bytes,
        "not known": kinds.get(Kind.UNKNOWN, 0),
        "advice": failed.advice,
    }


# ---- times -----------------------------------------------------------------------------------------------------------


def phase_times(options: Options) -> Facts:
    """Phases as the program times them against events placed by hand around the same calls, in turn."""
    if is_active():
        return _NO_TIMES
    workload = fno(options)
    batch = workload.next_batch()
    _hand_timed(workload, batch, options, num_steps=3)
    ours = time_phases(
        forward=lambda: workload.forward(batch),
        backward=workload.backward,
        optimizer_step=workload.optimizer_step,
        device=options.device,
    )
    by_hand = _hand_timed(workload, batch, options, num_steps=6)
    return {
        f"{name} ms, ours and by hand": [round(ours.mean_ms(name), 3), round(statistics.fmean(by_hand[name]), 3)]
        for name in by_hand
    }


def _hand_timed(workload: Any, batch: Any, options: Options, *, num_steps: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"model_fwd": [], "loss_bk": [], "opt_step": []}
    for _ in range(num_steps):
        edges = [_edge(options)]
        loss = workload.forward(batch)
        edges.append(_edge(options))
        workload.backward(loss)
        edges.append(_edge(options))
        workload.optimizer_step()
        edges.append(_edge(options))
        devices.synchronize(options.device)
        for name, before, after in zip(found, edges[:-1], edges[1:], strict=True):
            is_event = hasattr(before, "elapsed_time")
            found[name].append(before.elapsed_time(after) if is_event else (after - before) * 1e3)
    return found


def _edge(options: Options) -> Any:
    return devices.record_event(options.device) if devices.has_events(options.device) else time.perf_counter()


def profiled_step(options: Options) -> Facts:
    """Wall time of a step by itself, under bare torch.profiler with the same flags, and under the session.

    In turn, twice; the second time counts, since what is made once (plans, CUPTI) is made in the first.
    """
    if is_active():
        return _NO_TIMES
    workload = fno(options)
    step = _step_of(workload)
    steps = PLAN.num_active_steps * 4
    _seconds_a_step(step, options, 3)
    alone = _seconds_a_step(step, options, steps)

    def bare() -> AbstractContextManager[Any]:
        return torch.profiler.profile(
            activities=devices.profiler_activities(options.device),
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=steps + 1, repeat=1),
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
        )

    def ours() -> AbstractContextManager[Any]:
        plan = Schedule(0, 1, steps + 1, 1)
        return ProfileSession(workload.model, workload.optimizer, device=options.device, schedule=plan)

    times = {}
    for name, make in 2 * (("bare torch.profiler", bare), ("ours", ours)):
        with make() as watching:
            step()
            watching.step()
            times[name] = _seconds_a_step(partial(_watched_step, step, watching), options, steps)
    return {
        "ms alone, bare, ours": [round(1e3 * one, 3) for one in (alone, *times.values())],
        "ours to bare": round(times["ours"] / times["bare torch.profiler"], 3),
    }


def _watched_step(step: Step, watching: Any) -> None:
    step()
    watching.step()


def history(options: Options) -> Facts:
    """Wall time of a step with the allocator's history on and off, in turn."""
    if is_active():
        return _NO_TIMES
    if not torch_history.has_allocator_history(options.device):
        return {"left out": f"the allocator of {options.device.type} has no history"}
    step = _step_of(fno(options))
    _seconds_a_step(step, options, 3)
    off, on = [], []
    for _ in range(3):
        off.append(_seconds_a_step(step, options, 5))
        torch_history.start_allocator_history(options.device, 1_000_000)
        on.append(_seconds_a_step(step, options, 5))
        torch_history.stop_allocator_history(options.device)
    ms = [round(1e3 * statistics.median(each), 3) for each in (off, on)]
    return {"ms off and on": ms, "on to off": round(ms[1] / ms[0], 3)}


def _seconds_a_step(step: Step, options: Options, num_steps: int) -> float:
    devices.synchronize(options.device)
    begin = time.perf_counter()
    for _ in range(num_steps):
        step()
    devices.synchronize(options.device)
    return (time.perf_counter() - begin) / num_steps


def _missing(*packages: str) -> Facts | None:
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return {"left out": f"needs {' and '.join(absent)}"} if absent else None


PARTS: dict[str, Callable[[Options], Facts]] = {
    "gpu tests": gpu_tests,
    "command": command,
    "peak of fno": partial(peak_of, fno, plainly),
    "peak of resnet-50": partial(peak_of, convnet, plainly),
    "peak of gpt, flash attention": partial(peak_of, transformer, partial(attention, SDPBackend.FLASH_ATTENTION)),
    "peak of gpt, efficient attention": partial(
        peak_of, transformer, partial(attention, SDPBackend.EFFICIENT_ATTENTION)
    ),
    "peak of gpt, math attention": partial(peak_of, transformer, partial(attention, SDPBackend.MATH)),
    "peak of resnet-50, bf16 autocast": partial(peak_of, convnet, in_bfloat16),
    "peak of a CUDA graph": graph,
    "peak of gpt, torch.compile": compiled,
    "out of memory": out_of_memory,
    "phase times": phase_times,
    "profiled step": profiled_step,
    "history on and off": history,
}
"""In the order of their importance."""
