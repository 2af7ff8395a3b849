"""Small trainings of each kind that takes memory in its own way: rows and history beside the allocator's counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tracer.allocator.reproduce import Reproduction
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.peak import PeakReport
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.modelled import model_device
from tracer.capture.device import devices
from tracer.capture.device.device_blocks import device_blocks
from tracer.commands.doctor import record, wrong_peak
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.workloads.factory import shipped_model
from tracer.workloads.module_steps import checkpoint_blocks
from tracer.workloads.user_model import StepOptions, build_user_workload
from tracer.workloads.workload import Workload, train_step

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class SmallTraining:
    """A training of a few MiB, of which every byte is known to the allocator that serves it."""

    name: str
    build: Callable[[torch.device], Workload]
    is_of_gpus: bool = False  # Its kernels are chosen by the device
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


PROGRAMS: tuple[SmallTraining, ...] = (
    SmallTraining("convolution network", partial(_shipped, "resnet")),
    SmallTraining("transformer", partial(_shipped, "gpt")),
    SmallTraining("LSTM", partial(_shipped, "lstm")),
    SmallTraining("FNO", _fno),
    SmallTraining("autocast", partial(_encoder, amp="bfloat16")),
    SmallTraining("checkpointed", _checkpointed),
    SmallTraining("foreach", partial(_encoder, optimizer="adamw:foreach=True")),
    SmallTraining("fused", partial(_encoder, optimizer="adamw:fused=True")),
    SmallTraining("compiled", partial(_shipped, "gpt"), is_compiled=True),
    *(
        SmallTraining(
            f"{name} attention",
            partial(_encoder, amp="bfloat16"),
            True,
            around=partial(sdpa_kernel, backend),
        )
        for name, backend in (
            ("flash", SDPBackend.FLASH_ATTENTION),
            ("efficient", SDPBackend.EFFICIENT_ATTENTION),
            ("math", SDPBackend.MATH),
        )
    ),
)


PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
_NUM_PLAIN_STEPS = 3


def check(program: SmallTraining, device: torch.device) -> None:
    """Train a few steps alone and a few recorded ones; every figure that two sources have is the same."""
    workload, step = program.made(device)
    for _ in range(_NUM_PLAIN_STEPS):
        step()
        devices.synchronize(device)
    session = ProfileSession(workload.model, workload.optimizer, device=device, schedule=PLAN)
    counted = record(session, step, device)
    peak = session.findings.worst.peak
    assert list(wrong_peak(peak, counted, session.notes)) == []
    _check_kinds(workload, peak, device)
    reproduction = replayed(session)
    # What compiling leaves in the allocator's cache decides where blocks come to lie, and no recording has it.
    if reproduction is not None and not program.is_compiled:
        assert reproduction.addresses.is_exact, reproduction.addresses


def let_go(device: torch.device) -> None:
    """Free what the program before has left, so that none is in the next one's reserved memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _check_kinds(workload: Workload, peak: PeakReport, device: torch.device) -> None:
    """Each kind has the bytes of the tensors that the program itself holds."""
    optimizer = workload.optimizer
    state = [value for values in optimizer.state.values() for value in values.values()] if optimizer is not None else []
    found = peak.by_category()
    for kind, tensors in ((Kind.PARAMETER, list(workload.model.parameters())), (Kind.OPTIMIZER_STATE, state)):
        wanted = bytes_of((each for each in tensors if isinstance(each, torch.Tensor)), device)
        assert found.get(kind.name, 0) == wanted, kind


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
