"""Everything that a watched run has to say at one moment: what the text and the JSON are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.answers.rows import Row
from tracer.answers.step_findings import StepFindings
from tracer.arrays import totals_by
from tracer.capture.objects.holders import Holder
from tracer.capture.run_facts import ValuesRead
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.step_columns import StepColumns

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.out_of_memory import OutOfMemory

END_OF_RUN: Final = "the end of the run"  # The event of a run that has ended by itself


@dataclass(frozen=True, slots=True)
class HolderName:
    """A variable that keeps memory alive, in words."""

    holder: Holder
    # Where the tensor was made whose graph keeps it; None where it is held itself, or nobody knows.
    graph_line: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class OutlivedMemory:
    """Memory that outlived the step after its own."""

    what: str  # Its kind, or what its tensors look like where no allocator has a history
    frame: str  # The function that made it; empty where nobody knows
    line: SourceLine | None  # The line; None where nobody knows
    bytes: int
    count: int  # Number of blocks or tensors
    bytes_per_step: int  # How much more each step leaves, as far as was recorded
    holders: tuple[HolderName, ...]  # Holders of those that were looked at


@dataclass(frozen=True, slots=True)
class Event:
    """Something that made a watched run speak."""

    what: str  # Such as `out of memory`, `asked for by signal`
    step: int  # Steps that had ended
    time_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class WatchReport:
    """A watched run at one moment."""

    device: str  # The device that is watched, as `str(torch.device)` writes it
    event: Event
    events: tuple[Event, ...]
    error: str  # What ended the run, in its own words; empty if nothing did
    error_line: SourceLine | None  # Line of the user's own code where the error arose
    columns: StepColumns
    steps: StepFindings
    limit_bytes: int | None  # What there is for this process; None where nobody says
    allocated_bytes: int | None  # Bytes in use by the allocator at that moment; None without a caching allocator
    reserved_bytes: int | None  # Held from the driver at that moment; likewise
    # The last allocation that failed, explained; None if none did, or there is no history.
    failed: FailedAllocation | None
    groups: tuple[Row, ...]  # What was in use then, by line and kind; of the allocator's history
    outlived: tuple[OutlivedMemory, ...]  # What outlived the step after its own and is of no kind that stays
    notes: tuple[str, ...]  # What is missing or could not be read, in sentences
    settings: Mapping[str, object]  # What to remember of the run
    # Earlier reports of the run, each as `findings_alone`, the oldest first.
    found_before: tuple[WatchReport, ...] = ()
    caveat: str = ""  # What has to be said before anything else; empty for a run like any other
    values_read: ValuesRead | None = None  # What the program read of a device that computes nothing; None on any other

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """The allocation that failed; None if none did, or there is no history."""
        return None if self.failed is None else self.failed.event

    @property
    def has_findings(self) -> bool:
        """Whether it has more than figures of the memory in use."""
        steps = StepFindings(self.steps.num_steps)
        return bool(self.outlived) or self.out_of_memory is not None or self.steps != steps

    @property
    def most_bytes(self) -> int:
        """The most that was in use: by the allocator's own peak, or as it was seen; 0 where nothing was."""
        column = self.columns.peak_bytes if self.allocated_bytes is not None else self.columns.resident_bytes
        return int(np.max(column, initial=0))

    def findings_alone(self) -> WatchReport:
        """Return the report without its tables, as a later report of the run repeats it."""
        return replace(
            self,
            events=(self.event,),
            columns=self.columns.take(slice(0)),
            groups=self.groups[:1],
            notes=(),
            found_before=(),
        )

    def by_kind(self) -> dict[str, int]:
        """Bytes in use by kind, the largest first; they sum to the groups'."""
        by_words = sorted(self.groups, key=lambda group: group.kind.words)
        return {words: size for words, (size, _) in totals_by(by_words, lambda group: group.kind.words).items()}
