"""`torch-timeline check`: whether a script needs more GPU memory than it did, asked without a GPU."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.command_line import role
from tracer.commands import options as opt
from tracer.commands.common import THRESHOLD_EXCEEDED, errors_for_people, kept_import_path, say_all
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions, Run, start_on
from tracer.commands.options import option
from tracer.commands.script import no_card_named
from tracer.commands.script_steps import predict_script
from tracer.errors import TracerError, UsageError
from tracer.exporters.screen.console import SHORT, Console
from tracer.exporters.screen.terminal import say
from tracer.null_gpu.job.place import RankPlace
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.answers.difference import SavedPeak
    from tracer.answers.prediction import Prediction
    from tracer.sessions.jobs.run_ranks import Job


class _OutOfMemoryError(TracerError):
    exit_status = THRESHOLD_EXCEEDED


class _NotMeasuredError(TracerError):
    """The script cannot be measured; `git bisect run` skips a commit at this status."""

    exit_status = 125


def check(
    script: opt.ScriptName,
    arguments: opt.Arguments = None,
    module: opt.Module = False,
    baseline: Annotated[Path, option("Peaks to compare with.", None, metavar="<path>")] = Path("peaks.json"),
    fail_above: Annotated[str, option("Growth that fails: 2%, or 64MiB.", None, metavar="<limit>")] = "1%",
    update: Annotated[bool, option("Write the peak to the baseline.", None, "--update")] = False,
    on: opt.NeededOn = None,
    answer: opt.Answers = None,
    per_node: opt.PerNode = 8,
    rank: opt.Rank = None,
    one_process: opt.OneProcess = False,
    markdown: Annotated[
        Path | None, option("Also write what changed as Markdown.", opt.OUTPUTS, metavar="<path>")
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Fail if a script's peak has grown, without a GPU.

    The script runs on the null GPU until its memory repeats, and its peak is
    compared with the baseline. Exits with 0, with 3 if the peak has grown, and
    with 125 if the script cannot be measured, as `git bisect run` expects.

    torch-timeline check --on 8xh100 --update train.py

    torch-timeline check --on 8xh100 --fail-above 2% train.py
    """
    from tracer.answers.difference import diff_peaks
    from tracer.answers.threshold import parse_threshold
    from tracer.exporters.diff import answer_of_diffs, write_markdown
    from tracer.exporters.json_documents import peak as documents
    from tracer.exporters.screen.answer import print_answer

    place = OnOptions(on=on, answer=answer, per_node=per_node, rank=rank, one_process=one_process)
    grown: list[str] = []
    with errors_for_people(), kept_import_path():
        threshold = parse_threshold(fail_above)
        if on is None:
            raise no_card_named(arguments)
        named = script_named(place, script, arguments, is_module=module)
        name = f"{shlex.join(named.words)} on {on}"
        known = _known(baseline, name, update=update)
        here = RankPlace.here()
        job = place.job if here is None else None
        with _measuring():
            if job is not None:
                peak = _worst_of(job)
            else:
                devices, run = start_on(on), Run(place=place, console=SHORT)
                with run.on_null_gpu():
                    found = predict_script(named, devices, run.console)
        if job is None:
            peak = documents.as_in_checkout(_peak(found, name), Path() if named.is_module else Path(named.path).parent)
            if here is not None and (folder := role("peaks")):
                from tracer.exporters.files import write_json

                write_json(Path(folder, f"{here.rank}.json"), documents.saved_peak_document(peak))
                return
        if update:
            documents.write_baseline({**known, name: peak}, baseline)
            say(f"Wrote {baseline}: {format_bytes(peak.bytes)} for {name}.")
            return
        diff = diff_peaks(known[name], peak)
        grown = [threshold.sentence(name, diff)] if threshold.is_exceeded_by(diff) else []
        if markdown is not None:
            write_markdown(name, diff, grown, markdown)
        names = {"before": str(baseline), "after": name}
        Console.of(as_json=as_json).answer(
            lambda: documents.peak_diffs_json([diff], **names),
            lambda rich: print_answer(answer_of_diffs([diff], **names), rich),
        )
        say_all(grown)
    if grown:
        raise typer.Exit(THRESHOLD_EXCEEDED)


@contextmanager
def _measuring() -> Iterator[None]:
    """Turn an error of the script or of the null GPU into one that says that nothing was measured."""
    try:
        yield
    except UsageError:
        raise
    except TracerError as error:
        raise _NotMeasuredError(str(error), hint=error.hint) from error


def _peak(answer: Prediction, name: str) -> SavedPeak:
    from tracer.answers.difference import saved_peak

    findings = answer.results.findings
    if findings is None or answer.failed_at is not None:
        raise _OutOfMemoryError(f"Out of memory: {name}.", hint="run or predict with the same --on explain it.")
    return saved_peak(findings)


def _known(baseline: Path, name: str, *, update: bool) -> Mapping[str, SavedPeak]:
    """Return the peaks of the baseline by name; with `update` the file may be missing."""
    from tracer.exporters.json_documents.peak import read_baseline

    if update and not baseline.exists():
        return {}
    known = read_baseline(baseline)
    if not update and name not in known:
        raise TracerError(f"{baseline} has no peak of {name}.", hint="Write it with --update.")
    return known


def _worst_of(job: Job) -> SavedPeak:
    """Run the command again as each rank that can differ, and return the largest peak."""
    from tracer.exporters.json_documents.peak import read_peak_json
    from tracer.sessions.jobs.run_ranks import run_job

    with tempfile.TemporaryDirectory(prefix="peaks-") as folder:
        result = run_job(replace(job, role={"peaks": folder}), SHORT)
        if result.status:
            raise typer.Exit(_NotMeasuredError.exit_status if result.status == 1 else result.status)
        peaks = [read_peak_json(path) for path in sorted(Path(folder).iterdir())]
    return max(peaks, key=lambda peak: peak.bytes)
