"""`torch-timeline`, without a command: profile the training of a model, say what filled the device, write the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracer.commands.common import errors_for_people, kept_import_path, not_said, refuse, say_all, was_given
from tracer.commands.on_card import Answers, On, answers_of, say_where, start_on, values_on
from tracer.commands.run_options import (
    NUM_ROWS,
    ActiveSteps,
    KeepRecording,
    Quiet,
    Repeats,
    Top,
    Trace,
    WaitSteps,
    WarmupSteps,
)
from tracer.commands.usage import DEVICE, MODEL, OUTPUTS, QUESTIONS, SCHEDULE
from tracer.commands.workload_options import (
    Accumulate,
    Amp,
    BatchSize,
    Checkpoint,
    Compile,
    CompileArg,
    Data,
    DataSize,
    HiddenChannels,
    InChannels,
    Inference,
    Loss,
    Model,
    ModelArg,
    ModelInput,
    NumLayers,
    NumModes,
    Optimizer,
    OutChannels,
    Seed,
    Spectrum,
    WorkloadOptions,
    chosen_device,
    device_of_rank,
    import_backends,
    workload_options,
)
from tracer.errors import MissingPackageError, OutputError, TracerError
from tracer.exporters.screen.terminal import say, screen
from tracer.exporters.screen.terminal import say as say_always
from tracer.runs.termination import Termination

if TYPE_CHECKING:
    import torch

    from tracer.analysis.peak_diff import SavedPeak
    from tracer.results.run_results import RunResults
    from tracer.runs.ranks import Rank
    from tracer.runs.session import Schedule
    from tracer.workloads.workload import Workload

DEFAULT_DEVICE = "cuda:0"
EAGER_FOLDER = "eager"
_SWITCHES = (
    *("max_mem", "memory_timeline", "peak_json", "memory_report", "run_time_report"),
    *("memory_snapshot", "cuda_timing", "trace"),
)


def profile(
    context: typer.Context,
    batch_size: BatchSize = 8,
    in_channels: InChannels = 3,
    out_channels: OutChannels = 1,
    hidden_channels: HiddenChannels = 64,
    data_size: DataSize = "64",
    n_modes: NumModes = "32",
    n_layers: NumLayers = 4,
    data: Data = "random",
    spectrum: Spectrum = "new_zeros",
    device: Annotated[
        str, typer.Option(help="Where to train. Without a GPU the default becomes cpu.", rich_help_panel=DEVICE)
    ] = DEFAULT_DEVICE,
    on: On = None,
    answer: Answers = [],  # noqa: B006
    import_: Annotated[
        list[str],
        typer.Option(
            "--import",
            metavar="<module>",
            help="Module to import first, such as one that registers a backend. Repeatable.",
            rich_help_panel=DEVICE,
        ),
    ] = [],  # noqa: B006
    save_dir: Annotated[Path, typer.Option(help="Folder for the results.", rich_help_panel=OUTPUTS)] = Path(
        "profiler_outputs"
    ),
    project_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of your project, for the reports. By default that of the model's code.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    n_wait_steps: WaitSteps = 1,
    n_warmup_steps: WarmupSteps = 1,
    n_active_steps: ActiveSteps = 3,
    n_repeats: Repeats = 2,
    seed: Seed = 0,
    model: Model = "",
    model_arg: ModelArg = [],  # noqa: B006
    model_input: ModelInput = [],  # noqa: B006
    optimizer: Optimizer = "adamw",
    loss: Loss = "auto",
    amp: Amp = "off",
    accumulate: Accumulate = 1,
    checkpoint: Checkpoint = False,
    compile: Compile = False,
    compile_arg: CompileArg = [],  # noqa: B006
    inference: Inference = False,
    compare_eager: Annotated[
        bool,
        typer.Option(
            "--compare-eager",
            help="Train it without compilation too, and say what compiling changes.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    max_mem: Annotated[
        bool, typer.Option(help="Leave out max_mem.txt, the breakdown at the peak.", rich_help_panel=OUTPUTS)
    ] = True,
    memory_timeline: Annotated[
        bool, typer.Option(help="Leave out memory_timeline.html, the page.", rich_help_panel=OUTPUTS)
    ] = True,
    peak_json: Annotated[
        bool, typer.Option(help="Leave out peak.json, every row of the peak.", rich_help_panel=OUTPUTS)
    ] = True,
    memory_report: Annotated[
        bool, typer.Option(help="Leave out memory_report.sqlite.", rich_help_panel=OUTPUTS)
    ] = True,
    run_time_report: Annotated[
        bool, typer.Option(help="Leave out run_time_report.sqlite.", rich_help_panel=OUTPUTS)
    ] = True,
    memory_snapshot: Annotated[
        bool, typer.Option(help="Leave out memory_snapshot.pkl.", rich_help_panel=OUTPUTS)
    ] = True,
    cuda_timing: Annotated[
        bool, typer.Option(help="Do not time the phases, and leave out cuda_timing.txt.", rich_help_panel=OUTPUTS)
    ] = True,
    trace: Trace = False,
    keep_recording: KeepRecording = False,
    watch: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="STEPS",
            help="No profiler: train so many steps, and explain memory when something happens.",
            rich_help_panel=SCHEDULE,
        ),
    ] = 0,
    top: Top = NUM_ROWS,
    quiet: Quiet = False,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="Say which changes would lower the peak, each tried; write advice.json.",
            rich_help_panel=QUESTIONS,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="With --advise: also make the best changes for real, before and after.",
            rich_help_panel=QUESTIONS,
        ),
    ] = False,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="<size>",
            help="With --advise: also find the cheapest changes to fit in 16GiB, say.",
            rich_help_panel=QUESTIONS,
        ),
    ] = None,
) -> None:
    """Explain every byte of a training run's memory peak.

    Without a command, trains a Fourier Neural Operator for a few steps under torch's profiler, says what filled the
    device at its worst moment, and writes the results to --save-dir.

        python main.py --batch-size 16 --device cuda:0
    """
    given = dict(locals())
    if context.invoked_subcommand is not None:
        return
    with errors_for_people(), kept_import_path():
        succeeded = _profile(context, given)
    if not succeeded:
        raise typer.Exit(1)


def _profile(context: typer.Context, given: Mapping[str, Any]) -> bool:
    """The command with its options by name, on the null GPU if it is named; False if the run or a file failed."""
    answers = answers_of(given["answer"], on=given["on"])
    if given["on"] is not None:
        if not given["device"].startswith("cuda"):
            raise TracerError(f"--on names a GPU, and --device {given['device']} is none.", hint="Leave one out.")
        devices = start_on(given["on"])
        if not given["quiet"]:
            say_where(devices)
    with values_on(answers):
        return _profile_here(context, given)


def _profile_here(context: typer.Context, given: Mapping[str, Any]) -> bool:
    """The command in this process."""
    import torch

    from tracer.capture.objects.parameter_origins import ParameterOrigins
    from tracer.exporters.files import check_folder
    from tracer.runs.ranks import this_rank
    from tracer.runs.session import Schedule

    rank = this_rank()
    schedule = Schedule(*(given[f"n_{name}"] for name in ("wait_steps", "warmup_steps", "active_steps", "repeats")))
    options = workload_options(context, given)
    named = was_given(context, "device")
    import_backends(given["import_"])
    text = given["device"]
    if rank is not None and (not named or ":" not in text):
        text = device_of_rank(text, rank.local_index)
    device = chosen_device(text, named=named, say=not_said if given["quiet"] else say)
    if given["compare_eager"] and rank is not None:
        raise TracerError(
            "--compare-eager is for a run of one process.",
            hint="Profile twice, and compare a rank of both by `diff A/rank0 B/rank0`.",
        )
    advise = _adviser(context, given, options, device, is_alone=rank is None)
    check_folder(given["save_dir"])

    def build() -> tuple[Workload, dict[str, Any]]:
        torch.manual_seed(given["seed"])
        with ParameterOrigins() as origins:
            workload = options.build(device, device_named=named)
        return workload, {"parameter_lines": origins.take(workload.model), "settings": options.settings}

    run_options = {
        "schedule": schedule,
        "device_named": named,
        "leave_out": [name.replace("_", "-") for name in _SWITCHES if not given[name]],
        "timing": given["cuda_timing"],
        "trace": given["trace"],
        "keep_recording": given["keep_recording"],
        "root": given["project_root"],
        "quiet": given["quiet"],
    }
    if given["watch"]:
        from tracer.runs.watched_workload import watch_workload

        workload, of_workload = build()
        return watch_workload(
            workload,
            given["watch"],
            save_dir=given["save_dir"],
            settings=of_workload["settings"],
            screen="none" if given["quiet"] else "short",
        )
    eager, is_eager_written = None, True
    if given["compare_eager"]:
        eager, is_eager_written = _run_eager(build, given["save_dir"] / EAGER_FOLDER, **run_options)
    workload, of_workload = build()
    return (
        run_and_report(
            workload,
            save_dir=given["save_dir"],
            eager=eager,
            advise=advise,
            top=given["top"],
            **run_options,
            **of_workload,
        )
        and is_eager_written
    )


def _adviser(
    context: typer.Context, given: Mapping[str, Any], options: WorkloadOptions, device: torch.device, *, is_alone: bool
) -> Callable[[Workload, RunResults], RunResults] | None:
    """What adds advice to the results of a run; None where nobody asked.

    Raises:
        TracerError: It is asked for as it cannot be.
    """
    import torch

    from tracer.rehearsal.unfilled import unfilled_weights
    from tracer.units import parse_memory

    if not given["advise"]:
        refuse(context, ("verify", "gpu_memory"), "with --advise")
        return None
    if given["watch"]:
        raise TracerError("--advise is for a profiled run, and --watch has no profiler.", hint="Leave one of them out.")
    if not is_alone:
        raise TracerError("--advise is for a run of one process.", hint="Leave it out, or run without torchrun.")
    try:
        target_bytes = parse_memory(given["gpu_memory"]) if given["gpu_memory"] else None
    except ValueError as error:
        raise TracerError(str(error), hint="Write the GPU's memory as 16GiB, 80GiB or 8192MiB.") from None

    def build_there() -> Workload:
        torch.manual_seed(given["seed"])
        return options.build(device, device_named=False)

    def build_unfilled() -> Workload:
        with unfilled_weights():
            return options.build(torch.device("cpu"), device_named=False)

    def advise(workload: Workload, results: RunResults) -> RunResults:
        from tracer.advice.found import found_in
        from tracer.runs.advising import advise_on

        with _progress("Changes tried", is_shown=not given["quiet"]) as progress:
            try:
                report = advise_on(
                    build_unfilled,
                    workload,
                    build_there=build_there,
                    target_bytes=target_bytes,
                    verify=given["verify"] and results.failure is None,
                    progress=progress,
                )
            except TracerError as error:  # the run's own results are not lost for it
                note = f"There is no advice. {error} {error.hint}".strip()
                return replace(results, notes=(*results.notes, note))
        found = found_in(results.waste, device=results.device, rehearsed=(*report.rows, *report.others))
        more_bytes = 0
        if results.findings is not None:
            more_bytes = max(results.findings.worst.peak.allocator_peak_bytes - report.peak_bytes, 0)
        return replace(results, advice=replace(report, found=found, unrehearsed_bytes=more_bytes))

    return advise


def _run_eager(
    build: Callable[[], tuple[Workload, dict[str, Any]]],
    folder: Path,
    *,
    leave_out: list[str],
    quiet: bool = False,
    **options: Any,
) -> tuple[SavedPeak | None, bool]:
    """The peak of the same run without compilation, None if it failed, and whether its files could be written.

    Nothing of it is alive afterwards: the compiled run is the same as without it.
    """
    import gc

    from tracer.analysis.profiles.eager_comparison import saved_peak
    from tracer.capture.device.devices import release_cached_memory
    from tracer.workloads.compiling import without_compiling

    termination = Termination()
    termination.watch()
    try:
        with without_compiling():
            workload, of_workload = build()
            device = workload.device
            results = _run(workload, quiet=quiet, termination=termination, **options, **of_workload)
        is_written = _write(results, folder, leave_out, say=not_said if quiet else say)
    finally:
        termination.close()
    if results.failure is not None and not isinstance(results.failure.error, Exception):
        raise results.failure.error
    peak = None
    if results.failure is None and results.findings is not None:
        peak = saved_peak(results.findings)
    else:
        (not_said if quiet else say)("Note: There is no comparison: without compilation the run failed, as said above.")
    del workload, of_workload, results
    gc.collect()
    release_cached_memory(device)
    return peak, is_written


def run_and_report(
    workload: Workload,
    schedule: Schedule,
    *,
    save_dir: Path,
    leave_out: list[str],
    top: int = NUM_ROWS,
    quiet: bool = False,
    eager: SavedPeak | None = None,
    advise: Callable[[Workload, RunResults], RunResults] | None = None,
    **options: Any,
) -> bool:
    """Run, write, then answer, for this process or for its rank; False if the run or a file failed."""
    from tracer.exporters.screen.next_commands import after_run
    from tracer.exporters.screen.run import print_results
    from tracer.runs.ranks import begin, this_rank

    rank = this_rank()
    if rank is not None:
        begin(rank, save_dir)
    termination = Termination()
    termination.watch()
    try:
        results = _run(workload, schedule, quiet=quiet, termination=termination, **options)
        results = replace(results, eager=eager)
        if advise is not None:
            termination.resume()
            try:
                results = advise(workload, results)
            finally:
                termination.hold()
        folder = rank.folder(save_dir) if rank is not None else save_dir
        succeeded = _write(results, folder, leave_out, say=not_said if quiet else say)
        if rank is not None:
            succeeded &= _summarize(rank, results, save_dir)
    finally:
        termination.close()
    is_shown = not quiet and (rank is None or rank.index == 0)
    if is_shown:
        with screen() as console:
            print_results(results, console, top=top)
    if succeeded and is_shown and results.findings is not None:  # also where the run failed, and its files say why
        names = [path.name for path in folder.iterdir()]
        say_all(after_run(folder, names, is_advice_open=advise is None and rank is None))
    return succeeded and results.failure is None


def _run(workload: Workload, schedule: Schedule, *, quiet: bool, **options: Any) -> RunResults:
    from tracer.runs.workload_run import run_profile

    with _progress(is_shown=not quiet) as progress:
        return run_profile(workload, schedule=schedule, **options, progress=progress)


@contextmanager
def _progress(what: str = "Training steps", *, is_shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, which a terminal shows and a log does not; it is moved by steps done and steps in all."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not is_shown or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(results: RunResults, save_dir: Path, leave_out: list[str], *, say: Callable[[str], None]) -> bool:
    """Say what failed and what is noteworthy, and write the files; False if one could not be written.

    Args:
        results: Of the run.
        save_dir: Folder of the files.
        leave_out: Names of outputs that are not wanted.
        say: Takes a line that is no error.
    """
    from tracer.exporters.screen.failure import failure_lines
    from tracer.runs.outputs import Written, left_from_earlier, left_sentence, write_outputs, written_lines

    def tell(one: Written) -> None:
        failed = one.error is not None and not isinstance(one.error, MissingPackageError)
        for line in written_lines(one):
            (say_always if failed else say)(line)

    say_all(failure_lines(results))
    for note in results.notes:
        say(f"Note: {note}")
    written = write_outputs(results, save_dir, leave_out=leave_out, tell=tell)
    if left := left_from_earlier(save_dir, written):
        say(f"Note: {left_sentence(left)}")
    return all(one.error is None or isinstance(one.error, MissingPackageError) for one in written)


def _summarize(rank: Rank, results: RunResults, save_dir: Path) -> bool:
    """Add this rank to the summary of all; False if it could not be written, which costs the answer nothing."""
    from tracer.runs.rank_store import RankStore
    from tracer.runs.ranks import finish, peak_of

    try:
        finish(rank, peak_of(rank, results), save_dir, RankStore.of_process_group(rank.run))
    except OutputError as error:
        say_all(error.lines)
        return False
    return True
