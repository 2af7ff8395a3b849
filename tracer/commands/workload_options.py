"""The options that say what is trained, the same for every command that has them, and the workload they describe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracer.commands.common import refuse
from tracer.commands.options import number, option
from tracer.commands.usage import FNO, MODEL, STEP
from tracer.errors import TracerError, UsageError, UserModelError, WorkloadError, WrongValueError
from tracer.exporters.screen.terminal import say
from tracer.units import parse_count, shortened

if TYPE_CHECKING:
    import torch

    from tracer.workloads.workload import Workload

_MAX_SEED = (1 << 63) - 1
_DEVICES_HINT = "Use cpu, cuda:0, xpu:0, ..., or import what registers the backend with --import MODULE."


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The model, its inputs and its optimizer, as every command takes them; nothing is built yet."""

    batch_size: Annotated[int, number("Samples in a batch.", MODEL)] = 8
    in_channels: Annotated[int, number("Channels of the model's input.", FNO)] = 3
    out_channels: Annotated[int, number("Channels of the model's output.", FNO)] = 1
    hidden_channels: Annotated[int, number("Width of the model.", FNO)] = 64
    data_size: Annotated[
        str, option("Grid points: 64 is 64 x 64; 128x96 or 32x32x32 also work.", FNO, metavar="<text>")
    ] = "64"
    n_modes: Annotated[str, option("Fourier modes kept: 32 for every axis, or 32x16.", FNO, metavar="<text>")] = "32"
    n_layers: Annotated[int, number("Fourier layers.", FNO)] = 4
    data: Annotated[Literal["random", "darcy"], option("Noise, or solved Darcy flow problems.", FNO)] = "random"
    spectrum: Annotated[
        Literal["new_zeros", "torch_zeros"],
        option("How the padded spectrum is allocated; after torch_zeros torch's categories stop.", FNO),
    ] = "new_zeros"
    seed: Annotated[int, number("Seed of weights and data.", MODEL, most=_MAX_SEED)] = 0
    model: Annotated[
        str,
        option(
            "What to train: package.module:factory, or path/to/file.py:factory; a class or a function.",
            MODEL,
            metavar="<where:what>",
        ),
    ] = ""
    model_arg: Annotated[
        list[str],
        option("Argument of the factory: width=256. Repeatable.", MODEL, metavar="<name=value>"),
    ] = field(default_factory=list)
    model_input: Annotated[
        list[str],
        option(
            "Input of the model, one sample: 3x224x224, or by name ids=128:int64:0-50257. Repeatable.",
            MODEL,
            "--input",
            metavar="<size>",
        ),
    ] = field(default_factory=list)
    optimizer: Annotated[
        str, option("Optimizer of torch.optim: adamw, sgd:lr=0.1,momentum=0.9, none.", STEP, metavar="<text>")
    ] = "adamw"
    loss: Annotated[
        Literal["auto", "mean-square", "cross-entropy"],
        option("auto: the model's own, or mean-square.", STEP),
    ] = "auto"
    amp: Annotated[Literal["off", "bfloat16", "float16"], option("Mixed precision.", STEP)] = "off"
    accumulate: Annotated[int, number("Micro-batches of --batch-size in a step.", STEP)] = 1
    checkpoint: Annotated[bool, option("Recompute repeated blocks in backward.", STEP, "--checkpoint")] = False
    inference: Annotated[bool, option("Forward only, without gradients.", STEP, "--inference")] = False

    @property
    def is_users(self) -> bool:
        """Whether the model is the user's, rather than the FNO."""
        return bool(self.model)

    def check(self, context: typer.Context) -> None:
        """Make sure that the options make sense, alone and together; `context` knows which of them the user wrote."""
        options = self._fno_settings()
        if self.is_users:
            refuse(context, FNO_ONLY, "without --model")
            return
        refuse(context, _MODEL_ONLY, "with --model")
        try:
            _fno().FnoSettings(**options)
        except ValueError as error:
            raise UsageError(str(error), hint="--help lists the options.") from error

    @property
    def settings(self) -> dict[str, object]:
        """Options to store with the results."""
        return {"model": self.model, **self._step_settings()} if self.is_users else self._fno_settings()

    def build(self, device: torch.device, *, device_named: bool, without_memory: bool = False) -> Workload:
        """The workload on a device."""
        with _model_errors():
            if self.is_users:
                return self._build_users(device, device_named=device_named, without_memory=without_memory)
            fno = _fno()
            workload: Workload = fno.build_fno_workload(fno.FnoSettings(**self._fno_settings()), device=device)
            return workload

    def _build_users(self, device: torch.device, *, device_named: bool, without_memory: bool) -> Workload:
        from tracer.workloads.user_model import StepOptions, build_user_workload

        workload: Workload = build_user_workload(
            self.model,
            device=device,
            model_args=tuple(self.model_arg),
            options=StepOptions(**self._step_settings()),
            device_named=device_named,
            without_memory=without_memory,
        )
        return workload

    def _fno_settings(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ("batch_size", *FNO_ONLY, "seed")}
        return settings | {name: _numbers(name, settings[name]) for name in ("data_size", "n_modes")}

    def _step_settings(self) -> dict[str, Any]:
        names = ("batch_size", *_STEP_ONLY, "seed")
        return {"inputs": tuple(self.model_input), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True)
