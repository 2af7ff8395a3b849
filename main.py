"""The command line: parse, call the library, print. No logic of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

# Kineto, the library below torch's profiler, logs every start and stop of a recording to stderr; 99 is silence.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import typer

from tracer.errors import MissingPackageError, OutputError, TracerError, WorkloadError
from tracer.exporters.terminal import say, screen
from tracer.runs.termination import Terminated, Termination

if TYPE_CHECKING:
    import torch

    from tracer.runs.ranks import Rank
    from tracer.runs.results import RunResults
    from tracer.runs.session import Schedule
    from tracer.workloads.workload import Workload

DEFAULT_DEVICE = "cuda:0"
__tracebackhide__ = True  # a line of this file explains nothing about the model

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """The one place where a mistake of the user's, or an early end, becomes a line or two and exit status 1."""
    try:
        yield
    except TracerError as error:
        _say_all(error.lines)
    except Terminated:
        say("Error: Ended by SIGTERM.")
    except KeyboardInterrupt as error:
        say(f"Error: {str(error) or 'Interrupted.'}")
    else:
        return
    raise typer.Exit(1)


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


@app.callback(invoke_without_command=True)
def profile(
    context: typer.Context,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.")] = 8,
    in_channels: Annotated[int, typer.Option(help="Channels of the model's input.")] = 3,
    out_channels: Annotated[int, typer.Option(help="Channels of the model's output.")] = 1,
    hidden_channels: Annotated[int, typer.Option(help="Width of the model.")] = 64,
    data_size: Annotated[str, typer.Option(help="Grid points: 64 is 64 x 64; 128x96 or 32x32x32 also work.")] = "64",
    n_modes: Annotated[str, typer.Option(help="Fourier modes kept: 32 for every axis, or 32x16.")] = "32",
    n_layers: Annotated[int, typer.Option(help="Fourier layers.")] = 4,
    data: Annotated[Literal["random", "darcy"], typer.Option(help="Noise, or solved Darcy flow problems.")] = "random",
    spectrum: Annotated[
        Literal["new_zeros", "torch_zeros"],
        typer.Option(help="How the padded spectrum is allocated; after torch_zeros torch's categories stop."),
    ] = "new_zeros",
    device: Annotated[
        str, typer.Option(help="Where to train. Without a GPU the default becomes cpu.")
    ] = DEFAULT_DEVICE,
    save_dir: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("profiler_outputs"),
    project_root: Annotated[
        Path | None, typer.Option(help="Folder of your project, for the reports. By default that of the model's code.")
    ] = None,
    n_wait_steps: Annotated[int, typer.Option(help="Steps of a cycle that are not looked at.")] = 1,
    n_warmup_steps: Annotated[int, typer.Option(help="Steps of a cycle in which the profiler warms up.")] = 1,
    n_active_steps: Annotated[int, typer.Option(help="Steps of a cycle that are recorded.")] = 3,
    n_repeats: Annotated[int, typer.Option(help="Cycles.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    model: Annotated[
        str, typer.Option(help="Your own model: package.module:factory, or path/to/file.py:factory.")
    ] = "",
    model_arg: Annotated[list[str], typer.Option(help="Argument of the factory: width=256.")] = [],  # noqa: B006
    model_input: Annotated[
        list[str], typer.Option("--input", help="Input of a module: 3x224x224, or ids=128:int64:0-50257.")
    ] = [],  # noqa: B006
    optimizer: Annotated[str, typer.Option(help="Of torch.optim: adamw, sgd:lr=0.1,momentum=0.9, none.")] = "adamw",
    loss: Annotated[
        Literal["auto", "mean-square", "cross-entropy"], typer.Option(help="auto: the model's own, or mean-square.")
    ] = "auto",
    amp: Annotated[Literal["off", "bfloat16", "float16"], typer.Option(help="Mixed precision.")] = "off",
    accumulate: Annotated[int, typer.Option(help="Micro-batches of --batch-size in a step.")] = 1,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Recompute repeated blocks in backward.")] = False,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only, without gradients.")] = False,
    max_mem: Annotated[bool, typer.Option(help="Write max_mem.txt, the breakdown at the peak.")] = True,
    memory_timeline: Annotated[bool, typer.Option(help="Write memory_timeline.html, the page.")] = True,
    peak_json: Annotated[bool, typer.Option(help="Write peak.json, every row of the peak.")] = True,
    memory_report: Annotated[bool, typer.Option(help="Write memory_report.sqlite.")] = True,
    run_time_report: Annotated[bool, typer.Option(help="Write run_time_report.sqlite.")] = True,
    memory_snapshot: Annotated[bool, typer.Option(help="Write memory_snapshot.pkl.")] = True,
    cuda_timing: Annotated[bool, typer.Option(help="Time the phases, and write cuda_timing.txt.")] = True,
    trace: Annotated[
        bool, typer.Option(help="Write trace.json.gz, the profiler's trace with memory above the operators.")
    ] = False,
    keep_recording: Annotated[
        bool, typer.Option(help="Write recording.npz, from which `report` writes every file again.")
    ] = False,
) -> None:
    """Explain every byte of a training run's memory peak.

    Without a command, trains a Fourier Neural Operator for a few steps under torch's profiler, says what filled the
    device at its worst moment, and writes the results to --save-dir.

        python main.py --batch-size 16 --device cuda:0
    """
    if context.invoked_subcommand is not None:
        return
    leave_out = [
        name
        for name, wanted in {
            "max-mem": max_mem,
            "memory-timeline": memory_timeline,
            "peak-json": peak_json,
            "memory-report": memory_report,
            "run-time-report": run_time_report,
            "memory-snapshot": memory_snapshot,
            "cuda-timing": cuda_timing,
            "trace": trace,
        }.items()
        if not wanted
    ]
    with _errors_for_people():
        import torch

        from tracer.capture.parameter_origins import ParameterOrigins
        from tracer.exporters.files import check_folder
        from tracer.runs.ranks import this_rank
        from tracer.runs.session import Schedule

        rank = this_rank()
        sizes, modes = _numbers("data-size", data_size), _numbers("n-modes", n_modes)
        settings: dict[str, object] = {
            "batch_size": batch_size,
            "in_channels": in_channels,
            "out_channels": out_channels,
            "hidden_channels": hidden_channels,
            "data_size": sizes,
            "n_modes": modes,
            "n_layers": n_layers,
            "data": data,
            "spectrum": spectrum,
            "seed": seed,
        }
        schedule = Schedule(n_wait_steps, n_warmup_steps, n_active_steps, n_repeats)
        options: dict[str, object] = {
            "inputs": tuple(model_input),
            "batch_size": batch_size,
            "optimizer": optimizer,
            "loss": loss,
            "amp": amp,
            "accumulate": accumulate,
            "checkpoint": checkpoint,
            "inference": inference,
            "seed": seed,
        }
        named = _was_given(context, "device")
        if model:
            _refuse(context, _FNO_ONLY, "without --model")
            settings = {"model": model, **options}
        else:
            _refuse(context, _MODEL_ONLY, "with --model")
            _check_fno(settings)
        if rank is not None and not named:
            device = f"cuda:{rank.local_index}"
        place = _device(device, named=named)
        check_folder(save_dir)
        torch.manual_seed(seed)
        with ParameterOrigins() as origins:
            workload = (
                _users_workload(model, model_arg, options, place, named=named)
                if model
                else _fno_workload(settings, place)
            )
        lines = origins.take(workload.model)
        succeeded = _run_and_report(
            workload,
            schedule,
            save_dir=save_dir,
            leave_out=leave_out,
            timing=cuda_timing,
            trace=trace,
            keep_recording=keep_recording,
            settings=settings,
            parameter_lines=lines,
            root=project_root,
        )
    if not succeeded:
        raise typer.Exit(1)


