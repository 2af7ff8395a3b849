"""`torch-timeline`, without a command: profile the training of a model, say what filled the device, write the files."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.command_line import program_commit
from tracer.commands.browser import Open, opened, pages_of
from tracer.commands.common import errors_for_people, kept_import_path, say_all, was_given
from tracer.commands.on_card import OnOptions, on_null_gpu, run_ranks, say_where, start_on
from tracer.commands.options import number, option, with_options
from tracer.commands.run_options import (
    SAVE_DIR,
    OutputOptions,
    RequestedFiles,
    SaveDir,
    ScheduleOptions,
    ScreenOptions,
)
from tracer.commands.usage import DEVICE, SCHEDULE, WHOLE_HELP
from tracer.commands.workload_options import ProfiledWorkload, chosen_device, device_of_rank, import_backends
from tracer.errors import OutputError, UsageError
from tracer.exporters.screen.terminal import progress_bar, say, screen, shows_bars
from tracer.openmp_threads import spin_shortly
from tracer.results.files import TIMING
from tracer.sessions.termination import Termination

if TYPE_CHECKING:
    import torch

    from tracer.results.run_results import RunResults
    from tracer.sessions.folder import SessionFolder
    from tracer.sessions.schedule import Schedule
    from tracer.workloads.workload import Workload

DEFAULT_DEVICE = "cuda:0"


@dataclass(frozen=True)
class ProfileOptions:
    """All of a profile's; `num_watched` are the steps to watch instead, 0 for none."""

    context: typer.Context
    workload: ProfiledWorkload
    device: str
    backends: Sequence[str]
    on: OnOptions
    save_dir: Path
    outputs: OutputOptions
    requested: RequestedFiles
    schedule: ScheduleOptions
    num_watched: int
    screen: ScreenOptions

    @property
    def device_named(self) -> bool:
        """Whether the user wrote `--device`."""
        return was_given(self.context, "device")


def _print_version(is_wanted: bool) -> None:
    """What a report of a fault begins with; torch is not loaded for it."""
    if is_wanted:
        version = import_module("tracer").__version__
        try:
            torch = f"torch {metadata.version('torch')}"
        except metadata.PackageNotFoundError:
            torch = "no torch"
        words = [f"torch-timeline {version}", torch, f"Python {platform.python_version()}"]
        words += [f"commit {commit[:12]}"] if (commit := program_commit()) else []
        print(", ".join(words))
        raise typer.Exit


