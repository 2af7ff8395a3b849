"""`torch-timeline`, without a command: profile the training of a model, say what filled the device, write the files."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracer.answers.files import MAX_MEM, MEMORY_REPORT, PAGE, PEAK, RUN_TIME_REPORT, SNAPSHOT, TIMING, OutputFile
from tracer.command_line import program_commit
from tracer.commands import options as opt
from tracer.commands.common import errors_for_people, kept_import_path, load_torch_well, refuse, say_all, was_given
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.options import number, option
from tracer.commands.workload_options import (
    MAX_SEED,
    OF_FNO,
    OF_STEP,
    WorkloadOptions,
    axis_sizes,
    chosen_device,
    device_of_rank,
    fno_module,
)
from tracer.errors import OutputError, UsageError
from tracer.exporters.screen.console import Console
from tracer.sessions.termination import Termination

if TYPE_CHECKING:
    from tracer.answers.run_results import RunResults
    from tracer.workloads.workload import Workload

DEFAULT_DEVICE = "cuda:0"
WHOLE_HELP = "torch-timeline whole help"
"""In a context's `meta`: every option is asked for."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Options of a profile: the workload, the device, the steps, and the outputs."""

    workload: WorkloadOptions
    device: str
    device_named: bool  # True if the user wrote `--device`
    run: Run
    leave_out: Collection[str] = ()  # Names of outputs
    keep_recording: bool = False
    schedule: Sequence[int]  # Arguments of `Schedule`

    @property
    def save_dir(self) -> Path:
        """Folder of the results, which the option's default names if nobody does."""
        assert self.run.save_dir is not None
        return self.run.save_dir


def _print_version(is_wanted: bool) -> None:
    """Print the versions that a bug report begins with, without loading torch."""
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
        print(context.get_help(), end="")
        raise typer.Exit


def _without(file: OutputFile) -> Any:
    """A switch that is on, and is switched off by `--no-` and the name of a file."""
    return option(file.switch_help, opt.OUTPUTS, f" /--no-{file.name}", show_default=False)


