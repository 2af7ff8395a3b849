"""What else the program does on a device: lines, out of memory, watch, files, graphs, times, kernels, DDP."""

from __future__ import annotations

import runpy
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from tracer.analysis.kinds import Kind
from tracer.capture.device import devices
from tracer.capture.device.device_ledger import device_ledger
from tracer.capture.device.phase_timing import time_phases
from tracer.capture.torch_private import torch_history
from tracer.exporters.json_documents.peak import read_peak_json
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.null_gpu.process import is_active
from tracer.results.doctor import Fact, Outcome, failed, passed, skipped
from tracer.sessions.doctor.installed import SEND_REPORT, TRY_NULL_GPU
from tracer.sessions.doctor.trained import PLAN, PROGRAMS, RECORDED, record, wrong_peak
from tracer.sessions.output_files import write_outputs
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_watch import TrainingWatch
from tracer.sessions.workload_run import run_profile
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay
from tracer.units import MIB, format_bytes
from tracer.workloads.workload import Workload, train_step

_WIDTH = 512
_SAMPLES = 2048
"""So many that the peak is in the backward of the line that keeps, whether torch keeps cuBLAS's workspaces or not."""
_NO_TIMES = "The null GPU computes nothing, so that it has no times."
_MOST_FACTOR_OF_TIMES = 1.5
"""By how much two ways to time the same steps may differ: clocks of a GPU change from step to step."""
_LEAST_PART_OF_KERNELS, _MOST_PART_OF_KERNELS = 0.5, 1.1
"""Durations of kernels beside the time between two events around them, of products of matrices that fill a GPU."""
_MOST_CONTEXT_ABOVE = 300 * MIB
_MOST_WAIT = timedelta(minutes=1)
"""Of a rank for the other one."""


_NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide = nn.Linear(width, width, bias=False)  # whose gradient would have scratch of its own
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        hidden = self.wide(x)
        kept = torch.sigmoid(hidden)
        return self.out(kept)


kept_batches = []


def keep(num_bytes, device):
    kept_batches.append(torch.ones(num_bytes, dtype=torch.uint8, device=device))
"""
"""A user's program, one of whose lines keeps a block of known size: lines of this program itself are never shown."""
_LINE_THAT_KEEPS = 1 + _NET.splitlines().index("        kept = torch.sigmoid(hidden)")
_WATCHED_STEPS = 8


def _net(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    return _trained(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Sigmoid(), nn.Linear(_WIDTH, 1)).to(device), device)


def _trained(
    model: nn.Module, device: torch.device, of: type[torch.optim.SGD | torch.optim.AdamW] = torch.optim.SGD
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    optimizer = of(model.parameters())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(_SAMPLES, _WIDTH, device=device)).square().mean().backward()
        optimizer.step()

    return model, optimizer, step


def lines(device: torch.device) -> Outcome:
    """Is a block of known size at the line and of the kind that its program knows?"""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        file = Path(folder, "net.py")
        file.write_text(_NET, encoding="utf-8")
        model, optimizer, step = _trained(runpy.run_path(str(file))["Net"](_WIDTH).to(device), device)
        session = ProfileSession(model, optimizer, device=device, schedule=PLAN)
        record(session, step, device)
        rows = session.findings.worst.peak.rows
    wanted = _SAMPLES * _WIDTH * torch.float32.itemsize
    at_line = [row for row in rows if row.line == _LINE_THAT_KEEPS and row.file == str(file)]
    found = {row.category: sum(other.bytes for other in at_line if other.category == row.category) for row in at_line}
    facts: dict[str, Fact] = {"wanted": wanted, "found": [f"{kind}: {size}" for kind, size in found.items()]}
    if found.get(Kind.ACTIVATION.name) != wanted:  # gradients of backward stand at the line of their forward
        sentence = f"The line that keeps {wanted:,} bytes of activations has {found or 'nothing'} in the rows."
        return failed(sentence, SEND_REPORT, **facts)
    return passed(f"{format_bytes(wanted)} of activations are at the line that keeps them.", **facts)


