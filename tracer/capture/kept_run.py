"""All that was observed of a run: what has to be stored so that everything said of it can be said again, anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.capture.recording import Recording
from tracer.capture.run_origin import RunFacts
from tracer.capture.sources.compiled_code import NOTHING_COMPILED, CompiledCode
from tracer.capture.sources.operator_lines import source_text
from tracer.capture.sources.source_files import is_user_code
from tracer.capture.sources.source_line import SourceLine

if TYPE_CHECKING:
    from tracer.capture.objects.known_storages import ObjectsAtFailure
    from tracer.capture.recording import ProfilerTrace


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


@dataclass(frozen=True, slots=True, eq=False)
class KeptTrace:
    """The profiler's own trace of one cycle, by its number."""

    cycle: int
    trace: ProfilerTrace


@dataclass(frozen=True, slots=True)
class KeptWaste:
    """Memory that nobody needed, with what held it while the program could be asked."""

    kind: str  # Name of a `WasteKind`
    bytes: int  # At the peak
    count: int  # Number of blocks
    line: SourceLine | None  # Line of the user's code; None where it was not known
    path: str  # How it was held; empty where nothing was found
    variable: str  # Where that began
    held_at: SourceLine | None  # The line that put it there; None where it was not known


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptRun(RunFacts):
    """Observations of a run, without conclusions."""

    cycles: tuple[KeptCycle, ...]  # Cycles with memory on the device, in order; none if not one step was recorded
    snapshot: dict[str, Any] | None  # The allocator's own, on CUDA; elsewhere None
    failure: tuple[str, ...]  # What ended the run early, in the lines that were shown; none if nothing did
    ran_out_of_memory: bool  # Whether that was for want of memory
    notes: tuple[str, ...]  # Sentences on what could not be observed
    sources: tuple[SourceFile, ...]  # Every file that the recordings and the parameters name
    trace: KeptTrace | None = None  # The profiler's own; None if it was not asked for
    # What torch.compile made of the user's code, with the source of every generated file.
    compiled: CompiledCode = NOTHING_COMPILED
    # The peak of the same run without compilation, as its peak.json has it; None where it was not made.
    eager: dict[str, Any] | None = None
    waste: tuple[KeptWaste, ...] = ()  # What nobody needed of the peak: who held it cannot be asked again
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