class ProfiledWorkload(WorkloadOptions):
    """A workload that is trained."""

    compile: Annotated[bool, option("Call the model through torch.compile.", MODEL, "--compile")] = False
    compile_arg: Annotated[
        list[str],
        option(
            "Argument of torch.compile: mode=reduce-overhead. Means --compile. Repeatable.",
            MODEL,
            metavar="<name=value>",
        ),
    ] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, object]:
        """Options to store with the results."""
        return super().settings | ({"compile": ", ".join(self.compile_arg) or True} if self._is_compiled else {})

    @property
    def _is_compiled(self) -> bool:
        return self.compile or bool(self.compile_arg)

    def build(self, device: torch.device, *, device_named: bool, without_memory: bool = False) -> Workload:
        """The same through torch.compile, if that is wanted."""
        workload = super().build(device, device_named=device_named, without_memory=without_memory)
        if not self._is_compiled:
            return workload
        from tracer.workloads.module_steps import compiled

        with _model_errors():
            return compiled(workload, tuple(self.compile_arg))


@dataclass(frozen=True, kw_only=True)
class PredictedWorkload(WorkloadOptions):
    """A workload that runs on the null GPU."""

    hf_config: Annotated[
        Path | None,
        option(
            "config.json of a transformers model, built without memory; --model-arg changes single values.",
            MODEL,
            metavar="<path>",
        ),
    ] = None
    tokens: Annotated[
        int | None,
        number("Tokens in a sample of --hf-config; with --inference, text of that length is generated.", MODEL),
    ] = None

    @property
    def is_users(self) -> bool:
        """Whether the model is the user's, rather than the FNO."""
        return bool(self.model) or self.hf_config is not None

    def check(self, context: typer.Context) -> None:
        """Make sure that they make sense, those about a transformers model first."""
        self._fno_settings()
        if self.hf_config is not None:
            refuse(context, ("model",), "without --hf-config")
        else:
            refuse(context, ("tokens",), "with --hf-config")
        super().check(context)

    @property
    def settings(self) -> dict[str, object]:
        """Options to store with the results."""
        settings = super().settings | ({} if self.hf_config is None else {"model": str(self.hf_config)})
        return settings | ({} if self.tokens is None else {"tokens": self.tokens})

    def _build_users(self, device: torch.device, *, device_named: bool, without_memory: bool) -> Workload:
        if self.hf_config is None:
            return super()._build_users(device, device_named=device_named, without_memory=without_memory)
        from tracer.workloads.hf_config import build_hf_workload
        from tracer.workloads.user_model import StepOptions

        built: Workload = build_hf_workload(
            self.hf_config,
            device=device,
            model_args=tuple(self.model_arg),
            options=StepOptions(**self._step_settings()),
            tokens=self.tokens,
        )
        return built


FNO_ONLY = ("in_channels", "out_channels", "hidden_channels", "data_size", "n_modes", "n_layers", "data", "spectrum")
_STEP_ONLY = ("optimizer", "loss", "amp", "accumulate", "checkpoint", "inference")
_MODEL_ONLY = ("model_arg", "model_input", *_STEP_ONLY)


def _numbers(option: str, text: str) -> int | tuple[int, ...]:
    """`64` is a number, `64x32` one per axis."""
    try:
        numbers = tuple(parse_count(part) for part in text.lower().split("x"))
    except ValueError:
        raise UsageError(
            f"--{option.replace('_', '-')} {shortened(text)} is not a size.",
            hint="Write one number, or one per axis such as 64x32.",
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _fno() -> Any:
    from tracer.workloads.factory import shipped_model

    return shipped_model("fno_workload")


@contextmanager
def _model_errors() -> Iterator[None]:
    from tracer.capture.sources.source_files import error_line
    from tracer.exporters.screen.paths import behind

    try:
        yield
    except UserModelError as error:
        if isinstance(error, WrongValueError) or error.__cause__ is None:
            raise
        raise WorkloadError(f"{error}{behind(error_line(error.__cause__))}", hint=error.hint) from error


def chosen_device(text: str, *, named: bool, say: Callable[[str], None] = say) -> torch.device:
    """The device asked for; the default one falls back to the CPU, visibly."""
    import torch

    from tracer.capture.device.devices import is_accelerator, num_devices, with_index

    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"{text} is not the name of a device.", hint=_DEVICES_HINT) from None
    if device.type == "cpu":
        return torch.device("cpu")
    if not is_accelerator(device):
        raise UsageError(f"Devices of type {device.type} are not supported.", hint=_DEVICES_HINT)
    num_there = num_devices(device)
    if num_there and with_index(device).index < num_there:
        return with_index(device)
    if named or num_there:
        available = (
            f"{device.type}:0 to {device.type}:{num_there - 1}" if num_there else f"no device of type {device.type}"
        )
        hint = "Name one that is there with --device."
        if device.type == "cuda" and not num_there:
            hint = "Without a GPU, --on h100 in place of --device runs as on one."
        raise TracerError(f"There is no device {text}; torch sees {available}.", hint=hint)
    say(f"No {device.type.upper()} device here: running on the CPU. Name a device with --device to insist on it.")
    return torch.device("cpu")


def check_device(text: str) -> None:
    """Check that the device that is asked of a script's run is there, unless the script may still register its kind."""
    import torch

    from tracer.capture.device.devices import module_of

    try:
        is_registered = module_of(torch.device(text)) is not None
    except RuntimeError:
        raise UsageError(
            f"{text} is not the name of a device.", hint="Leave out --device: by default it is the model's."
        ) from None
    if is_registered:
        chosen_device(text, named=True)


def device_of_rank(text: str, rank: int) -> str:
    """The device of one of several processes on a machine: each its own, unless each sees one only."""
    import torch

    from tracer.capture.device.devices import num_devices

    try:
        device = torch.device(text)
    except RuntimeError:
        return text  # `chosen_device` says what is wrong with it
    return f"{device.type}:{0 if num_devices(device) == 1 else rank}"


def import_backends(modules: Sequence[str]) -> None:
    """Import what registers a backend with torch; one that a package offers by an entry point comes by itself."""
    if modules and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise TracerError(f"--import {module}: {error}.", hint="Is its package installed here?") from error