# --------------------------------------------------------------------------------------------------- memory that ends
def out_of_memory(device: torch.device) -> Outcome:
    """Is a request that a memory fraction refuses explained by the allocator's own figures?"""
    limit = getattr(devices.module_of(device), "set_per_process_memory_fraction", None)
    memory = devices.device_memory(device)
    if limit is None or memory is None:
        return skipped(
            f"The {device.type.upper()} has no memory fraction, so that memory cannot be made to end.", TRY_NULL_GPU
        )
    model, optimizer, step = _net(device)
    session = ProfileSession(model, optimizer, device=device, schedule=PLAN)
    asked, allocated = 256 * MIB, None
    step()
    limit(((devices.reserved_bytes(device) or 0) + 64 * MIB) / memory[1], device)
    try:
        with session:
            for index in range(PLAN.num_steps):
                step()
                if index == RECORDED[0]:
                    torch.empty(asked, dtype=torch.uint8, device=device)
                session.step()
    except torch.OutOfMemoryError:
        allocated = devices.allocated_bytes(device)
    finally:
        limit(1.0, device)
    if allocated is None:
        return failed("A request above the memory fraction was served.", SEND_REPORT)
    explained = session.failed_allocation
    if explained is None:
        return failed(" ".join(["Memory ended, and nothing explains it.", *session.notes]), SEND_REPORT)
    event = explained.event
    unknown = sum(group.bytes for group in event.groups if group.kind is Kind.UNKNOWN)
    facts: dict[str, Fact] = {"asked": event.asked_bytes, "allocated": event.allocated_bytes, "unknown": unknown}
    facts["counted"] = allocated
    if event.asked_bytes != asked or event.allocated_bytes != allocated:
        sentence = f"{event.asked_bytes:,} bytes asked for with {event.allocated_bytes:,} allocated are explained, and "
        return failed(f"{sentence}torch had {asked:,} and {allocated:,}.", SEND_REPORT, **facts)
    if sum(group.bytes for group in event.groups) != event.requested_bytes:
        return failed("What was in use when memory ended does not sum to what was requested.", SEND_REPORT, **facts)
    return passed(f"Explained: {format_bytes(asked)} asked for with {format_bytes(allocated)} allocated.", **facts)


def watch(device: torch.device) -> Outcome:
    """Does a watched training name the line whose memory grows?"""
    if not torch_history.has_allocator_history(device):
        return skipped(
            f"The {device.type.upper()} has no allocator history: a watch there sees growth over many steps, no lines.",
            TRY_NULL_GPU,
        )
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        file = Path(folder, "net.py")
        file.write_text(_NET, encoding="utf-8")
        program = runpy.run_path(str(file))
        model, optimizer, step = _trained(program["Net"](_WIDTH).to(device), device)
        watching = TrainingWatch(model, optimizer, save_dir=folder, device=device, on_signal=None, screen="none")
        with watching:
            for _ in range(_WATCHED_STEPS):
                step()
                program["keep"](MIB, device)
                watching.step()
            report = watching.write()
            allocated = devices.allocated_bytes(device)
    if watching.fault is not None:
        raise watching.fault
    if report is None:
        return failed("A watched training wrote no report.", SEND_REPORT)
    outlived = sum(each.bytes_per_step for each in report.outlived if each.line and each.line.file == str(file))
    facts: dict[str, Fact] = {"outlived": outlived, "allocated": report.allocated_bytes, "counted": allocated}
    if report.allocated_bytes != allocated:
        sentence = f"The watch has {report.allocated_bytes} bytes allocated, and memory_stats {allocated}."
        return failed(sentence, SEND_REPORT, **facts)
    if outlived != MIB:
        sentence = f"Memory grows by {MIB:,} bytes a step at one line, and the watch has {outlived:,} there."
        return failed(sentence, SEND_REPORT, **facts)
    return passed(f"A watch names the line that keeps {format_bytes(outlived)} a step.", **facts)


