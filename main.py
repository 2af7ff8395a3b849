"""The command line: parse, call the library, print. No logic of its own."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

# Kineto, the library below torch's profiler, logs every start and stop of a recording to stderr; 99 is silence.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import typer
from rich.console import Console

from tracer.errors import TracerError

if TYPE_CHECKING:
    import torch

    from tracer.session import Failure, RunResults

DEFAULT_DEVICE = "cuda:0"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _stdout() -> Console:
    return Console(highlight=False, soft_wrap=False)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False)


def _say(message: str) -> None:
    """One line on stderr, never wrapped: a path that is broken in two cannot be copied."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """The one place where a mistake of the user's becomes two lines and exit status 1."""
    try:
        yield
    except TracerError as error:
        _say(f"Error: {error}")
        if error.hint:
            _say(f"Hint: {error.hint}")
        raise typer.Exit(1) from None


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
    n_wait_steps: Annotated[int, typer.Option(help="Steps of a cycle that are not looked at.")] = 1,
    n_warmup_steps: Annotated[int, typer.Option(help="Steps of a cycle in which the profiler warms up.")] = 1,
    n_active_steps: Annotated[int, typer.Option(help="Steps of a cycle that are recorded.")] = 3,
    n_repeats: Annotated[int, typer.Option(help="Cycles.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    max_mem: Annotated[bool, typer.Option(help="Write max_mem.txt, the breakdown at the peak.")] = True,
    peak_json: Annotated[bool, typer.Option(help="Write peak.json, every row of the peak.")] = True,
    memory_snapshot: Annotated[bool, typer.Option(help="Write memory_snapshot.pkl.")] = True,
    cuda_timing: Annotated[bool, typer.Option(help="Time the phases, and write cuda_timing.txt.")] = True,
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
            "peak-json": peak_json,
            "memory-snapshot": memory_snapshot,
            "cuda-timing": cuda_timing,
        }.items()
        if not wanted
    ]
    with _errors_for_people():
        import torch

        from models.workload import build_fno_workload, check_fno_settings
        from tracer.exporters.files import check_folder
        from tracer.session import Schedule

        sizes, modes = _numbers("data-size", data_size), _numbers("n-modes", n_modes)
        settings = {
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
        try:
            check_fno_settings(**settings)  # type: ignore[arg-type]
        except ValueError as error:
            raise TracerError(str(error), hint="python main.py --help lists the options.") from error
        place = _device(device, named=_was_given(context, "device"))
        check_folder(save_dir)
        torch.manual_seed(seed)
        workload = build_fno_workload(device=place, **settings)  # type: ignore[arg-type]
        results = _run(workload, schedule, timing=cuda_timing, settings=settings)
        failed = _report(results, save_dir, leave_out)
    if failed or results.failure is not None:
        raise typer.Exit(1)


def _was_given(context: typer.Context, parameter: str) -> bool:
    """Whether the user wrote the option, rather than leaving it at its default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


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
    _say("No CUDA device here: running on the CPU. Name a device with --device to insist on it.")
    return torch.device("cpu")


def _run(workload: object, schedule: object, *, timing: bool, settings: Mapping[str, object]) -> RunResults:
    """The profiled run behind a bar on stderr, which a terminal shows and a log does not."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tracer.session import run_profile

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = _stderr()
    # torch says at the end of each cycle that it forgets the events, which are kept here.
    warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Training steps", total=None)
        return run_profile(
            workload,  # type: ignore[arg-type]
            schedule=schedule,  # type: ignore[arg-type]
            timing=timing,
            settings=settings,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _report(results: RunResults, save_dir: Path, leave_out: list[str]) -> bool:
    """Print the answer and write the files; True if one could not be written."""
    from tracer.exporters.screen import parameters_sentence, peak_screen, timing_screen
    from tracer.outputs import write_outputs

    out = _stdout()
    if results.failure is not None:
        _tell_failure(results.failure)
    if results.findings is not None:
        out.print(peak_screen(results.findings))
    if results.timings is not None:
        out.print(timing_screen(results.timings))
    out.print()
    if results.unused_parameters is not None:
        out.print(parameters_sentence(results.unused_parameters))
    if len(results.losses) > 1:
        out.print(f"Loss: {results.losses[0]:.5g} in the first step, {results.losses[-1]:.5g} in the last.")
    failed = False
    for note in results.notes:
        _say(f"Note: {note}")
    for written in write_outputs(results, save_dir, leave_out=leave_out):
        if written.error is None:
            _say(f"Wrote {written.path}  (open with {written.output.read_with})")
        else:
            failed = True
            _say(f"Error: {written.error}")
            _say(f"Hint: {written.error.hint}")
    return failed


def _tell_failure(failure: Failure) -> None:
    from tracer.units import format_bytes

    name = type(failure.error).__name__
    if isinstance(failure.error, KeyboardInterrupt):
        _say(f"Error: Interrupted in step {failure.step}.")
    else:
        what = "ran out of memory" if failure.out_of_memory else f"raised {name}"
        _say(f"Error: Step {failure.step} {what}: {str(failure.error).splitlines()[0] if str(failure.error) else name}")
    if failure.allocator:
        state = ", ".join(f"{key} {format_bytes(value)}" for key, value in failure.allocator.items())
        _say(f"Allocator: {state}.")
    _say("Hint: What was recorded until then is explained and written below.")


if __name__ == "__main__":
    app()
