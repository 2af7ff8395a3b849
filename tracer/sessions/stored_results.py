"""The stored part of a run's results, and the results made again from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracer.answers.failure_lines import failure_lines
from tracer.answers.findings import RunFindings
from tracer.answers.recording_findings import combine_cycles, find_in_cycle
from tracer.answers.run_history import RunHistory
from tracer.answers.run_results import RunResults
from tracer.blocks.from_recording.origins import with_lines_of_nodes
from tracer.capture.profiler.inline_operators import place_inline_operators
from tracer.capture.run_facts import source_of
from tracer.capture.sources.compiled_code import NOTHING_COMPILED
from tracer.capture.sources.source_files import is_user_code
from tracer.exporters.recording_file.kept_run_file import KeptCycle, KeptRun, SourceFile


def kept_run(results: RunResults) -> KeptRun:
    """Return the observations that the results were concluded from."""
    findings, failure, failed = results.findings, results.failure, results.failed_allocation
    parts = findings.parts if findings is not None else ()
    return KeptRun(
        **results.run_facts,
        cycles=tuple(KeptCycle(part.source.recording, part.source.is_whole) for part in parts),
        snapshot=results.snapshot,
        num_later=results.history.num_later,
        failure=tuple(failure_lines(results)),
        ran_out_of_memory=failure is not None and failure.out_of_memory,
        device_bytes=results.origin.device_bytes if failure is None else failure.allocator.get("device"),
        at_failure=None if failed is None else failed.objects,
        failed_later=failed if results.history.device_out_of_memory is None else None,
        notes=tuple(note for note in results.notes if note not in results.history.notes),
        sources=tuple(_sources(results)),
        compiled=findings.compiled if findings is not None else NOTHING_COMPILED,
        graph_pools=findings.graph_pools if findings is not None else (),
    )


def _sources(results: RunResults) -> Iterator[SourceFile]:
    """Every file that the recordings and the parameters name, with the source of the user's, as lines were read."""
    is_users_by_file: dict[str, bool] = {}
    for part in results.findings.parts if results.findings is not None else ():
        frames, strings = part.source.recording.frames, part.source.recording.strings
        user = set(np.unique(frames.file[frames.user]).tolist())
        is_users_by_file |= {strings[file]: file in user for file in np.unique(frames.file).tolist() if strings[file]}
    for line in (*(line for each in results.parameters for line in each.lines), *results.known.lines.values()):
        is_users_by_file.setdefault(line.file, is_user_code(line.file))
    in_project = results.name_in_project
    for path, is_users in is_users_by_file.items():
        yield SourceFile(path, in_project(path), source_of(path, is_users=is_users))


def results_of(run: KeptRun) -> RunResults:
    """Every question asked again, by this version of the program."""
    notes = list(run.notes)
    history = RunHistory(run.snapshot, run.num_later)
    findings = _findings(run, history)
    failed = run.failed_later
    if run.ran_out_of_memory and failed is None:
        failed = history.failed_allocation(
            findings, run.known, run.device, run.at_failure, device_bytes=run.device_bytes
        )
    return RunResults(
        **run.run_facts,
        findings=findings,
        history=history,
        notes=(*notes, *history.notes),
        failed_allocation=failed,
        project_names={source.path: source.project_name for source in run.sources},
        source_texts={source.path: source.text for source in run.sources},
    )


def _findings(run: KeptRun, history: RunHistory) -> RunFindings | None:
    if not run.cycles:
        return None
    texts = {source.path: source.text for source in run.sources}
    findings = combine_cycles(
        [
            find_in_cycle(
                with_lines_of_nodes(place_inline_operators(cycle.recording, texts.get), run.compiled.graphs),
                known=run.known,
                module_names=run.module_names,
                device=run.device,
                is_whole=cycle.is_whole,
                graphs=run.compiled.graphs,
            )
            for cycle in run.cycles
        ],
        compiled=run.compiled,
    )
    return replace(history.joined(findings, run.known, run.at_failure), graph_pools=run.graph_pools)
