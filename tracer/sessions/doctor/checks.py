"""The table of the checks that need a process with torch: what it has loaded, and what works on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from tracer.results.doctor import Outcome
from tracer.sessions.doctor import further, loaded
from tracer.sessions.doctor.trained import PROGRAMS, programs_for, train


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """A check that needs a process with torch."""

    name: str
    ask: Callable[[torch.device], Outcome]
    is_of_installation: bool = False  # It is shown among what is here


DEVICE_CHECKS: tuple[DeviceCheck, ...] = (
    DeviceCheck("torch's parts", loaded.torch_parts, True),
    DeviceCheck("card", loaded.card, True),
    DeviceCheck("allocator", loaded.allocator, True),
    DeviceCheck("history", loaded.history, True),
    DeviceCheck("profiler", loaded.profiler, True),
    *(DeviceCheck(program.name, partial(train, program)) for program in PROGRAMS),
    DeviceCheck("lines and kinds", further.lines),
    DeviceCheck("out of memory", further.out_of_memory),
    DeviceCheck("watch", further.watch),
    DeviceCheck("files", further.files),
    DeviceCheck("CUDA graph", further.cuda_graph),
    DeviceCheck("times", further.times),
    DeviceCheck("kernels", further.kernels),
    DeviceCheck("cost", further.cost),
    DeviceCheck("context", further.context),
    DeviceCheck("DDP", further.ddp),
    # Behind all that loads a library.
    DeviceCheck("CUDA copies", loaded.cuda_copies, True),
    DeviceCheck("cuDNN", loaded.cudnn, True),
)


def checks_for(device: torch.device, *, is_real: bool) -> tuple[DeviceCheck, ...]:
    """Return the checks of a device, in order."""
    left_out = {program.name for program in PROGRAMS}
    left_out -= {program.name for program in programs_for(device, is_real=is_real)}
    return tuple(check for check in DEVICE_CHECKS if check.name not in left_out)
