"""What the CPU's kernels take for themselves: each operator is run once, on zeros of the same shapes, and watched.

oneDNN works on copies in layouts of its own, and its recurrent layers keep a workspace for backward. How large these
are follows from no rule that is written down, and not from the shapes alone: it depends on the processor's
instructions and on the number of threads. So the kernels here are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tracer.capture import torch_private
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.profiler.quiet_profiler import quiet_profiler
from tracer.rehearsal.recorder import OperatorCall, ResultOf, Scratch, ScratchOf, strided_tensors

ASKED = ("convolution", "convolution_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
"""Of `aten`. All others that training steps call take nothing, or what a rehearsal sees: views and copies of theirs."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a call took.

    Attributes:
        shapes: Of each result, in order.
        more_bytes: How much more than the results was in use at once.
    """

    shapes: tuple[tuple[int, ...], ...]
    more_bytes: int


class CpuKernels:
    """Runs an operator once for each set of shapes, whoever asks how often. It takes the time and memory of the run."""

    def __init__(self) -> None:
        self._taken: dict[Any, _Taken] = {}

    @property
    def num_asked(self) -> int:
        """How many calls have been made."""
        return len(self._taken)

    def scratch(self) -> Mapping[str, tuple[ScratchOf, ...]]:
        """For a recorder: what operators take beside their results."""
        return {f"aten::{name}": (self._scratch,) for name in ASKED}

    def results(self) -> Mapping[str, ResultOf]:
        """For a recorder: what operators return. A fake kernel does not know how large a workspace is."""
        return {f"aten::{name}": self._result for name in ASKED}

    def _scratch(self, call: OperatorCall) -> list[Scratch]:
        return [Scratch(self._of(call).more_bytes)]

    def _result(self, call: OperatorCall) -> Any:
        if not isinstance(call.out, tuple):
            return call.out
        shapes = iter(self._of(call).shapes)
        return tuple(_of_shape(each, next(shapes)) if isinstance(each, Tensor) else each for each in call.out)

    def _of(self, call: OperatorCall) -> _Taken:
        key = call.name, _key(call.args), _key(call.kwargs)
        if key not in self._taken:
            self._taken[key] = _run(call)
        return self._taken[key]


def _of_shape(fake: Tensor, shape: tuple[int, ...]) -> Tensor:
    return fake if fake.shape == shape else fake.new_empty(shape)


def _key(value: Any) -> Any:
    """Equal for calls that take as much."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else value


def _run(call: OperatorCall) -> _Taken:
    with torch_private.without_modes(), quiet_profiler():
        args, kwargs = _real(call.args), _real(call.kwargs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            out = torch_private.operator(call.name.removeprefix("aten::"))(*args, **kwargs)
        sizes = read_recording(profiler).allocations.size_bytes
        results = list(strided_tensors((out,)))
    result_bytes = sum(each.untyped_storage().nbytes() for each in results)
    peak_bytes = int(np.cumsum(sizes).max(initial=0))
    return _Taken(tuple(tuple(each.shape) for each in results), max(peak_bytes - result_bytes, 0))


def _real(value: Any) -> Any:
    """The same with zeros in the place of tensors without memory."""
    if isinstance(value, Tensor):
        span = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
        flat = torch.zeros(span if value.numel() else 0, dtype=value.dtype)
        return flat.as_strided(tuple(value.shape), value.stride())
    if isinstance(value, dict):
        return {name: _real(each) for name, each in value.items()}
    return type(value)(map(_real, value)) if isinstance(value, list | tuple) else value
