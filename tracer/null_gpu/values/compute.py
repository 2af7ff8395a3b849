"""An operator's results on the host, behind the CUDA operator whose kernels did nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from tracer.null_gpu.values.device_values import (
    LARGE_BYTES,
    MEDIUM_BYTES,
    SMALL_BYTES,
    DeviceValues,
    Known,
    host_view,
    is_dense,
    is_number,
)
from tracer.null_gpu.values.operators import PROBABILITIES, Operator, tensors_of

_READ_BYTES = 4 * MEDIUM_BYTES
"""Most bytes of all that floats are computed from."""


class Compute:
    """Computes what decides a size, and what is cheap; draws or forgets the rest."""

    def __init__(self, values: DeviceValues) -> None:
        self.values = values
        self.left_out: Counter[str] = Counter()
        """Operators whose integers or small floats could not be computed, with the reason, and how often."""

    def results(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[torch.Tensor],
        generator: torch.Generator | None,
    ) -> None:
        """Leave values in an operator's outputs.

        Args:
            generator: The host's, where it draws.
        """
        if operator.by_element:
            args, kwargs, outputs = self._places_of_small(args, kwargs, outputs)
        if not outputs:
            return
        reason = self._why_not(operator, tensors_of((*args, *kwargs.values())), outputs)
        if reason is None:
            try:
                self._compute(operator, args, kwargs, outputs, generator)
                return
            except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if reason:
            self.left_out[f"{operator.name}: {reason}"] += 1
        for output in outputs:
            self.values.draw(output, positive=operator.not_negative)

    def number(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Known]:
        """Compute the Python number that an operator returns; None where that is too much work."""
        if max((tensor.nbytes for tensor in tensors_of((*args, *kwargs.values()))), default=0) > LARGE_BYTES:
            self.left_out[f"{operator.name}: more than {LARGE_BYTES >> 20} MiB"] += 1
            return None, Known.UNKNOWN
        host = _Arguments(self.values, operator, set())
        host_args, host_kwargs = host.of(args, kwargs, None)
        return operator.call(*host_args, **host_kwargs), host.known

    def _why_not(self, operator: Operator, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> str | None:
        """Why results are not computed: empty where they are only floats that may be drawn; None if they are."""
        integers = [output for output in outputs if not is_number(output) and output.numel()]
        if operator.overwrites:
            output_ids = {id(output) for output in outputs}
            inputs = [tensor for tensor in inputs if id(tensor) not in output_ids]
        if not operator.computed or not all(map(self.values.has_room_around, outputs)):
            return ""
        if operator.short_name == "zero_" and outputs[0].nbytes > SMALL_BYTES:
            return ""  # integers that nobody has written are zero anyway, and pages of zeros cost more than they tell
        if integers:
            largest = max(tensor.nbytes for tensor in (*integers, *inputs))
            return None if largest <= LARGE_BYTES else f"more than {LARGE_BYTES >> 20} MiB"
        if operator.random:
            return None if all(output.nbytes <= SMALL_BYTES for output in outputs) else ""
        limit = SMALL_BYTES if operator.product else _READ_BYTES
        if sum(tensor.nbytes for tensor in inputs) > limit * (2 if operator.product else 1):
            return ""
        unwritten = [tensor.nbytes for tensor in inputs if self.values.known(tensor) == Known.UNKNOWN]
        small = all(output.nbytes <= SMALL_BYTES for output in outputs)
        if any(output.nbytes > MEDIUM_BYTES for output in outputs):
            return ""
        return None if max(unwritten, default=0) <= (SMALL_BYTES if small else 0) else ""

    def _compute(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[torch.Tensor],
        generator: torch.Generator | None,
    ) -> None:
        written = {id(tensor) for tensor in operator.written_tensors(args, kwargs)}
        host = _Arguments(self.values, operator, written)
        host_args, host_kwargs = host.of(args, kwargs, generator)
        results = _call(operator, host_args, host_kwargs)
        known = min(host.known, Known.EXACT if not operator.random else Known.DRAWN)
        known = max(known, Known.DRAWN)
        in_place = results is None
        results = results if isinstance(results, list | tuple) else (results,)
        computed = [None] * len(outputs) if in_place else tensors_of(results)
        for output, result in zip(outputs, computed, strict=False):
            self._leave(output, host_view(output) if result is None else result, known)

    def _leave(self, output: torch.Tensor, result: torch.Tensor, known: Known) -> None:
        if result.size() != output.size() or result.dtype != output.dtype:
            self.values.draw(output)
        elif is_number(output) and output.nbytes > MEDIUM_BYTES:
            self.values.forget([output])
        else:
            if known == Known.DRAWN and is_number(output) and not torch.isfinite(result).all():
                # No number of a drawn one may stop a program that looks for faults in its own.
                result = torch.where(result.isnan(), torch.zeros((), dtype=result.dtype, device="cpu"), result)
            self.values.write(output, result, known)

    def _places_of_small(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """Arguments of a list operator, reduced to the places where all tensors are small; others lose values."""
        num_places = len(outputs)
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
        lists = [value for value in lists if len(value) == num_places]
        tensors = [[value[n] for value in lists if isinstance(value[n], torch.Tensor)] for n in range(num_places)]
        small = [all(tensor.nbytes <= SMALL_BYTES for tensor in (outputs[n], *tensors[n])) for n in range(num_places)]
        self.values.forget([output for output, kept in zip(outputs, small, strict=True) if not kept])

        def of_small(value: Any) -> Any:
            if isinstance(value, list | tuple) and len(value) == num_places:
                return [inner for inner, kept in zip(value, small, strict=True) if kept]
            return value

        return (
            tuple(of_small(value) for value in args),
            {name: of_small(value) for name, value in kwargs.items()},
            of_small(outputs),
        )


class _Arguments:
    """An operator's arguments on the host, and the worst that is known of the values among them."""

    def __init__(self, values: DeviceValues, operator: Operator, written: set[int]) -> None:
        self.known = Known.EXACT
        self._values, self._operator, self._written = values, operator, written

    def of(
        self, args: Sequence[Any], kwargs: dict[str, Any], generator: torch.Generator | None
    ) -> tuple[list[Any], dict[str, Any]]:
        host_args = [self._host(value) for value in args]
        host_kwargs = {name: self._host(value) for name, value in kwargs.items()}
        if generator is not None and self._operator.generator is not None:
            position, name = self._operator.generator
            if 0 <= position < len(host_args):
                host_args[position] = generator
            else:
                host_kwargs[name] = generator
        return host_args, host_kwargs

    def _host(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple):
            return [self._host(inner) for inner in value]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        if id(tensor) in self._written:
            if not self._operator.overwrites:
                self.known = min(self.known, self._values.known(tensor))
            if not self._operator.overwrites or not is_dense(tensor):
                self._values.fill(tensor)
            return host_view(tensor)
        values, known = self._values.read(tensor)
        self.known = min(self.known, known)
        if known != Known.EXACT and self._operator.short_name in PROBABILITIES and is_number(tensor):
            return values.abs() if self._operator.short_name == "multinomial" else values.abs().clamp(max=1)
        return values


def _call(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if operator.short_name == "histc" and not is_number(args[0]):  # the CPU counts floats alone
        dtype = args[0].dtype
        return operator.call(args[0].double(), *args[1:], **kwargs).to(dtype)
    if operator.short_name == "log_sigmoid_backward":  # a GPU keeps no buffer for it
        args = [*args[:2], torch.ops.aten.log_sigmoid_forward(args[1])[1]]
    return operator.call(*args, **kwargs)
