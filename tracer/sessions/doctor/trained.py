"""Small trainings of each kind that takes memory in its own way: rows and history beside the allocator's counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tracer.allocator.reproduce import Reproduction
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.peak import PeakReport
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.modelled import model_device
from tracer.capture.device import devices
from tracer.capture.device.device_blocks import device_blocks
from tracer.results.doctor import Fact, Outcome, failed, passed
from tracer.sessions.doctor.installed import SEND_REPORT
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.units import format_bytes
from tracer.workloads.factory import shipped_model
from tracer.workloads.module_steps import checkpoint_blocks
from tracer.workloads.user_model import StepOptions, build_user_workload
from tracer.workloads.workload import Workload, train_step

Step = Callable[[], None]
Where = Literal["everywhere", "with a GPU", "on a real GPU"]


@dataclass(frozen=True, slots=True)
class DoctorTraining:
    """A training of a few MiB, of which every byte is known to the allocator that serves it."""

    name: str
    build: Callable[[torch.device], Workload]
    where: Where = "everywhere"  # "on a real GPU": it takes long elsewhere, or its kernels are chosen by the device
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # What each step is made in
    is_compiled: bool = False

    def made(self, device: torch.device) -> tuple[Workload, Step]:
        """Return the workload and a step of it."""
        workload = self.build(device)
        if self.is_compiled:
            workload.model.compile()

        def step() -> None:
            with self.around():
                train_step(workload)

        return workload, step


def _shipped(model: str, device: torch.device, *model_args: str, **options: Any) -> Workload:
    step = StepOptions(batch_size=4, seed=0, **options)
    workload: Workload = build_user_workload(
        f"models.{model}:build", device=device, model_args=model_args, options=step, device_named=True
    )
    return workload


def _layer(device: torch.device, inputs: str, layer: str, *model_args: str, **options: Any) -> Workload:
    step = StepOptions(batch_size=4, seed=0, inputs=(inputs,), **options)
    workload: Workload = build_user_workload(
        f"torch.nn:{layer}", device=device, model_args=model_args, options=step, device_named=True
    )
    return workload


def _fno(device: torch.device) -> Workload:
    fno = shipped_model("fno_workload")
    settings = fno.FnoSettings(batch_size=4, hidden_channels=16, data_size=32, n_modes=8, n_layers=2)
    workload: Workload = fno.build_fno_workload(settings, device=device)
    return workload


_ENCODER = ("d_model=64", "nhead=4", "batch_first=True")


def _encoder(device: torch.device, **options: Any) -> Workload:
    return _layer(device, "16x64", "TransformerEncoderLayer", *_ENCODER, **options)


def _checkpointed(device: torch.device) -> Workload:
    workload = _shipped("gpt", device, "n_layers=4")
    checkpoint_blocks(workload.model)
    return workload


PROGRAMS: tuple[DoctorTraining, ...] = (
    DoctorTraining("convolution network", partial(_shipped, "resnet")),
    DoctorTraining("transformer", partial(_shipped, "gpt")),
    DoctorTraining("LSTM", partial(_shipped, "lstm")),
    DoctorTraining("FNO", _fno),
    DoctorTraining("autocast", partial(_encoder, amp="bfloat16")),
    DoctorTraining("checkpointed", _checkpointed),
    DoctorTraining("foreach", partial(_encoder, optimizer="adamw:foreach=True")),
    DoctorTraining("fused", partial(_encoder, optimizer="adamw:fused=True")),
    DoctorTraining("compiled", partial(_shipped, "gpt"), "with a GPU", is_compiled=True),
    *(
        DoctorTraining(
            f"{name} attention",
            partial(_encoder, amp="bfloat16"),
            "on a real GPU",
            around=partial(sdpa_kernel, backend),
        )
        for name, backend in (
            ("flash", SDPBackend.FLASH_ATTENTION),
            ("efficient", SDPBackend.EFFICIENT_ATTENTION),
            ("math", SDPBackend.MATH),
        )
    ),
)


def programs_for(device: torch.device, *, is_real: bool) -> tuple[DoctorTraining, ...]:
    """Return the programs that are run on a device."""
    places = {"everywhere"} | ({"with a GPU"} if device.type != "cpu" else set())
    places |= {"on a real GPU"} if device.type != "cpu" and is_real else set()
    return tuple(one for one in PROGRAMS if one.where in places)


PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
RECORDED = (2, 3)
_NUM_PLAIN_STEPS = 3
_EXPLAINED_PART = 0.99
_NOT_EXPLAINED = (Kind.BEFORE_RECORDING.name, Kind.UNKNOWN.name)


def train(program: DoctorTraining, device: torch.device) -> Outcome:
    """Train a few steps alone and a few recorded ones; compare every figure that two sources have."""
    workload, step = program.made(device)
    plain = plain_peaks(step, device)
    session = ProfileSession(workload.model, workload.optimizer, device=device, schedule=PLAN)
    counted = record(session, step, device)
    peak = session.findings.worst.peak
    wrong = list(wrong_peak(peak, counted, session.notes))
    wrong += list(_wrong_kinds(workload, peak, device))
    facts: dict[str, Fact] = {**plain, "peak": peak.allocator_peak_bytes, "counted": counted or None}
    reproduction = replayed(session)
    if reproduction is not None:
        addresses = reproduction.addresses
        facts["addresses"] = [addresses.equal, addresses.recorded]
        # What compiling leaves in the allocator's cache decides where blocks come to lie, and no recording has it.
        if not addresses.is_exact and not program.is_compiled:
            wrong.append(f"{addresses.recorded - addresses.equal:,} of {addresses.recorded:,} addresses are others")
    if wrong:
        return failed(f"{'; '.join(wrong)}.", SEND_REPORT, **facts)
    sentence = f"Peak of {format_bytes(peak.allocator_peak_bytes)}: the rows sum to it"
    sentence += ", as memory_stats has it" if counted else ""
    if reproduction is not None and reproduction.addresses.is_exact:
        sentence += f"; {reproduction.addresses.recorded:,} addresses replayed"
    return passed(f"{sentence}.", **facts)


def plain_peaks(step: Callable[[], object], device: torch.device) -> dict[str, Fact]:
    """The allocator's peaks in the last of three steps that nothing records; empty where it counts nothing."""
    for _ in range(_NUM_PLAIN_STEPS):
        reset_peak(device)
        step()
        devices.synchronize(device)
    if not devices.is_accelerator(device):
        return {}
    return {
        "allocated": torch.accelerator.max_memory_allocated(device),
        "reserved": torch.accelerator.max_memory_reserved(device),
    }


