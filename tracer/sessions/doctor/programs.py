"""Small trainings: one of each kind of model, precision, optimizer and kernel that takes memory in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

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


def programs_for(device: torch.device, *, is_real: bool, names: Sequence[str] = ()) -> tuple[DoctorTraining, ...]:
    """Return the programs that are run on a device.

    Args:
        names: The only ones; empty for all.
    """
    places = {"everywhere"} | ({"with a GPU"} if device.type != "cpu" else set())
    places |= {"on a real GPU"} if device.type != "cpu" and is_real else set()
    return tuple(one for one in PROGRAMS if one.where in places and (not names or one.name in names))
