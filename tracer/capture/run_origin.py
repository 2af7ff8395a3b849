"""When, where and with what a run was made, and what was observed of it beside its recording."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tracer.capture.objects.known_storages import KnownStorages
from tracer.command_line import this_command

if TYPE_CHECKING:
    from tracer.capture.device.phase_timings import PhaseTimings
    from tracer.capture.objects.parameter_origins import Parameter
    from tracer.capture.values_read import ValuesRead


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


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class RunFacts:
    """The facts that a run's results and its kept recording have in common."""

    device: str = "cpu"  # The device that the run is about, as `str(torch.device)` writes it
    known: KnownStorages = field(default_factory=KnownStorages.empty)  # Objects that were observed
    module_names: Mapping[int, str] = field(default_factory=dict)  # Dotted names of the model's modules by `id()`
    parameters: tuple[Parameter, ...] = ()  # The model's, with the lines that constructed them
    timings: PhaseTimings | None = None  # Timings of the timing pass; None if there was none
    # Names of parameters without gradient; None where it was not looked at.
    unused_parameters: tuple[str, ...] | None = None
    losses: tuple[float, ...] = ()  # One per step
    num_steps: int = 0  # Steps that ended
    settings: Mapping[str, object] = field(default_factory=dict)  # What the run was made with, by name
    origin: RunOrigin = field(default_factory=RunOrigin.here)  # When, where and with what it was made
    values_read: ValuesRead | None = None  # What the program read of a device that computes nothing; None on any other

    @property
    def run_facts(self) -> dict[str, Any]:
        """These by name."""
        return {field.name: getattr(self, field.name) for field in fields(RunFacts)}
