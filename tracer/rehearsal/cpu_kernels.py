"""What the CPU's kernels take for themselves: each operator is run once, on zeros of the same shapes, and watched.

oneDNN works on copies in layouts of its own, and its recurrent layers keep a workspace for backward; products of
complex matrices copy what is conjugated. How large these are follows from no rule that is written down, and not from
the shapes alone: it depends on the processor's instructions and on the number of threads. So the kernels are asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.profiler.quiet_profiler import quiet_profiler
from tracer.capture.torch_private import torch_dispatch
from tracer.rehearsal.recorder import OperatorCall, ResultOf, Scratch, ScratchOf, strided_tensors

_ASKED = frozenset(
    (
        *("aten::convolution", "aten::convolution_backward"),
        *("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"),
        *("aten::native_batch_norm", "aten::native_batch_norm_backward"),
        *("aten::native_layer_norm_backward", "aten::native_group_norm", "aten::native_group_norm_backward"),
        *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::embedding_dense_backward"),
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)
"""Beside what works element by element. Others that the tests' workloads call take nothing, or what a rehearsal sees:
the results of operators that they call."""
_PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"))
_PLAIN = frozenset((torch.float32, torch.float64))


@dataclass(frozen=True, slots=True)
class _Taken:
    shapes: tuple[tuple[int, ...], ...]  # Shapes of each result, in order
    more_bytes: int  # How much more than the results was in use at once


class CpuKernels:
    """Runs an operator once for each set of shapes, whoever asks how often. It takes the time and memory of the run."""

    def __init__(self) -> None:
        self._taken: dict[Any, _Taken] = {}

    def scratch_of(self, operator: Any) -> tuple[ScratchOf, ...]:
        """Functions that tell a recorder what an operator allocates beside its results."""
        return (self._scratch_of(operator),) if _is_asked(operator) or _is_by_element(operator) else ()

    def result_of(self, operator: Any) -> ResultOf | None:
        """A function that tells an operator's real results, workspaces included, which fake kernels do not know."""
        return self._result_of(operator) if _is_asked(operator) else None

    def _scratch_of(self, operator: Any) -> ScratchOf:
        by_element = _is_by_element(operator)

        def scratch(call: OperatorCall) -> list[Scratch]:
            is_plain = not _mixes_types(call) if by_element else call.name in _PRODUCTS and call.out.dtype in _PLAIN
            return [] if is_plain else [Scratch(self._of(operator, call).more_bytes)]

        return scratch

    def _result_of(self, operator: Any) -> ResultOf:
        def result(call: OperatorCall) -> Any:
            if not isinstance(call.out, tuple):
                return call.out
            shapes = self._of(operator, call).shapes
            if len(shapes) != sum(1 for _ in strided_tensors(call.out)):
                return call.out
            in_turn = iter(shapes)
            return tuple(_of_shape(value, next(in_turn)) if isinstance(value, Tensor) else value for value in call.out)

        return result

    def _of(self, operator: Any, call: OperatorCall) -> _Taken:
        key = operator, _key(call.args), _key(call.kwargs)
        if key not in self._taken:
            self._taken[key] = _run(operator, call)
        return self._taken[key]


def _is_asked(operator: Any) -> bool:
    return torch_dispatch.schema_name(operator) in _ASKED


def _is_by_element(operator: Any) -> bool:
    """Whether it is torch's own, works element by element, draws no random numbers and makes its result anew."""
    tags = getattr(operator, "tags", ())
    is_plain = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    is_torchs = torch_dispatch.schema_name(operator).startswith("aten::")
    return is_plain and is_torchs and not torch_dispatch.written_arguments(operator)[0]


def _mixes_types(call: OperatorCall) -> bool:
    """Whether an argument or the result is copied into another type, or what is conjugated is written out."""
    tensors = [*strided_tensors(call.args), *strided_tensors((call.out,))]
    return len({tensor.dtype for tensor in tensors if tensor.dim()}) > 1 or any(tensor.is_conj() for tensor in tensors)


def _of_shape(fake: Tensor, shape: tuple[int, ...]) -> Tensor:
    return fake if fake.shape == shape else fake.new_empty(shape)


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.is_conj()
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else value


def _run(operator: Any, call: OperatorCall) -> _Taken:
    with torch_dispatch.without_modes(), quiet_profiler():
        args, kwargs = _real(call.args), _real(call.kwargs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            out = operator(*args, **kwargs)
        sizes = read_recording(profiler).allocations.size_bytes
        results = list(strided_tensors((out,)))
    result_bytes = sum(result.untyped_storage().nbytes() for result in results)
    peak_bytes = int(np.cumsum(sizes).max(initial=0))
    return _Taken(tuple(tuple(result.shape) for result in results), max(peak_bytes - result_bytes, 0))


def _real(value: Any) -> Any:
    if isinstance(value, Tensor):
        span = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
        flat = torch.zeros(span if value.numel() else 0, dtype=value.dtype)
        real = flat.as_strided(tuple(value.shape), value.stride())
        return real.conj() if value.is_conj() else real
    if isinstance(value, dict):
        return {name: _real(item) for name, item in value.items()}
    return type(value)(map(_real, value)) if isinstance(value, list | tuple) else value
