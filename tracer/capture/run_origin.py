"""When, where and with what a run was made."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime

from tracer.command_line import this_command


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The process that made a run, for a reader."""

    command: str  # As it was called, without the folder of the program
    date: str  # When the results were put together, with the zone's name
    torch: str  # Its version
    python: str  # Its version
    device_name: str = ""  # Name of the accelerator; empty on the CPU
    # What has to be said first of all that comes from the run, as where the device computed nothing; empty for a run
    # like any other.
    caveat: str = ""

    @property
    def computed(self) -> bool:
        """Whether the device computed, so that there are times, losses and values."""
        return not self.caveat

    @classmethod
    def here(cls, device: str = "cpu", *, caveat: str = "") -> RunOrigin:
        """This process, now."""
        import torch

        from tracer.capture.device import devices

        return cls(
            command=this_command(),
            date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            torch=str(torch.__version__),
            python=platform.python_version(),
            device_name=devices.device_name(torch.device(device)),
            caveat=caveat,
        )
