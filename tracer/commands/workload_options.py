"""The options of a workload, and how it is built from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracer.errors import TracerError, UsageError, UserModelError, WorkloadError, WrongValueError
from tracer.exporters.screen.console import SHORT, Console
from tracer.units import parse_count, shortened
from tracer.workloads.step_options import StepOptions

if TYPE_CHECKING:
    import torch

    from tracer.workloads.workload import Workload

MAX_SEED: Final = (1 << 63) - 1
OF_STEP: Final = ("optimizer", "loss", "amp", "checkpoint", "inference")
OF_FNO: Final = ("in_channels", "out_channels", "hidden_channels", "data_size", "n_modes", "n_layers")
_DEVICES_HINT: Final = "Use cpu, cuda:0, xpu:0, ..., or the name of a backend that an installed package registers."


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(StepOptions):
    """The model and how it is trained; nothing is built yet."""

    model: str = ""  # `package.module:factory` or `path/to/file.py:factory`; empty for a configuration or the FNO
    hf_config: Path | None = None  # config.json of a transformers model
    tokens: int | None = None  # Tokens in a sample of it
    model_arg: Sequence[str] = ()
    fno: Mapping[str, Any] = field(default_factory=dict)  # The built-in model's own settings

    @property
    def settings(self) -> dict[str, object]:
        """Options to store with the results."""
        own = self.fno_settings()
        if self.model or self.hf_config is not None:
            model = self.model if self.hf_config is None else str(self.hf_config)
            options = {name: getattr(self, name) for name in ("batch_size", *OF_STEP, "seed")}
            own = {"model": model, "inputs": tuple(self.inputs), **options}
        more: dict[str, object] = {} if self.tokens is None else {"tokens": self.tokens}
        return own | more

    def fno_settings(self) -> dict[str, Any]:
        """Settings of the built-in model, as `FnoSettings` has them."""
        return {"batch_size": self.batch_size, **self.fno, "seed": self.seed}

    def build(self, device: torch.device, *, device_named: bool, without_memory: bool = False) -> Workload:
        """Return the workload on a device."""
        built: Workload
        with _model_errors():
            if self.hf_config is not None:
                from tracer.workloads.hf_config import build_hf_workload

                built = build_hf_workload(
                    self.hf_config, device=device, model_args=tuple(self.model_arg), options=self, tokens=self.tokens
                )
            elif not self.model:
                built = fno_module().build_fno_workload(fno_module().FnoSettings(**self.fno_settings()), device=device)
            else:
                from tracer.workloads.user_model import build_user_workload

                built = build_user_workload(
                    self.model,
                    device=device,
                    model_args=tuple(self.model_arg),
                    options=self,
                    device_named=device_named,
                    without_memory=without_memory,
                )
        return built


def axis_sizes(option: str, text: str) -> int | tuple[int, ...]:
    """Read sizes of an option: `64` is a number, `64x32` one per axis."""
    try:
        numbers = tuple(parse_count(part) for part in text.lower().split("x"))
    except ValueError:
        raise UsageError(
            f"{option} {shortened(text)} is not a size.", hint="Write one number, or one per axis such as 64x32."
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def fno_module() -> Any:
    """Return the module of the built-in model."""
    from tracer.workloads.factory import shipped_model

    return shipped_model("fno_workload")


@contextmanager
def _model_errors() -> Iterator[None]:
    from tracer.answers.paths import behind
    from tracer.capture.sources.source_files import error_line

    try:
        yield
    except UserModelError as error:
        if isinstance(error, WrongValueError) or error.__cause__ is None:
            raise
        raise WorkloadError(f"{error}{behind(error_line(error.__cause__))}", hint=error.hint) from error


def chosen_device(text: str, *, named: bool, console: Console = SHORT) -> torch.device:
    """Return the device asked for; the default one falls back to the CPU, with a message."""
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
    console.say(
        f"No {device.type.upper()} device here: running on the CPU. Name a device with --device to insist on it."
    )
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
    """Return the device of one of several processes on a machine; a process that sees one device has that."""
    import torch

    from tracer.capture.device.devices import num_devices

    try:
        device = torch.device(text)
    except RuntimeError:
        return text  # `chosen_device` says what is wrong with it
    return f"{device.type}:{0 if num_devices(device) == 1 else rank}"
