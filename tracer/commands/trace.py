"""`torch-timeline trace`: what filled memory and where the time went, from a trace that torch.profiler wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.browser import Html, Open, opened, page_to_open, pages_of
from tracer.commands.common import check_outputs, errors_for_people, say_all
from tracer.commands.options import option
from tracer.commands.run_options import NUM_ROWS, AsJson, Quiet, Top
from tracer.commands.usage import DEVICE, OUTPUTS
from tracer.errors import OutputError, RecordingError, TracerError
from tracer.exporters.screen.terminal import print_json, screen

if TYPE_CHECKING:
    from rich.console import Console

    from tracer.results.trace_report import TraceReport

_SUFFIXES = (".json", ".json.gz", ".json.zst")
_NOTHING_TO_DRAW = "Trace with profile_memory=True."


def trace(
    file: Annotated[
        list[Path], typer.Argument(help="trace.json, .json.gz or .json.zst; of a whole job several, or their folder.")
    ],
    device: Annotated[
        str | None,
        option("Device to explain: cuda:1. By default the one that used most memory.", DEVICE, metavar="<device>"),
    ] = None,
    save_dir: Annotated[
        Path | None,
        option("Also write the files of a run, such as trace.json.gz with memory in it.", OUTPUTS, metavar="<path>"),
    ] = None,
    html: Html = None,
    open_: Open = False,
    sqlite: Annotated[Path | None, option("Also write the memory report.", OUTPUTS, metavar="<path>")] = None,
    out: Annotated[
        Path | None,
        option(
            "Also write the trace with memory above its operators, in gzip, for ui.perfetto.dev.",
            OUTPUTS,
            metavar="<path>",
        ),
    ] = None,
    as_json: AsJson = False,
    top: Top = NUM_ROWS,
    quiet: Quiet = False,
) -> None:
    """Say what filled memory and where the time went, from a trace of torch.profiler's made anywhere.

    Several traces are the ranks of a job: the slowest, and who waits for whom.
    """
    from tracer.command_line import this_command

    if save_dir is None:
        html = page_to_open(html, is_opened=open_)
    pages = [*([html] if html else []), *pages_of(save_dir)]
    files = {"memory-timeline": html, "memory-report": sqlite, "trace": out}
    wanted = {name: path for name, path in files.items() if path is not None}
    with opened(pages, is_wanted=open_), errors_for_people(), screen(is_shown=as_json or not quiet) as console:
        recordings = _traces(file)
        if len(recordings) > 1:
            if wanted or save_dir is not None:
                raise TracerError("Files are written of one trace.", hint="Name the trace of one rank.")
            _show_job(recordings, console, device=device, as_json=as_json)
            return
        (path,) = recordings
        _check_outputs(path, wanted.values(), save_dir)
        from tracer.results.trace_report import explain_trace

        report = explain_trace(path, device=device, command=this_command())
        succeeded = write_files(report, wanted, save_dir, quiet=quiet)
        from tracer.exporters.trace_times import print_trace, trace_json

        if as_json:
            print_json(trace_json(report), console)
        else:
            print_trace(report, console, top=top)
    if not succeeded:
        raise typer.Exit(1)


def _traces(paths: Sequence[Path]) -> list[Path]:
    """The files that are named, those of folders in order."""
    files: dict[Path, None] = {}
    for path in paths:
        inside = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES)) if path.is_dir() else [path]
        if not inside:
            raise RecordingError(f"{path} has no trace.", hint=f"Traces end in {', '.join(_SUFFIXES)}.")
        files |= dict.fromkeys(inside)
    return list(files)


def _show_job(paths: Sequence[Path], console: Console, *, device: str | None, as_json: bool) -> None:
    from tracer.results.trace_report import explain_traces

    job = explain_traces(paths, device=device)
    if not job.rows:
        raise RecordingError(f"None of {len(paths):,} files can be read: {job.problems[0][1]}")
    from tracer.exporters.trace_times import print_trace_job, trace_job_json

    if as_json:
        print_json(trace_job_json(job), console)
    else:
        print_trace_job(job, console)


def _check_outputs(path: Path, outputs: Iterable[Path], save_dir: Path | None) -> None:
    """Before anything is read: no output is the trace, and folders can be written to."""
    from tracer.exporters.files import check_folder

    check_outputs(outputs, [path], hint="Name another file.")
    if save_dir is not None:
        if (save_dir / "trace.json.gz").resolve() == path.resolve():
            raise OutputError(f"{save_dir} has the trace itself.", hint="Name another folder with --save-dir.")
        check_folder(save_dir)


def write_files(report: TraceReport, wanted: dict[str, Path], save_dir: Path | None, *, quiet: bool) -> bool:
    """Write what is wanted, by names of outputs; False if a file could not be written."""
    if not wanted and save_dir is None:
        return True
    if report.results is None:
        raise TracerError(f"{report.file} has no allocations, so there is nothing to write.", hint=_NOTHING_TO_DRAW)
    from tracer.sessions.output_files import write_and_say, write_output

    for name, path in wanted.items():
        write_output(report.results, name, path)
        say_all([f"Wrote {path}"] * (not quiet))
    return save_dir is None or write_and_say(report.results, save_dir, quiet=quiet)
