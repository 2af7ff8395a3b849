"""Random batches from specifications such as `3x224x224` or `input_ids=128:int64:0-50257`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tracer.errors import WrongValueError
from tracer.units import parse_count

HINT = (
    "Write --input 3x224x224, or --input ids=128:int64:0-50257: a name if the model takes it by keyword, "
    "the shape of one sample, the dtype, and the range of integers, whose end is left out."
)
_FORM = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>[^:=]*)(?::(?P<dtype>\w+))?(?::(?P<range>-?\d+--?\d+))?")
_RANGE = re.compile(r"(-?\d+)-(-?\d+)")
SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A specification of one model input."""

    name: str | None  # The keyword by which the model takes it; None for the next positional argument
    shape: tuple[int, ...]  # Shape of one sample, without the batch
    dtype: torch.dtype = torch.float32  # Floating: normal noise. Integer: uniform in `low <= n < high`. Boolean: either
    low: int = 0  # Smallest integer
    high: int = 0  # One more than the largest integer

    def sample(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Return a batch of it, on the host."""
        shape = (batch_size, *self.shape)
        if self.dtype == torch.bool:
            return torch.randint(2, shape, generator=generator).bool()
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wide = self.dtype if self.dtype.is_complex else torch.float32
            return torch.randn(shape, generator=generator, dtype=wide).to(self.dtype)
        return torch.randint(self.low, self.high, shape, generator=generator).to(self.dtype)


def parse_input(text: str) -> InputSpec:
    """Read `[name=]shape[:dtype[:low-high]]`; the shape `scalar` is one number per sample."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise WrongValueError(f"--input {text} is not a shape.", hint=HINT)
    shape = _shape(text, form["shape"])
    dtype = getattr(torch, name := form["dtype"] or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise WrongValueError(f"--input {text}: torch has no dtype {name}.", hint=HINT)
    if not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        if form["range"] is None:
            raise WrongValueError(f"--input {text} has integers and does not say which.", hint=HINT)
        low, high = (int(end) for end in _RANGE.fullmatch(form["range"]).groups())  # type: ignore[union-attr]
        if low >= high:
            raise WrongValueError(f"--input {text} leaves no integer: {low} is not below {high}.", hint=HINT)
        if low < torch.iinfo(dtype).min or high - 1 > torch.iinfo(dtype).max:
            raise WrongValueError(f"--input {text}: {form['dtype']} cannot hold that range.", hint=HINT)
        return InputSpec(form["name"], shape, dtype, low, high)
    if form["range"] is not None:
        raise WrongValueError(f"--input {text}: only integers have a range.", hint=HINT)
    return InputSpec(form["name"], shape, dtype)


def _shape(text: str, shape: str) -> tuple[int, ...]:
    if shape.lower() == SCALAR:
        return ()
    try:
        sizes = tuple(parse_count(part) for part in shape.lower().split("x"))
    except ValueError:
        raise WrongValueError(f"--input {text}: {shape or 'nothing'} is not a shape.", hint=HINT) from None
    if min(sizes) < 1:
        raise WrongValueError(f"--input {text}: every size must be at least 1.", hint=HINT)
    return sizes


Batch = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""Positional and keyword arguments of a model."""


def random_batches(
    specs: Sequence[InputSpec], *, batch_size: int, device: torch.device, seed: int
) -> Callable[[], Batch]:
    """Return what makes new noise at every call, on the host as a data loader does, and moves it to the device."""
    generator = torch.Generator().manual_seed(seed)

    def next_batch() -> Batch:
        tensors = [(spec.name, spec.sample(batch_size, generator).to(device, non_blocking=True)) for spec in specs]
        positional = tuple(tensor for name, tensor in tensors if name is None)
        return positional, {name: tensor for name, tensor in tensors if name is not None}

    return next_batch
