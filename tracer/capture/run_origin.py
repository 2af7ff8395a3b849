"""When, where and with what a run was made."""

from __future__ import annotations

import platform
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """What a reader wants to know of the process that made a run.

    Attributes:
        command: As it was called, without the folder of the program.
        date: When the results were put together, with the zone's name.
        torch: Its version.
        python: Its version.
        device_name: Of the CUDA device; empty elsewhere.
    """

    command: str
    date: str
    torch: str
    python: str
    device_name: str = ""

    @classmethod
    def here(cls, device: str = "cpu") -> RunOrigin:
        """This process, now.

        Args:
            device: On which it runs.
        """
        return cls(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            torch=str(torch.__version__),
            python=platform.python_version(),
            device_name=_device_name(device),
        )


def _device_name(device: str) -> str:
    name = ""
    if device.startswith("cuda") and torch.cuda.is_available():
        # Behind a kernel's error the driver answers every question with that error, which is being reported already.
        with suppress(RuntimeError):
            name = torch.cuda.get_device_name(device)
    return name