def profile(
    context: typer.Context,
    model: opt.Model = "",
    model_arg: opt.ModelArgs = None,
    model_input: opt.ModelInputs = None,
    batch_size: opt.BatchSize = 8,
    seed: Annotated[int, number("Seed of weights and data.", opt.MODEL, most=MAX_SEED)] = 0,
    optimizer: opt.Optimizer = "adamw",
    loss: opt.Loss = "auto",
    amp: opt.Amp = "off",
    checkpoint: opt.Checkpoint = False,
    inference: opt.Inference = False,
    in_channels: Annotated[int, number("Channels of the model's input.", opt.FNO)] = 3,
    out_channels: Annotated[int, number("Channels of the model's output.", opt.FNO)] = 1,
    hidden_channels: Annotated[int, number("Width of the model.", opt.FNO)] = 64,
    data_size: Annotated[
        str, option("Grid points: 64 is 64 x 64; 128x96 or 32x32x32 also work.", opt.FNO, metavar="<text>")
    ] = "64",
    n_modes: Annotated[
        str, option("Fourier modes kept: 32 for every axis, or 32x16.", opt.FNO, metavar="<text>")
    ] = "32",
    n_layers: Annotated[int, number("Fourier layers.", opt.FNO)] = 4,
    device: Annotated[
        str, option("Where to train. Without a GPU the default becomes cpu.", opt.DEVICE, metavar="<text>")
    ] = DEFAULT_DEVICE,
    on: opt.On = None,
    per_node: opt.PerNode = 8,
    rank: opt.Rank = None,
    n_wait_steps: opt.WaitSteps = 1,
    n_warmup_steps: opt.WarmupSteps = 1,
    n_active_steps: opt.ActiveSteps = 3,
    n_repeats: opt.Repeats = 2,
    save_dir: opt.SaveDir = opt.SAVE_DIR,
    max_mem: Annotated[bool, _without(MAX_MEM)] = True,
    memory_timeline: Annotated[bool, _without(PAGE)] = True,
    peak_json: Annotated[bool, _without(PEAK)] = True,
    memory_report: Annotated[bool, _without(MEMORY_REPORT)] = True,
    run_time_report: Annotated[bool, _without(RUN_TIME_REPORT)] = True,
    memory_snapshot: Annotated[bool, _without(SNAPSHOT)] = True,
    cuda_timing: Annotated[bool, _without(TIMING)] = True,
    keep_recording: opt.KeepRecording = False,
    full: opt.Full = False,
    quiet: opt.Quiet = False,
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

    Without a command it profiles a training step of a model, of yours with
    --model file.py:build, or of a small built-in one, and writes the results to
    --save-dir. --help-all lists its options.
    """
    load_torch_well()
    if context.invoked_subcommand is not None:
        return
    files = {
        MAX_MEM: max_mem,
        PAGE: memory_timeline,
        PEAK: peak_json,
        MEMORY_REPORT: memory_report,
        RUN_TIME_REPORT: run_time_report,
        SNAPSHOT: memory_snapshot,
        TIMING: cuda_timing,
    }
    with errors_for_people(), kept_import_path():
        fno = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "hidden_channels": hidden_channels,
            "data_size": axis_sizes("--data-size", data_size),
            "n_modes": axis_sizes("--n-modes", n_modes),
            "n_layers": n_layers,
        }
        workload = WorkloadOptions(
            batch_size=batch_size,
            seed=seed,
            model=model,
            model_arg=model_arg or (),
            inputs=model_input or (),
            optimizer=optimizer,
            loss=loss,
            amp=amp,
            checkpoint=checkpoint,
            inference=inference,
            fno=fno,
        )
        options = ProfileOptions(
            workload=workload,
            device=device,
            device_named=was_given(context, "device"),
            run=Run(
                place=OnOptions(on=on, per_node=per_node, rank=rank),
                save_dir=save_dir,
                console=Console.of(quiet=quiet, full=full),
            ),
            leave_out=[file.name for file, is_wanted in files.items() if not is_wanted],
            keep_recording=keep_recording,
            schedule=(n_wait_steps, n_warmup_steps, n_active_steps, n_repeats),
        )
        succeeded = _profile(context, options)
    if not succeeded:
        raise typer.Exit(1)


def _profile(context: typer.Context, options: ProfileOptions) -> bool:
    """The command, on the null GPU if it is named; False if the run or a file failed."""
    card = options.run.place.on
    if card is not None and not options.device.startswith("cuda"):
        raise UsageError(f"--on names a GPU, and --device {options.device} is not one.", hint="Leave one out.")
    if "torch" not in sys.modules and card is None:
        options.run.console.say("Loading torch ...")
    options.run.as_job()
    options.run.say_where(options.run.start())
    with options.run.on_null_gpu():
        from tracer.exporters.files import check_folder
        from tracer.sessions.jobs.ranks import this_rank
        from tracer.sessions.schedule import Schedule

        rank = this_rank()
        Schedule(*options.schedule)  # a mistake in it is said first
        if options.workload.model:
            refuse(context, OF_FNO, "without --model")
        else:
            refuse(context, ("model_arg", "model_input", *OF_STEP), "with --model")
            try:
                fno_module().FnoSettings(**options.workload.fno_settings())
            except ValueError as error:
                raise UsageError(str(error), hint="--help-all lists the options.") from error
        text = options.device
        if rank is not None and (not options.device_named or ":" not in text):
            text = device_of_rank(text, rank.local_index)
        device = chosen_device(text, named=options.device_named, console=options.run.console)
        check_folder(options.save_dir)
        options.run.console.say("Building the model ...")
        import torch

        from tracer.capture.objects.parameter_origins import ParameterOrigins

        torch.manual_seed(options.workload.seed)
        with ParameterOrigins():
            workload = options.workload.build(device, device_named=options.device_named)
        return run_and_report(workload, options)


def run_and_report(workload: Workload, options: ProfileOptions) -> bool:
    """Run, write, then answer, for this process or for its rank; False if the run or a file failed."""
    from tracer.answers.failure_lines import failure_lines
    from tracer.exporters.screen.answer import print_answer
    from tracer.exporters.screen.next_commands import after_run
    from tracer.sessions.folder import SessionFolder
    from tracer.sessions.output_files import left_from_earlier, say_if_failed

    console, folder = options.run.console, SessionFolder(options.save_dir)
    if folder.messages is not None:
        folder.messages.begin()
    with closing(Termination()) as termination:
        termination.watch()
        results = _run(workload, options, termination)
        say_all(failure_lines(results))
        console.say("Writing the files ...")
        folder.write(results, leave_out=options.leave_out, tell=say_if_failed)
        if left := left_from_earlier(folder.path, folder.written):
            console.say(f"Note: {left}")
        succeeded = all(file.error is None for file in folder.written)
        try:
            folder.finish(results)
        except OutputError as error:  # of the summary of all ranks, which costs the answer nothing
            say_all(error.lines)
            succeeded = False
    if not console.is_quiet and folder.is_of_first_rank:
        last = after_run(folder.path, folder.names, is_full=console.is_full)
        with console.screen() as rich:
            print_answer(results.answer, rich, full=console.is_full, last=last)
        say_all(last)
    return succeeded and results.failure is None


def _run(workload: Workload, options: ProfileOptions, termination: Termination) -> RunResults:
    from tracer.sessions.schedule import Schedule
    from tracer.sessions.workload_run import run_profile

    schedule = Schedule(*options.schedule)
    num_recorded = schedule.num_active_steps * schedule.num_repeats
    recorded = f"{num_recorded:,} {'is' if num_recorded == 1 else 'are'} recorded"
    options.run.console.say(f"Training {schedule.num_steps:,} steps, of which {recorded} ...")
    with options.run.console.progress_bar("Training steps") as update:
        return run_profile(
            workload,
            schedule=schedule,
            timing=TIMING.name not in options.leave_out,
            keep_recording=options.keep_recording,
            progress=lambda done, total: update(completed=done, total=total),
            settings=options.workload.settings,
            termination=termination,
            device_named=options.device_named,
        )
