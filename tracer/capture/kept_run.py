"""All that was observed of a run, and when, where and with what: stored, so that all can be said again, anywhere."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import NOTHING_COMPILED, CompiledCode
from tracer.capture.sources.operator_lines import source_text
from tracer.capture.sources.source_files import is_user_code
from tracer.capture.sources.source_line import SourceLine
from tracer.command_line import this_command

if TYPE_CHECKING:
    from tracer.capture.objects.known_storages import ObjectsAtFailure
    from tracer.capture.objects.parameter_origins import Parameter


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
    """All that was read until the results were put together."""

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
        """Whether the device computed, so that there are times, losses and values."""
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

    @property
    def run_facts(self) -> dict[str, Any]:
        """These by name."""
        return {field.name: getattr(self, field.name) for field in fields(RunFacts)}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that a recording or a parameter names."""

    path: str  # As they name it
    # Its path from the root of the user's project, or None for a file that is not of the project.
    project_name: str | None
    text: str | None  # Its source, from which lines were read; None for files that are not the user's


@dataclass(frozen=True, slots=True, eq=False)
class KeptCycle:
    """A cycle's recording, and whether all of its steps were recorded to their end."""

    recording: Recording
    is_whole: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptRun(RunFacts):
    """Observations of a run, without conclusions."""

    cycles: tuple[KeptCycle, ...]  # Cycles with memory on the device, in order; none if not one step was recorded
    snapshot: dict[str, Any] | None  # The allocator's own, on CUDA; elsewhere None
    failure: tuple[str, ...]  # What ended the run early, in the lines that were shown; none if nothing did
    ran_out_of_memory: bool  # Whether that was for want of memory
    device_bytes: int | None = None  # The device's memory; None if it was not known
    notes: tuple[str, ...]  # Sentences on what could not be observed
    sources: tuple[SourceFile, ...]  # Every file that the recordings and the parameters name
    # What torch.compile made of the user's code, with the source of every generated file.
    compiled: CompiledCode = NOTHING_COMPILED
    at_failure: ObjectsAtFailure | None = None  # What objects told when memory ran out; None where it did not
    # What CUDA graphs work in, as peak.json has it: captures are not recorded in cycles.
    graph_pools: tuple[dict[str, Any], ...] = ()
    num_later: int | None = 0  # Cycles behind the one that the snapshot is of; None if it is of none

    @property
    def num_events(self) -> int:
        """Number of profiler events in all cycles."""
        return sum(cycle.recording.num_events for cycle in self.cycles)


def named_files(recordings: Iterable[Recording], lines: Iterable[SourceLine]) -> dict[str, bool]:
    """Every file that these name, and whether it is the user's, whose source was read."""
    is_users_by_file: dict[str, bool] = {}
    for recording in recordings:
        frames, strings = recording.frames, recording.strings
        user = set(np.unique(frames.file[frames.user]).tolist())
        is_users_by_file |= {strings[file]: file in user for file in np.unique(frames.file).tolist() if strings[file]}
    for line in lines:
        is_users_by_file.setdefault(line.file, is_user_code(line.file))
    return is_users_by_file


def source_of(path: str, *, is_users: bool) -> str | None:
    """The source of a file of the user's, as lines were read from it."""
    return (source_text(path) or None) if is_users else None