def _was_given(context: typer.Context, parameter: str) -> bool:
    """Whether the user wrote the option, rather than leaving it at its default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


_FNO_ONLY = ("in_channels", "out_channels", "hidden_channels", "data_size", "n_modes", "n_layers", "data", "spectrum")
_MODEL_ONLY = ("model_arg", "model_input", "optimizer", "loss", "amp", "accumulate", "checkpoint", "inference")


def _refuse(context: typer.Context, parameters: tuple[str, ...], where: str) -> None:
    """An option that would have no effect is a mistake."""
    for parameter in parameters:
        if _was_given(context, parameter):
            name = parameter.removeprefix("model_") if parameter == "model_input" else parameter.replace("_", "-")
            raise TracerError(f"--{name} has a meaning only {where}.", hint="Leave it out.")


def _check_fno(settings: Mapping[str, object]) -> None:
    from models.fno_workload import check_fno_settings

    try:
        check_fno_settings(**settings)  # type: ignore[arg-type]
    except ValueError as error:
        raise TracerError(str(error), hint="python main.py --help lists the options.") from error


def _fno_workload(settings: Mapping[str, object], device: torch.device) -> Workload:
    from models.fno_workload import build_fno_workload

    return build_fno_workload(device=device, **settings)  # type: ignore[arg-type]


def _users_workload(
    model: str, model_args: list[str], options: Mapping[str, object], device: torch.device, *, named: bool
) -> Workload:
    from tracer.capture.error_place import error_place
    from tracer.runs.failure_words import behind
    from tracer.workloads.user_errors import UserModelError
    from tracer.workloads.user_model import StepOptions, build_user_workload

    try:
        step = StepOptions(**options)  # type: ignore[arg-type]
        workload: Workload = build_user_workload(
            model, device=device, model_args=model_args, options=step, device_named=named
        )
        return workload
    except UserModelError as error:
        at = error_place(error.__cause__) if error.__cause__ is not None else None
        raise WorkloadError(f"{error}{behind(at)}", hint=error.hint) from error


def _numbers(option: str, text: str) -> int | tuple[int, ...]:
    """`64` is a number, `64x32` one per axis."""
    try:
        numbers = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise TracerError(
            f"--{option} {text} is not a size.", hint="Write one number, or one per axis such as 64x32."
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _device(text: str, *, named: bool) -> torch.device:
    """The device asked for; the default one falls back to the CPU, visibly."""
    import torch

    try:
        device = torch.device(text)
    except RuntimeError:
        raise TracerError(f"{text} is not the name of a device.", hint="Use cpu, cuda:0, cuda:1, ...") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise TracerError(f"Devices of type {device.type} are not supported.", hint="Use cpu, cuda:0, cuda:1, ...")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index < num_devices:
        return torch.device("cuda", index)
    if named or num_devices:
        there = f"cuda:0 to cuda:{num_devices - 1}" if num_devices else "only the CPU"
        raise TracerError(f"There is no device {text}; torch sees {there}.", hint="Name one of those with --device.")
    say("No CUDA device here: running on the CPU. Name a device with --device to insist on it.")
    return torch.device("cpu")


def _run_and_report(
    workload: Workload, schedule: Schedule, *, save_dir: Path, leave_out: list[str], **options: Any
) -> bool:
    """Run, write, then answer, for this process or for its rank; False if the run or a file failed."""
    from tracer.runs.ranks import begin, this_rank
    from tracer.runs.screen import print_results

    rank = this_rank()
    if rank is not None:
        begin(rank, save_dir)
    termination = Termination()
    termination.watch()
    try:
        results = _run(workload, schedule, termination=termination, **options)
        folder = rank.folder(save_dir) if rank is not None else save_dir
        succeeded = _write(results, folder, leave_out)
        if rank is not None:
            succeeded &= _summarize(rank, results, save_dir)
    finally:
        termination.close()
    if rank is None or rank.index == 0:
        with screen() as console:
            print_results(results, console)
    return succeeded and results.failure is None


def _run(workload: Workload, schedule: Schedule, **options: Any) -> RunResults:
    """The profiled run behind a bar on stderr, which a terminal shows and a log does not."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tracer.runs.workload_run import run_profile

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    # torch says at the end of each cycle that it forgets the events, which are kept here.
    warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Training steps", total=None)
        return run_profile(
            workload,
            schedule=schedule,
            **options,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _write(results: RunResults, save_dir: Path, leave_out: list[str]) -> bool:
    """Say what failed and what is noteworthy, and write the files; False if one could not be written."""
    from tracer.runs.failure_words import failure_lines
    from tracer.runs.outputs import left_from_earlier, left_sentence, write_outputs, written_lines

    _say_all(failure_lines(results))
    _say_all(f"Note: {note}" for note in results.notes)
    written = write_outputs(results, save_dir, leave_out=leave_out, tell=lambda one: _say_all(written_lines(one)))
    if left := left_from_earlier(save_dir, written):
        say(f"Note: {left_sentence(left)}")
    return all(one.error is None or isinstance(one.error, MissingPackageError) for one in written)


def _summarize(rank: Rank, results: RunResults, save_dir: Path) -> bool:
    """Add this rank to the summary of all; False if it could not be written, which costs the answer nothing."""
    from tracer.runs.ranks import finish

    try:
        finish(rank, results, save_dir)
    except OutputError as error:
        _say_all(error.lines)
        return False
    return True


@app.command()
def snapshot(
    file: Annotated[Path, typer.Argument(help="A pickle or JSON of torch.cuda.memory._snapshot(), or a --save-dir.")],
    device: Annotated[int | None, typer.Option(min=0, help="Index of the only device to look at.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of each table.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the page, of --device or of the worst one.")] = None,
    sqlite: Annotated[Path | None, typer.Option(help="Also write the memory report of that device.")] = None,
) -> None:
    """Say what filled each device at its peak, from an allocator snapshot made anywhere, and why it ran out."""
    from tracer.commands.snapshots import show_snapshot

    with _errors_for_people(), screen() as console:
        written = show_snapshot(file, console, device=device, top=top, as_json=as_json, html=html, sqlite=sqlite)
        for path in written:
            say(f"Wrote {path}  (open with {'a browser' if path == html else 'sqlite3, or a reader of Skyline'})")


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A snapshot, or a --save-dir.")],
    after: Annotated[Path, typer.Argument(help="The one to compare with it.")],
    top: Annotated[int, typer.Option(min=0, help="Rows of each table but the first.")] = 10,
    fail_above: Annotated[
        str | None, typer.Option(help="Exit with 3 if a peak grew by more than this: 5%, 100MiB.")
    ] = None,
) -> None:
    """Say what changed between two peaks, to the byte: by kind and stack, of two --save-dirs by module and line."""
    from tracer.commands.snapshots import show_diff

    with _errors_for_people(), screen() as console:
        grown = show_diff(before, after, console, top=top, fail_above=fail_above)
    if grown:
        raise typer.Exit(3)


@app.command()
def report(
    recording: Annotated[Path, typer.Argument(help="A --save-dir with a recording.npz, or that file.")],
    save_dir: Annotated[Path | None, typer.Option(help="Folder for the files; by default the recording's.")] = None,
    only: Annotated[list[str], typer.Option(help="Write only this one: peak-json, memory-report, ...")] = [],  # noqa: B006
) -> None:
    """Write any output of a run again from its kept recording, also elsewhere and with a later version."""
    from tracer.commands.report import show_report

    with _errors_for_people(), screen() as console:
        succeeded = show_report(recording, console, save_dir=save_dir, only=only, say=say)
    if not succeeded:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
