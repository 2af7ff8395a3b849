"""The facts of a run: when, where and with what it was made, its times, and what was observed beside its cycles."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from statistics import fmean, pstdev
from typing import Any

from tracer.capture.objects.known_storages import KnownStorages, Parameter
from tracer.capture.sources.operator_lines import source_text
from tracer.command_line import this_command


@dataclass(frozen=True, slots=True)
class ValueRead:
    """Values that one line read with one operator."""

    file: str  # File of the innermost line outside torch; empty where no Python called
    line: int  # Its number; 0 likewise
    function: str  # It is in
    operator: str  # Such as `aten::nonzero`
    count: int  # How often
    value: str  # The last one, as text; where it decides a size, that size
    known: str  # How well the worst known of them is known: `exact`, `drawn` or `unknown`
    answered: bool  # Whether it was given by `--answer`
    decides_size: bool  # Whether it was the size of a result
    num_empty: int  # How many of those results were empty


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Operators whose results could not be computed."""

    reason: str  # With the operator's name
    count: int  # How often


@dataclass(frozen=True, slots=True)
class ValuesRead:
    """Values that were read until the results were put together."""

    reads: tuple[ValueRead, ...] = ()  # The reads, in the order in which they first happened
    left_out: tuple[LeftOut, ...] = ()  # What could not be computed
    num_compiled_buffers: int = 0  # Buffers of compiled code: what its kernels left there is unknown
    unused_answers: tuple[str, ...] = ()  # Such as `train.py:12`, where nothing was read


PHASES = ("model_fwd", "loss_bk", "total_time", "opt_step")
"""Names and order as the file format has them. total_time is all three phases and what lies between them."""


@dataclass(frozen=True, slots=True)
class PhaseTimings:
    """Durations of the phases over several steps."""

    device: str  # Name as `str(torch.device)` writes it
    clock: str  # The device's type in capitals, such as `CUDA`, for its events; `CPU` for the host's clock
    durations_ms: dict[str, tuple[float, ...]]  # Per phase of `PHASES`, one duration per measured step

    def mean_ms(self, phase: str) -> float:
        """Mean over the steps."""
        return fmean(self.durations_ms[phase])

    def std_ms(self, phase: str) -> float:
        """Population standard deviation over the steps, as `numpy.std` computes it."""
        return pstdev(self.durations_ms[phase])


@dataclass(frozen=True, slots=True)
class Look:
    """Memory of a device at one moment."""

    time_us: int  # Since 1970
    used_bytes: int  # By the driver's count, of all processes
    reserved_bytes: int  # Of that by torch's allocator in this process

    @property
    def beside_bytes(self) -> int:
        """Used beside torch's allocator."""
        return self.used_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A call that is known to take memory of a device beside torch's allocator."""

    time_us: int  # When it began, since 1970
    what: str  # Such as `first recorded call of cuDNN, aten::conv2d`
    file: str | None = None  # The user's line
    line: int | None = None


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Another process on the device."""

    name: str
    number: int  # Its process id
    bytes: int  # Of the device


@dataclass(frozen=True, slots=True)
class DriverLooks:
    """Looks at the driver's memory, from before the first step of a run to the end of its last recorded one."""

    looks: tuple[Look, ...]  # In order, one or more; of several with the same difference the first and the last
    calls: tuple[KnownCall, ...] = ()  # In order: the first recorded one of each library and thread, and graph captures
    processes: tuple[OtherProcess, ...] = ()  # Other processes at the end; none where the driver does not list this one


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The process that made a run, for a reader."""

    command: str  # As it was called, without the folder of the program
    date: str  # When the results were put together, with the zone's name
    torch: str  # Its version
    python: str  # Its version
    device_name: str = ""  # Name of the accelerator; empty on the CPU
    # The sentence that stands before all answers of the run, as where the device computed nothing; mostly empty.
    caveat: str = ""
    device_bytes: int | None = None  # Memory of the accelerator; None on the CPU, or if not known

    @property
    def computed(self) -> bool:
        """True if the device computed, so that there are times, losses and values."""
        return not self.caveat

    @classmethod
    def here(cls, device: str = "cpu", *, caveat: str = "") -> RunOrigin:
        """This process, now."""
        import torch

        from tracer.capture.device import devices

        memory = devices.device_memory(torch.device(device))
        return cls(
            command=this_command(),
            date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            torch=str(torch.__version__),
            python=platform.python_version(),
            device_name=devices.device_name(torch.device(device)),
            caveat=caveat,
            device_bytes=None if memory is None else memory[1],
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
    driver: DriverLooks | None = None  # What the device's driver counted; None for a device without one, as the CPU

    @property
    def run_facts(self) -> dict[str, Any]:
        """These by name."""
        return {field.name: getattr(self, field.name) for field in fields(RunFacts)}


def source_of(path: str, *, is_users: bool) -> str | None:
    """The source of a file of the user's, as lines were read from it."""
    return (source_text(path) or None) if is_users else None
