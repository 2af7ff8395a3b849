"""The options that say what is trained, the same for every command that has them, and the workload they describe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracer.commands.common import refuse
from tracer.commands.usage import FNO, MODEL, STEP
from tracer.errors import TracerError, WorkloadError
from tracer.exporters.screen.terminal import say

if TYPE_CHECKING:
    import torch

    from tracer.workloads.workload import Workload

_DEVICES_HINT = "Use cpu, cuda:0, xpu:0, ..., or import what registers the backend with --import MODULE."

BatchSize = Annotated[int, typer.Option(help="Samples in a batch.", rich_help_panel=MODEL)]
Seed = Annotated[int, typer.Option(help="Seed of weights and data.", rich_help_panel=MODEL)]

InChannels = Annotated[int, typer.Option(help="Channels of the model's input.", rich_help_panel=FNO)]
OutChannels = Annotated[int, typer.Option(help="Channels of the model's output.", rich_help_panel=FNO)]
HiddenChannels = Annotated[int, typer.Option(help="Width of the model.", rich_help_panel=FNO)]
DataSize = Annotated[
    str, typer.Option(help="Grid points: 64 is 64 x 64; 128x96 or 32x32x32 also work.", rich_help_panel=FNO)
]
NumModes = Annotated[str, typer.Option(help="Fourier modes kept: 32 for every axis, or 32x16.", rich_help_panel=FNO)]
NumLayers = Annotated[int, typer.Option(help="Fourier layers.", rich_help_panel=FNO)]
Data = Annotated[
    Literal["random", "darcy"], typer.Option(help="Noise, or solved Darcy flow problems.", rich_help_panel=FNO)
]
Spectrum = Annotated[
    Literal["new_zeros", "torch_zeros"],
    typer.Option(
        help="How the padded spectrum is allocated; after torch_zeros torch's categories stop.", rich_help_panel=FNO
    ),
]

Model = Annotated[
    str,
    typer.Option(
        metavar="<where:what>",
        help="What to train: package.module:factory, or path/to/file.py:factory; a class or a function.",
        rich_help_panel=MODEL,
    ),
]
ModelArg = Annotated[
    list[str],
    typer.Option(metavar="<name=value>", help="Argument of the factory: width=256. Repeatable.", rich_help_panel=MODEL),
]
ModelInput = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="<size>",
        help="Input of the model, one sample: 3x224x224, or by name ids=128:int64:0-50257. Repeatable.",
        rich_help_panel=MODEL,
    ),
]
Optimizer = Annotated[
    str, typer.Option(help="Of torch.optim: adamw, sgd:lr=0.1,momentum=0.9, none.", rich_help_panel=STEP)
]
Loss = Annotated[
    Literal["auto", "mean-square", "cross-entropy"],
    typer.Option(help="auto: the model's own, or mean-square.", rich_help_panel=STEP),
]
Amp = Annotated[Literal["off", "bfloat16", "float16"], typer.Option(help="Mixed precision.", rich_help_panel=STEP)]
Accumulate = Annotated[int, typer.Option(help="Micro-batches of --batch-size in a step.", rich_help_panel=STEP)]
Checkpoint = Annotated[
    bool, typer.Option("--checkpoint", help="Recompute repeated blocks in backward.", rich_help_panel=STEP)
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Call the model through torch.compile.", rich_help_panel=MODEL)
]
CompileArg = Annotated[
    list[str],
    typer.Option(
        metavar="<name=value>",
        help="Argument of torch.compile: mode=reduce-overhead. Means --compile. Repeatable.",
        rich_help_panel=MODEL,
    ),
]
Inference = Annotated[bool, typer.Option("--inference", help="Forward only, without gradients.", rich_help_panel=STEP)]

_FNO_ONLY = ("in_channels", "out_channels", "hidden_channels", "data_size", "n_modes", "n_layers", "data", "spectrum")
_STEP_ONLY = ("optimizer", "loss", "amp", "accumulate", "checkpoint", "inference")
# Only a command that has no device to train on has these.
_STEP_ONLY_IN_REHEARSALS = ("lora",)
_MODEL_ONLY = ("model_arg", "model_input", *_STEP_ONLY, *_STEP_ONLY_IN_REHEARSALS)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What is to be trained; nothing is built yet.

    Attributes:
        model: The factory of a user's model, or empty for the FNO.
        model_args: Its arguments.
        options: Those of `build_fno_workload`, or of `StepOptions`.
        compile_args: Arguments of `torch.compile`; None where the model is not to be compiled.
        hf_config: The configuration of a transformers model, in the place of a factory.
        tokens: Of a sample of that model.
    """

    model: str
    model_args: tuple[str, ...]
    options: Mapping[str, Any]
    compile_args: tuple[str, ...] | None = None
    hf_config: Path | None = None
    tokens: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        """What is to be remembered of them."""
        model = self.model or (str(self.hf_config) if self.hf_config is not None else "")
        settings = {"model": model, **self.options} if model else dict(self.options)
        settings |= {} if self.tokens is None else {"tokens": self.tokens}
        return settings if self.compile_args is None else settings | {"compile": ", ".join(self.compile_args) or True}

    def build(self, device: torch.device, *, device_named: bool, without_memory: bool = False) -> Workload:
        """The workload on a device.

        Args:
            device: Where it is to be.
            device_named: Whether that was asked for.
            without_memory: Whether a model on the meta device may stay there, as for a rehearsal.

        Raises:
            WorkloadError: The user's model cannot be built as asked.
        """
        with _model_errors():
            if self.model or self.hf_config is not None:
                workload = _users_workload(self, device, device_named=device_named, without_memory=without_memory)
            else:
                workload = _fno().build_fno_workload(device=device, **self.options)
            return workload if self.compile_args is None else _compiled(workload, self.compile_args)


