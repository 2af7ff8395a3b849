"""What a run brought to light, and what ended it early: all that the files and the screen are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.capture.error_place import error_place
from tracer.capture.known_storages import KnownStorages
from tracer.capture.parameter_origins import Parameter
from tracer.capture.phase_timing import PhaseTimings
from tracer.capture.profiler_trace import ProfilerTrace
from tracer.capture.project_files import ProjectFiles
from tracer.capture.run_origin import RunOrigin
from tracer.runs.session import ProfileSession


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a run early.

    Attributes:
        error: The exception.
        step: Number of the step in which it happened, from 0.
        allocator: The allocator's state right after, by name, in bytes.
        place: File and line of the user's own code where it arose, if there is one.
        in_timing_pass: Whether all steps had ended, and their phases were being timed.
    """

    error: BaseException
    step: int
    allocator: Mapping[str, int]
    place: tuple[str, int] | None = None
    in_timing_pass: bool = False

    @classmethod
    def of(cls, error: BaseException, session: ProfileSession, *, in_timing_pass: bool = False) -> Failure:
        """What an exception says, without the traceback, which keeps the tensors of the step alive."""
        place, state = error_place(error), allocator_state(session.device)
        return cls(without_tracebacks(error), session.num_steps_done, state, place, in_timing_pass)

    @property
    def out_of_memory(self) -> bool:
        """Whether the device had no memory left."""
        return is_out_of_memory(self.error)


def without_tracebacks(error: BaseException) -> BaseException:
    """The same exception, and what it came from, without the frames that keep the tensors of the step alive."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        rest += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions
    return error


# The CPU's allocator, the driver when it needs memory for itself, and cuBLAS for its workspace.
_NO_MEMORY_LEFT = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left, in the words of either allocator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY_LEFT)


@dataclass(frozen=True, slots=True, eq=False)
class RunResults:
    """Everything that a run brought to light.

    Attributes:
        findings: Of the recorded cycles; None if not one step was recorded.
        timings: Of the timing pass; None if there was none.
        snapshot: The allocator's own, on CUDA; elsewhere None.
        known: Objects that were observed.
        unused_parameters: Names of parameters without gradient; None where nobody looked.
        losses: One per step.
        num_steps: Steps that ended.
        failure: What ended the run early, or None.
        settings: What the run was made with, by name.
        notes: Sentences on what could not be measured.
        parameters: The model's, with the lines that constructed them.
        project_root: The folder from which reports name files.
        failed_allocation: What the device had no memory for, explained; None where the allocator's history has none.
        trace: The profiler's own, of the cycle with the largest peak; None if it was not asked for.
        module_names: Dotted names of the model's modules by `id()`.
        origin: When, where and with what the run was made.
        project_names: What the user's project calls each file, None for those that are not of it; None where that is
            to be asked of the disk.
        device: That the run is about, as `str(torch.device)` writes it.
        keep_recording: Whether recording.npz is wanted.
    """

    findings: Findings | None
    timings: PhaseTimings | None
    snapshot: dict[str, Any] | None
    known: KnownStorages
    unused_parameters: tuple[str, ...] | None
    losses: tuple[float, ...]
    num_steps: int
    failure: Failure | None
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    project_root: Path | None = None
    failed_allocation: OutOfMemory | None = None
    trace: ProfilerTrace | None = None
    module_names: Mapping[int, str] = field(default_factory=dict)
    origin: RunOrigin = field(default_factory=RunOrigin.here)
    project_names: Mapping[str, str | None] | None = None
    device: str = "cpu"
    keep_recording: bool = False

    @property
    def name_in_project(self) -> Callable[[str], str | None]:
        """Names files from the project's root, as they were where the run was made."""
        if self.project_names is not None:
            return self.project_names.get
        return ProjectFiles(self.project_root or Path.cwd())


def allocator_state(device: torch.device) -> dict[str, int]:
    """What the allocator says of itself now, in bytes, which changes nothing; empty on the CPU."""
    if device.type != "cuda":
        return {}
    state = {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "largest allocated so far": torch.cuda.max_memory_allocated(device),
    }
    # Behind a kernel's error the driver answers every question with that error, which is being reported already.
    with suppress(RuntimeError):
        state["free on the device"], state["device"] = torch.cuda.mem_get_info(device)
    return state