# --------------------------------------------------------------------------------------------------------------- files
def files(device: torch.device) -> Outcome:
    """Are all files of a run written, and can they be read back?"""
    workload = next(one for one in PROGRAMS if one.name == "LSTM").build(device)
    results = run_profile(workload, schedule=PLAN, timing=False, keep_recording=True)
    if results.failure is not None or results.findings is None:
        return failed(f"The run of an LSTM failed: {results.failure}.", SEND_REPORT)
    with tempfile.TemporaryDirectory(prefix="doctor-") as name:
        folder = Path(name)
        written = write_outputs(results, folder)
        if errors := [str(output.error) for output in written if output.error is not None]:
            return failed(f"Files could not be written: {'; '.join(errors)}", SEND_REPORT)
        saved = read_peak_json(folder / "peak.json")  # its rows sum to its peak, or it raises
        snapshot = load_snapshot(folder / "memory_snapshot.pkl")
        num_requests = sum(len(replay(state, snapshot.settings).requested_bytes) for state in snapshot.devices)
        num_rows = {report.name: _num_rows(report) for report in sorted(folder.glob("*_report.sqlite"))}
        num_files = len(list(folder.iterdir()))
    facts: dict[str, Fact] = {"files": num_files, "peak": saved.bytes, "requests": num_requests, **num_rows}
    if (
        saved.bytes != results.findings.worst.peak.allocator_peak_bytes
        or not num_requests
        or not all(num_rows.values())
    ):
        return failed("A file says something else than the run.", SEND_REPORT, **facts)
    return passed(f"{num_files} files are written, and what is read back is the same.", **facts)


def _num_rows(report: Path) -> int:
    with closing(sqlite3.connect(report)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(int(connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]) for table in tables)


