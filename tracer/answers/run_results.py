"""Results of a run: all that the files and the screen are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.answers.caveats import room_sentences
from tracer.answers.failure import Failure
from tracer.answers.recording_findings import Findings
from tracer.answers.rows import ROW_FIELDS, Row
from tracer.answers.run_history import RunHistory
from tracer.capture.run_facts import RunFacts
from tracer.capture.sources.source_files import ProjectFiles, is_package_code, is_user_code
from tracer.errors import MissingPackageError
from tracer.working_folder import working_folder

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.why.first_changes import FirstChanges


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunResults(RunFacts):
    """Everything that a run brought to light."""

    findings: Findings | None  # Findings of the recorded cycles; None if not one step was recorded
    # The allocator's own, on CUDA; elsewhere one without a snapshot.
    history: RunHistory = field(default_factory=lambda: RunHistory(None))
    failure: Failure | None = None  # What ended the run early, or None
    notes: tuple[str, ...] = ()  # Sentences on what could not be measured
    project_root: Path | None = None  # The folder from which reports name files
    # The request that the device had no memory for, explained; None where the allocator's history has none.
    failed_allocation: FailedAllocation | None = None
    # Name of each file in the user's project, None for files outside of it; None where the disk is asked for it.
    project_names: Mapping[str, str | None] | None = None
    # Source of the files that a kept recording has; None where it is to be read from the disk.
    source_texts: Mapping[str, str | None] | None = None
    keep_recording: bool = False  # Whether recording.npz is wanted
    verdict: str = ""  # What a prediction says of the card, in a sentence; empty for a run

    @property
    def computed(self) -> bool:
        """Whether the device computed, so that there are times, losses and values."""
        return self.origin.computed

    @property
    def first_changes(self) -> FirstChanges | None:
        """The first changes to try, replayed on the allocator's history; None if it does not cover the peak."""
        if self.failed_allocation is not None:
            return self.failed_allocation.first
        if self.findings is None:
            return None
        return self.history.first_changes(self.findings, self.known, device_bytes=self.origin.device_bytes)

    @property
    def room(self) -> tuple[str, ...]:
        """Sentences on a device that is mostly free; none for any other, or after a failure."""
        if self.findings is None or self.failed_allocation is not None:
            return ()
        return room_sentences(self.findings.worst.peak, self.origin.device_bytes)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the largest peak, the largest first, which sum to it; empty without a peak."""
        return self.findings.worst.peak.rows if self.findings is not None else ()

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame, one column for each field of a row."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise MissingPackageError("to_pandas() needs pandas.", hint="Install it, or take .rows.") from error
        return pandas.DataFrame([row.values() for row in self.rows], columns=list(ROW_FIELDS))

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The allocator's own snapshot on CUDA; elsewhere None."""
        return self.history.snapshot

    @property
    def name_in_project(self) -> Callable[[str], str | None]:
        """Names files from the project's root, as they were where the run was made."""
        if self.project_names is not None:
            return self.project_names.get
        return ProjectFiles(self.project_root or working_folder())

    def source_of(self, path: str) -> str | None:
        """Source of a file of the user's as it ran, or None."""
        if self.source_texts is not None:
            return self.source_texts.get(path)
        from tracer.capture.run_facts import source_of  # a trace, whose sources are not read, does not wait for torch

        return source_of(path, is_users=is_user_code(path))

    @property
    def sources_root(self) -> Path | None:
        """The folder from which `name_in_project` names files, where it is known."""
        if self.project_names is None:
            return self.project_root or working_folder()
        named = ((Path(path), name) for path, name in self.project_names.items() if name is not None)
        relative = ((path, len(Path(name).parts)) for path, name in named if str(path) != name)
        roots = (path.parents[depth - 1] for path, depth in relative if not is_package_code(str(path)))
        return next(roots, None)
