"""Results of a run, of which the files and the screen are made, and its answer: a failure or the peak, in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracer.answers.answer import Answer, cause_and_change, failure_words
from tracer.answers.answer_of_findings import finding_sentences, headline, peak_sections
from tracer.answers.answer_tables import blocks_table, in_use_tables, parts_tables, timings_table
from tracer.answers.beside_torch import BesideTorch, beside_section, beside_sentences, beside_torch
from tracer.answers.caveats import growth_sentences, share_sentence
from tracer.answers.failure import Failure
from tracer.answers.findings import RunFindings
from tracer.answers.history_sections import failure_section, first_changes_sections, host_sections
from tracer.answers.null_run import values_listed, values_sentences
from tracer.answers.rows import ROW_FIELDS, Row
from tracer.answers.run_history import RunHistory
from tracer.answers.tables import Section, Table
from tracer.capture.run_facts import RunFacts
from tracer.capture.sources.source_files import ProjectFiles, is_package_code, is_user_code
from tracer.errors import MissingPackageError
from tracer.units import some
from tracer.working_folder import working_folder

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.why.first_changes import FirstChanges

_NUM_NAMED: Final = 8


@dataclass(frozen=True, eq=False, repr=False)
class RunResults(RunFacts):
    """Everything that a run brought to light."""

    findings: RunFindings | None  # Findings of the recorded cycles; None if not one step was recorded
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
    predicted: Answer | None = None  # The answer of a prediction; None for a run

    @cached_property
    def answer(self) -> Answer:
        """The answer, which screen, page and peak.json have."""
        return self.predicted or answer_of_run(self)

    @property
    def computed(self) -> bool:
        """True if the device computed, so that there are times, losses and values."""
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
    def beside(self) -> BesideTorch | None:
        """Memory of the device beside torch's allocator; None where no driver counts it."""
        return None if self.driver is None else beside_torch(self.driver)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the largest peak, the largest first, which sum to it; empty without a peak."""
        return self.findings.worst.peak.rows if self.findings is not None else ()

    @property
    def peak_bytes(self) -> int:
        """Allocated bytes at the largest peak: what the rows sum to. 0 where nothing was recorded."""
        return self.findings.worst.peak.peak_bytes if self.findings is not None else 0

    def __repr__(self) -> str:
        """Return the answer in a line, and where the rest is, for Python and IPython."""
        found = "nothing was recorded" if self.findings is None else headline(self.findings)
        return f"<RunResults: {' '.join([self.origin.caveat, found]).strip().rstrip('.')}; .rows, .to_pandas()>"

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


def answer_of_run(results: RunResults) -> Answer:
    """Return the answer of a run, which `RunResults.answer` keeps for all outputs."""
    failed, findings = results.failed_allocation, results.findings
    first = results.first_changes if failed is None else failed.first
    why, change = cause_and_change(first)
    if failed is not None:
        why, change = failure_words(failed.event, failed.first)
    return Answer(
        happened=tuple(_happened(results)),
        why=why,
        change=change,
        remarks=tuple(_remarks(results)),
        in_use=tuple(_in_use(failed, findings)),
        sections=tuple(_sections(results)),
        caveat=results.origin.caveat,
        is_alarming=failed is not None,
    )


def _happened(results: RunResults) -> Iterator[str]:
    failed, findings = results.failed_allocation, results.findings
    if failed is not None:
        yield failed.event.happened(results.device)
        yield from failed.need
    if findings is None:
        if failed is None:
            yield "Nothing was recorded."
    elif failed is None or failed.in_use is None:  # a failure in recorded steps has its own sizes
        yield headline(findings, of="" if failed is None else " of the recorded steps")
    if findings is not None and failed is None:
        yield from share_sentence(findings.worst.peak, results.origin.device_bytes)
        yield from growth_sentences(findings.growth)


def _remarks(results: RunResults) -> Iterator[str]:
    findings = results.findings
    if findings is not None:
        yield from finding_sentences(findings)
    if results.values_read is not None:
        yield from values_sentences(results.values_read)
    if results.unused_parameters:
        yield unused_sentence(results.unused_parameters)
    if results.beside is not None and results.computed:
        yield from beside_sentences(results.beside, results.origin.device_bytes)
    yield from results.notes


def _in_use(failed: FailedAllocation | None, findings: RunFindings | None) -> Iterator[Table]:
    if failed is not None:
        yield blocks_table(failed.in_use.rows if failed.in_use is not None else failed.event.groups)
    elif findings is not None and findings.worst.peak.rows:
        yield from in_use_tables(findings.worst.peak)


def _sections(results: RunResults) -> Iterator[Section]:
    """Yield everything else that was found; what the page draws itself is marked."""
    failed, findings = results.failed_allocation, results.findings
    is_peak = failed is not None and findings is not None and failed.is_at(findings.worst.peak)
    first = results.first_changes if failed is None else failed.first
    if failed is not None:
        in_use = failed.in_use
        yield failure_section(failed.event, has_groups=in_use is None)
        if in_use is not None:
            yield Section("What was in use then", (), parts_tables(in_use), is_drawn=is_peak)
    if first is not None and (first.changes or failed is not None):
        yield from first_changes_sections(first)
    if findings is not None:
        yield from peak_sections(findings, has_parts=not is_peak)
    if results.beside is not None:
        yield beside_section(results.beside, results.device, computed=results.computed)
    yield from host_sections(results.history.pinned_bytes)
    if results.timings is not None:
        yield Section("Time", (), (timings_table(results.timings),), is_drawn=True)
    if results.values_read is not None and (values := tuple(values_listed(results.values_read))):
        yield Section("Values read from the device", values)
    said = []
    if results.unused_parameters == ():
        said.append("Every parameter received a gradient.")
    if results.computed and len(results.losses) > 1:
        said.append(f"Loss: {results.losses[0]:#.5g} in the first step, {results.losses[-1]:#.5g} in the last.")
    if said:
        yield Section("The training", tuple(said), is_drawn=True)


def unused_sentence(unused: tuple[str, ...]) -> str:
    """Parameters that received no gradient."""
    names = ", ".join(unused[:_NUM_NAMED]) + (
        f" and {len(unused) - _NUM_NAMED} more" if len(unused) > _NUM_NAMED else ""
    )
    return f"{some(len(unused), 'parameter')} received no gradient: {names}."