def cuda_graph(device: torch.device) -> Outcome:
    """Is the peak of a replayed CUDA graph, in which no operator is seen, the allocator's own?"""
    if not hasattr(devices.module_of(device), "CUDAGraph"):
        return skipped(f"The {device.type.upper()} captures no graphs.", TRY_NULL_GPU)
    model, _, _ = _net(device)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.ones(_SAMPLES, _WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    session = ProfileSession(model, optimizer, device=device, schedule=PLAN)
    counted = record(session, captured.replay, device)
    peak = session.findings.worst.peak
    facts: dict[str, Fact] = {"peak": peak.allocator_peak_bytes, "counted": counted}
    if sum(row.bytes for row in peak.rows) != peak.allocator_peak_bytes or counted != peak.allocator_peak_bytes:
        return failed(f"memory_stats has a peak of {counted:,} bytes: the rows do not sum to it.", SEND_REPORT, **facts)
    return passed(f"Peak of {format_bytes(counted)} with a graph replayed: the rows sum to it.", **facts)


# --------------------------------------------------------------------------------------------------------------- times
def times(device: torch.device) -> Outcome:
    """Are the phases' times those of events that are placed by hand around the same calls?"""
    if (outcome := _without_times(device)) is not None:
        return outcome
    workload = _heavy(device)
    batch = workload.next_batch()
    _by_hand(workload, batch, device, num_steps=3)
    ours = time_phases(
        forward=lambda: workload.forward(batch),
        backward=workload.backward,
        optimizer_step=workload.optimizer_step,
        device=device,
    )
    by_hand = _by_hand(workload, batch, device, num_steps=6)
    pairs = {name: (ours.mean_ms(name), statistics.fmean(by_hand[name])) for name in by_hand}
    facts: dict[str, Fact] = {f"{name} ms": [round(ms, 3) for ms in pair] for name, pair in pairs.items()}
    for name, (mine, theirs) in pairs.items():
        if max(mine, theirs) > _MOST_FACTOR_OF_TIMES * min(mine, theirs):
            sentence = f"{name} takes {mine:.2f} ms by this program and {theirs:.2f} by events placed by hand."
            return failed(
                sentence, "nvidia-smi dmon -c 5  # a clock that changes, or another process, does this", **facts
            )
    words = ", ".join(f"{name} {mine:.2f} and {theirs:.2f}" for name, (mine, theirs) in pairs.items())
    return passed(f"Phases by this program and by events, in ms: {words}.", **facts)


def _without_times(device: torch.device) -> Outcome | None:
    if is_active():
        return skipped(_NO_TIMES, "torch-timeline doctor")
    if not devices.has_events(device):
        return skipped(f"The {device.type.upper()} has no events: its phases are timed by the host's clock.")
    return None


def _heavy(device: torch.device) -> Workload:
    """Large enough that a GPU, and not the host, decides its times."""
    return next(one for one in PROGRAMS if one.name == "FNO").build(device)


def _by_hand(workload: Workload, batch: Any, device: torch.device, *, num_steps: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"model_fwd": [], "loss_bk": [], "opt_step": []}
    for _ in range(num_steps):
        edges = [devices.record_event(device)]
        loss = workload.forward(batch)
        edges.append(devices.record_event(device))
        workload.backward(loss)
        edges.append(devices.record_event(device))
        workload.optimizer_step()
        edges.append(devices.record_event(device))
        devices.synchronize(device)
        for name, before, after in zip(found, edges[:-1], edges[1:], strict=True):
            found[name].append(before.elapsed_time(after))
    return found


def kernels(device: torch.device) -> Outcome:
    """Does torch's profiler have the device's kernels, and do their durations agree with events around them?"""
    if (outcome := _without_times(device)) is not None:
        return outcome
    x = torch.ones(4096, 4096, device=device)
    for _ in range(3):
        x @ x
    devices.synchronize(device)
    with torch.profiler.profile(activities=devices.profiler_activities(device)) as profiler:
        begin = devices.record_event(device)
        for _ in range(10):
            x @ x
        end = devices.record_event(device)
        devices.synchronize(device)
    between_ms = begin.elapsed_time(end)
    kernels_ms = sum(
        event.device_time_total for event in profiler.events() if not str(event.device_type).endswith("CPU")
    )
    kernels_ms /= 1000
    facts: dict[str, Fact] = {"kernels ms": round(kernels_ms, 3), "events ms": round(between_ms, 3)}
    if not kernels_ms:
        return failed(
            "torch's profiler has no kernels of this device: CUPTI is kept by another profiler, or its library is "
            "missing or another version's. Memory is still recorded; run times are the host's.",
            'python -c "import torch; print(torch.profiler.supported_activities())"',
            **facts,
        )
    if not _LEAST_PART_OF_KERNELS <= kernels_ms / between_ms <= _MOST_PART_OF_KERNELS:
        sentence = f"Kernels take {kernels_ms:.2f} ms by the profiler, and {between_ms:.2f} pass between two events."
        return failed(sentence, SEND_REPORT, **facts)
    return passed(f"Kernels take {kernels_ms:.2f} ms by the profiler, {between_ms:.2f} by events.", **facts)


def cost(device: torch.device) -> Outcome:
    """How much longer does a step take that is recorded, beside torch.profiler, and with the allocator's history on?"""
    if (outcome := _without_times(device)) is not None:
        return outcome
    workload = _heavy(device)
    step = partial(train_step, workload)
    num_steps = 8
    _seconds_a_step(step, device, 3)
    ms = {"alone": _seconds_a_step(step, device, num_steps)}

    def bare() -> Any:
        return torch.profiler.profile(
            activities=devices.profiler_activities(device),
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=num_steps + 1, repeat=1),
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
        )

    def ours() -> Any:
        plan = Schedule(0, 1, num_steps + 1, 1)
        return ProfileSession(workload.model, workload.optimizer, device=device, schedule=plan)

    # Twice, and the second time counts: what is made once, such as plans, is made in the first.
    for name, make in 2 * (("torch.profiler", bare), ("this program", ours)):
        with make() as watching:
            step()
            watching.step()
            ms[name] = _seconds_a_step(lambda: (step(), watching.step()), device, num_steps)
    if torch_history.has_allocator_history(device):
        torch_history.start_allocator_history(device, 1_000_000)
        try:
            ms["history on"] = _seconds_a_step(step, device, num_steps)
        finally:
            torch_history.stop_allocator_history(device)
    facts: dict[str, Fact] = {f"{name} ms": round(1e3 * seconds, 3) for name, seconds in ms.items()}
    words = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in ms.items())
    return passed(f"A step in ms: {words}.", **facts)


def _seconds_a_step(step: Callable[[], object], device: torch.device, num_steps: int) -> float:
    devices.synchronize(device)
    begin = time.perf_counter()
    for _ in range(num_steps):
        step()
    devices.synchronize(device)
    return (time.perf_counter() - begin) / num_steps