def _print_whole_help(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        context.meta[WHOLE_HELP] = True
        print(context.get_help())
        raise typer.Exit


@with_options
def profile(
    context: typer.Context,
    *,
    workload: ProfiledWorkload,
    device: Annotated[
        str, option("Where to train. Without a GPU the default becomes cpu.", DEVICE, metavar="<text>")
    ] = DEFAULT_DEVICE,
    on: OnOptions,
    import_: Annotated[
        list[str],
        option(
            "Module to import first, such as one that registers a backend. Repeatable.",
            DEVICE,
            "--import",
            metavar="<module>",
        ),
    ] = [],  # noqa: B006
    save_dir: SaveDir = SAVE_DIR,
    open_: Open = False,
    outputs: OutputOptions,
    requested: RequestedFiles,
    schedule: ScheduleOptions,
    watch: Annotated[
        int,
        number(
            "Train this many steps without a profiler, and explain memory when something happens.",
            SCHEDULE,
            least=0,
            metavar="STEPS",
        ),
    ] = 0,
    screen: ScreenOptions,
    version: Annotated[
        bool,
        option(
            "Print the versions of this program, torch and Python.",
            None,
            "--version",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
    help_all: Annotated[
        bool,
        option(
            "Show every option of the profile of a model.",
            None,
            "--help-all",
            is_eager=True,
            callback=_print_whole_help,
        ),
    ] = False,
) -> None:
    """Show what filled GPU memory at its peak, down to the line of code.

        torch-timeline run train.py                  what filled it
        torch-timeline predict --on h100 train.py    will it fit
        torch-timeline fit --on h100 train.py        what to change
        torch-timeline snapshot memory_snapshot.pkl  what is in it

    Without a command it profiles a training step of a model, of yours with --model file.py:build, or of a small
    built-in one, and writes the results to --save-dir.
    """
    spin_shortly()
    if context.invoked_subcommand is not None:
        return
    options = ProfileOptions(
        context, workload, device, import_, on, save_dir, outputs, requested, schedule, watch, screen
    )
    with opened(pages_of(save_dir), is_wanted=open_), errors_for_people(), kept_import_path():
        succeeded = _profile(options)
    if not succeeded:
        raise typer.Exit(1)


def _profile(options: ProfileOptions) -> bool:
    """The command, on the null GPU if it is named; False if the run or a file failed."""
    _ = options.on.answers  # a mistake in them is said first
    if options.on.on is not None and not options.device.startswith("cuda"):
        raise UsageError(f"--on names a GPU, and --device {options.device} is not one.", hint="Leave one out.")
    if "torch" not in sys.modules and options.on.on is None:
        options.screen.say("Loading torch ...")
    run_ranks(options.on, options.save_dir, quiet=options.screen.quiet)
    if options.on.on is not None:
        devices = start_on(options.on.on)
        if not options.screen.quiet:
            say_where(devices)
    with on_null_gpu(options.on, options.save_dir, quiet=options.screen.quiet):
        return _profile_here(options)


def _profile_here(options: ProfileOptions) -> bool:
    from tracer.exporters.files import check_folder
    from tracer.sessions.jobs.ranks import this_rank

    rank = this_rank()
    _ = options.schedule.schedule()  # a mistake in it is said first
    options.workload.check(options.context)
    named = options.device_named
    import_backends(options.backends)
    text = options.device
    if rank is not None and (not named or ":" not in text):
        text = device_of_rank(text, rank.local_index)
    device = chosen_device(text, named=named, say=options.screen.say)
    check_folder(options.save_dir)
    options.screen.say("Building the model ...")
    if options.num_watched:
        from tracer.sessions.workload_run import watch_workload

        workload, settings, is_told = _build(options, device), options.workload.settings, not options.screen.quiet
        return watch_workload(
            workload, options.num_watched, save_dir=options.save_dir, settings=settings, is_told=is_told
        )
    return run_and_report(_build(options, device), options)


def _build(options: ProfileOptions, device: torch.device) -> Workload:
    import torch

    from tracer.capture.objects.parameter_origins import ParameterOrigins

    torch.manual_seed(options.workload.seed)
    with ParameterOrigins():
        return options.workload.build(device, device_named=options.device_named)


def run_and_report(
    workload: Workload,
    options: ProfileOptions,
) -> bool:
    """Run, write, then answer, for this process or for its rank; False if the run or a file failed."""
    from tracer.exporters.screen.next_commands import after_run
    from tracer.exporters.screen.run import print_results
    from tracer.sessions.folder import SessionFolder
    from tracer.sessions.jobs.ranks import peak_of

    folder = SessionFolder(options.save_dir)
    folder.begin()
    with closing(Termination()) as termination:
        termination.watch()
        results = _run(workload, options, termination)
        succeeded = _write(folder, results, options)
        try:
            if folder.rank is not None:
                folder.finish(peak_of(folder.rank, results))
        except OutputError as error:  # of the summary of all ranks, which costs the answer nothing
            say_all(error.lines)
            succeeded = False
    if not options.screen.quiet and folder.is_of_first_rank:
        with screen() as console:
            print_results(results, console, top=options.screen.top, num_steps=results.num_steps)
        if succeeded and results.findings is not None:  # also where the run failed, and its files say why
            say_all(after_run(folder.path, folder.names))
    return succeeded and results.failure is None


def _run(workload: Workload, options: ProfileOptions, termination: Termination) -> RunResults:
    from tracer.sessions.workload_run import run_profile

    schedule = options.schedule.schedule()
    num_recorded = schedule.num_active_steps * schedule.num_repeats
    recorded = f"{num_recorded:,} {'is' if num_recorded == 1 else 'are'} recorded"
    options.screen.say(f"Training {schedule.num_steps:,} steps, of which {recorded} ...")
    has_lines = not options.screen.quiet and not shows_bars()
    with progress_bar("Training steps", is_shown=not options.screen.quiet) as update:

        def progress(done: int, total: int) -> None:
            update(completed=done, total=total)
            if has_lines and (line := _stage(schedule, done, total)):
                say(line)

        return run_profile(
            workload,
            schedule=schedule,
            timing=TIMING.name not in options.outputs.leave_out,
            keep_recording=options.requested.keep_recording,
            progress=progress,
            settings=options.workload.settings,
            root=options.outputs.project_root,
            termination=termination,
            device_named=options.device_named,
        )


def _stage(schedule: Schedule, num_done: int, total: int) -> str:
    """Return a line where a cycle of recorded steps has ended, or all, and the timing of phases begins; else empty."""
    if num_done == schedule.num_steps and num_done < total:
        return f"Timing {total - num_done:,} more steps without the profiler ..."
    num_cycles, rest = divmod(num_done, (schedule.num_steps - 1) // schedule.num_repeats)
    if rest or not 0 < num_cycles <= schedule.num_repeats:
        return ""
    return (
        f"{num_done:,} of {schedule.num_steps:,} steps done: cycle {num_cycles:,} of {schedule.num_repeats:,} is read."
    )


def _write(folder: SessionFolder, results: RunResults, options: ProfileOptions) -> bool:
    """Say what failed and what is noteworthy, and write the files; False if one could not be written."""
    from tracer.exporters.screen.run import failure_lines
    from tracer.sessions.output_files import left_from_earlier, say_written

    say_all(failure_lines(results))
    for note in results.notes:
        options.screen.say(f"Note: {note}")
    options.screen.say("Writing the files ...")
    folder.write(results, leave_out=options.outputs.leave_out, tell=partial(say_written, quiet=options.screen.quiet))
    if left := left_from_earlier(folder.path, folder.written):
        options.screen.say(f"Note: {left}")
    return all(file.error is None for file in folder.written)