def workload_options(context: typer.Context, given: Mapping[str, Any]) -> WorkloadOptions:
    """Those of a command.

    Args:
        context: Knows which of them the user wrote.
        given: All by the names of the command's parameters.

    Raises:
        TracerError: They make no sense, alone or together.
    """
    # A command may have no option to compile.
    arguments = tuple(given.get("compile_arg", ()))
    compile_args = arguments if arguments or given.get("compile") else None
    sizes = {"data_size": _numbers("data-size", given["data_size"]), "n_modes": _numbers("n-modes", given["n_modes"])}
    hf_config = given.get("hf_config")
    if hf_config is not None:
        refuse(context, ("model",), "without --hf-config")
    else:
        refuse(context, ("tokens",), "with --hf-config")
    if not given["model"] and hf_config is None:
        refuse(context, _MODEL_ONLY, "with --model")
        options = {name: given[name] for name in ("batch_size", *_FNO_ONLY, "seed")} | sizes
        _check_fno(options)
        return WorkloadOptions("", (), options, compile_args)
    refuse(context, _FNO_ONLY, "without --model")
    inputs = {"inputs": tuple(given["model_input"])}
    names = (*_STEP_ONLY, *(name for name in _STEP_ONLY_IN_REHEARSALS if name in given))
    options = inputs | {name: given[name] for name in ("batch_size", *names, "seed")}
    return WorkloadOptions(
        given["model"], tuple(given["model_arg"]), options, compile_args, hf_config, given.get("tokens")
    )


def _numbers(option: str, text: str) -> int | tuple[int, ...]:
    """`64` is a number, `64x32` one per axis."""
    try:
        numbers = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise TracerError(
            f"--{option} {text} is not a size.", hint="Write one number, or one per axis such as 64x32."
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _fno() -> Any:
    from tracer.workloads.shipped_models import shipped_model

    return shipped_model("fno_workload")


def _check_fno(options: Mapping[str, Any]) -> None:
    try:
        _fno().check_fno_settings(**options)
    except ValueError as error:
        raise TracerError(str(error), hint="--help lists the options.") from error


def _users_workload(
    options: WorkloadOptions, device: torch.device, *, device_named: bool, without_memory: bool
) -> Workload:
    from tracer.workloads.user_model import StepOptions, build_user_workload

    step = StepOptions(**options.options)
    if options.hf_config is not None:
        from tracer.workloads.hf_config import build_hf_workload

        built: Workload = build_hf_workload(
            options.hf_config, device=device, model_args=options.model_args, options=step, tokens=options.tokens
        )
        return built
    workload: Workload = build_user_workload(
        options.model,
        device=device,
        model_args=options.model_args,
        options=step,
        device_named=device_named,
        without_memory=without_memory,
    )
    return workload


def _compiled(workload: Workload, arguments: Sequence[str]) -> Workload:
    from tracer.workloads.compiling import compiled

    return compiled(workload, arguments)


@contextmanager
def _model_errors() -> Iterator[None]:
    """What cannot be built is an error with the line of the user's where it went wrong.

    Raises:
        WorkloadError: It cannot be built.
    """
    from tracer.capture.sources.error_line import error_line
    from tracer.exporters.screen.failure import behind
    from tracer.workloads.user_errors import UserModelError

    try:
        yield
    except UserModelError as error:
        at = error_line(error.__cause__) if error.__cause__ is not None else None
        raise WorkloadError(f"{error}{behind(at)}", hint=error.hint) from error


def chosen_device(text: str, *, named: bool, say: Callable[[str], None] = say) -> torch.device:
    """The device asked for; the default one falls back to the CPU, visibly.

    Args:
        text: Its name.
        named: Whether the user wrote it.
        say: Takes the line that says so.

    Raises:
        TracerError: It is not there.
    """
    import torch

    from tracer.capture.device.devices import is_accelerator, num_devices, with_index

    try:
        device = torch.device(text)
    except RuntimeError:
        raise TracerError(f"{text} is not the name of a device.", hint=_DEVICES_HINT) from None
    if device.type == "cpu":
        return torch.device("cpu")
    if not is_accelerator(device):
        raise TracerError(f"Devices of type {device.type} are not supported.", hint=_DEVICES_HINT)
    there = num_devices(device)
    if there and with_index(device).index < there:
        return with_index(device)
    if named or there:
        seen = f"{device.type}:0 to {device.type}:{there - 1}" if there else f"no device of type {device.type}"
        raise TracerError(
            f"There is no device {text}; torch sees {seen}.", hint="Name one that is there with --device."
        )
    say(f"No {device.type.upper()} device here: running on the CPU. Name a device with --device to insist on it.")
    return torch.device("cpu")


def device_of_rank(text: str, rank: int) -> str:
    """The device of one of several processes on a machine: each its own, unless each sees one only.

    Args:
        text: A device's type, with or without an index.
        rank: The process's number on this machine.
    """
    import torch

    from tracer.capture.device.devices import num_devices

    try:
        device = torch.device(text)
    except RuntimeError:
        return text  # `chosen_device` says what is wrong with it
    return f"{device.type}:{0 if num_devices(device) == 1 else rank}"


def import_backends(modules: Sequence[str]) -> None:
    """Import what registers a backend with torch; one that a package offers by an entry point comes by itself.

    Raises:
        TracerError: One cannot be imported.
    """
    if modules and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise TracerError(f"--import {module}: {error}.", hint="Is its package installed here?") from error