# ------------------------------------------------------------------------------------- memory that torch does not count
def context(device: torch.device) -> Outcome:
    """Is what the driver takes beside torch's allocator what predictions set aside?"""
    if is_active():
        return skipped("The null GPU has no context; predictions set 700 MiB aside.", "torch-timeline doctor")
    ledger = device_ledger(device) if devices.is_accelerator(device) else None
    if ledger is None:
        return skipped(f"The {device.type.upper()} does not say what is used of it.", TRY_NULL_GPU)
    is_alone = ledger.context_bytes is not None
    beside = ledger.context_bytes if ledger.context_bytes is not None else ledger.rest_bytes
    facts: dict[str, Fact] = {"beside": beside, "told apart": is_alone, "set aside": CONTEXT_BYTES}
    if not is_alone:
        return skipped(
            f"{format_bytes(beside)} are used beside torch's allocator, by all processes: they cannot be told apart.",
            "pip install nvidia-ml-py",
            **facts,
        )
    if beside > CONTEXT_BYTES + _MOST_CONTEXT_ABOVE:
        sentence = f"CUDA's context and libraries take {format_bytes(beside)}, and predictions set "
        size = (devices.device_memory(device) or (0, 0))[1] - (beside - CONTEXT_BYTES)
        card = f"torch-timeline predict --on CARD:{size // MIB}MiB"
        return failed(f"{sentence}{format_bytes(CONTEXT_BYTES)} aside.", card, **facts)
    words = f"CUDA's context and libraries take {format_bytes(beside)}"
    return passed(f"{words}; predictions set {format_bytes(CONTEXT_BYTES)} aside.", **facts)


def ddp(device: torch.device) -> Outcome:
    """Is each rank's peak of DistributedDataParallel on two devices the allocator's own?"""
    if is_active():
        return skipped("Ranks on the null GPU run one at a time.", "torch-timeline run --on 2xh100 train.py")
    if device.type != "cpu" and devices.num_devices(device) < 2:
        return skipped(
            "DistributedDataParallel needs two devices, and one is here.", "torch-timeline run --on 2xh100 train.py"
        )
    if device.type == "cpu":
        return skipped("DistributedDataParallel is checked on two GPUs.", "torch-timeline run --on 2xh100 train.py")
    return train_two_ranks(device.type)


def train_two_ranks(kind: str) -> Outcome:
    """Train on two devices of a kind, each rank in a process of its own; on the CPU over gloo."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        arguments = (kind, folder)
        spawn(_rank, arguments, nprocs=2)  # type: ignore[no-untyped-call]
        said = [torch.load(Path(folder, str(rank)), weights_only=True) for rank in range(2)]
    facts: dict[str, Fact] = {
        "peaks": [int(one["peak"]) for one in said],
        "beside": [int(one["beside"]) for one in said],
    }
    if wrong := [f"rank {rank}: {one['wrong']}" for rank, one in enumerate(said) if one["wrong"]]:
        return failed(f"{'; '.join(wrong)}.", SEND_REPORT, **facts)
    buffers = max(int(one["beside"]) for one in said)
    most = NcclBuffers(communicators=1).most_bytes
    if buffers > most:
        sentence = (
            f"NCCL and what it loads take {format_bytes(buffers)}, more than the {format_bytes(most)} of predictions."
        )
        return failed(sentence, "export NCCL_MAX_NCHANNELS=8", **facts)
    return passed(
        f"Two ranks with peaks of {format_bytes(max(int(one['peak']) for one in said))}, each its rows' sum.", **facts
    )


def _rank(rank: int, kind: str, folder: str) -> None:
    """What one rank does: train, record, and leave what it found in a file."""
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, rank)
    if kind != "cpu":
        torch.accelerator.set_device_index(rank)
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/ranks", rank=rank, world_size=2, timeout=_MOST_WAIT)
    try:
        net, _, _ = _net(device)
        before = _used_beside(device)
        model, optimizer, step = _trained(nn.parallel.DistributedDataParallel(net), device, torch.optim.AdamW)
        session = ProfileSession(model, optimizer, device=device, schedule=PLAN)
        counted = record(session, step, device)
        peak = session.findings.worst.peak
        wrong = "; ".join(wrong_peak(peak, counted, session.notes))
        found = {"peak": peak.allocator_peak_bytes, "wrong": wrong, "beside": max(0, _used_beside(device) - before)}
        torch.save(found, Path(folder, str(rank)))
    finally:
        dist.destroy_process_group()


def _used_beside(device: torch.device) -> int:
    """What is used of a device and is not in torch's allocator."""
    memory = devices.device_memory(device)
    return 0 if memory is None else memory[1] - memory[0] - (devices.reserved_bytes(device) or 0)