def record(session: ProfileSession, step: Callable[[], object], device: torch.device) -> int:
    """Run the session's steps; return the allocator's largest count over the recorded ones, 0 where it counts nothing.

    Raises:
        Exception: The session's own fault.
    """
    counted = [0]
    with session:
        for index in range(session.schedule.num_steps):
            reset_peak(device)
            step()
            if index in RECORDED:
                counted.append(devices.peak_allocated_bytes(device) or 0)
            session.step()
    if session.fault is not None:
        raise session.fault
    return max(counted)


def reset_peak(device: torch.device) -> None:
    """Have the allocator count its peak from now on."""
    if devices.is_accelerator(device):
        torch.accelerator.reset_peak_memory_stats(device)


def let_go(device: torch.device) -> None:
    """Free what the program before has left, so that none is in the next one's reserved memory."""
    gc.collect()
    devices.release_cached_memory(device)


def wrong_peak(peak: PeakReport, counted: int, notes: Iterable[str]) -> Iterator[str]:
    """Yield each figure of a peak that two sources have and that differs.

    Args:
        counted: The allocator's own peak; 0 where it counts none.
        notes: The session's, which say why there is no history.
    """
    total, rows = peak.allocator_peak_bytes, sum(row.bytes for row in peak.rows)
    if rows != total:
        yield f"the rows sum to {rows:,} bytes, and the peak is {total:,}"
    if counted and counted != total:
        yield f"memory_stats has a peak of {counted:,} bytes, and the recording {total:,}"
    explained = sum(row.bytes for row in peak.rows if row.category not in _NOT_EXPLAINED)
    if explained < _EXPLAINED_PART * total:
        yield f"{100 * explained / max(1, total):.1f} % of the peak is explained"
    history = peak.allocator
    if history is None:
        if counted:
            yield " ".join(["the allocator's history is missing.", *notes]).removesuffix(".")
        return
    if history.num_joined != history.num_blocks:
        yield f"{history.num_blocks - history.num_joined:,} of {history.num_blocks:,} blocks are not in the history"
    if history.reserved_bytes != peak.reserved_bytes:
        yield f"the history has {history.reserved_bytes:,} bytes reserved, and the recording {peak.reserved_bytes:,}"
    requested = sum(row.requested_bytes or 0 for row in peak.rows)
    if history.requested_bytes != requested:
        yield f"{history.requested_bytes:,} bytes were requested, and the rows have {requested:,}"
    free = peak.reserved_bytes - peak.peak_bytes - history.pending_bytes
    if history.free_bytes != free:
        yield f"the history has {history.free_bytes:,} free bytes, and the recording {free:,}"


def _wrong_kinds(workload: Workload, peak: PeakReport, device: torch.device) -> Iterator[str]:
    """Yield each kind whose bytes are not those of the tensors that the program itself holds."""
    optimizer = workload.optimizer
    state = [value for values in optimizer.state.values() for value in values.values()] if optimizer is not None else []
    found = peak.by_category()
    for kind, tensors in ((Kind.PARAMETER, list(workload.model.parameters())), (Kind.OPTIMIZER_STATE, state)):
        wanted = bytes_of((each for each in tensors if isinstance(each, torch.Tensor)), device)
        if found.get(kind.name, 0) != wanted:
            yield f"{kind.words} takes {wanted:,} bytes, and the rows have {found.get(kind.name, 0):,}"


def bytes_of(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Bytes of the blocks that tensors of a device lie in, by the allocator's own list of them."""
    sizes = device_blocks(device).sizes
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors if each.device == device
    }
    return sum(sizes.get(address, num_bytes) for address, num_bytes in storages.items())


def replayed(session: ProfileSession) -> Reproduction | None:
    """Decide again, with the model of the allocator, what the recorded one decided; None without a history."""
    columns = session.run_history.columns
    if columns is None or not columns.devices:
        return None
    (device,) = replay_snapshot(columns, device=session.device.index).devices
    modelled = model_device(device)
    return modelled.reproduction if modelled is not None else None
