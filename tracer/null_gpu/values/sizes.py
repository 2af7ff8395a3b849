"""Operators whose values decide the size of their result: torch's own runs, told the size that it would find."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from tracer.capture.torch_private import torch_dispatch, torch_tensors
from tracer.null_gpu.values.compute import Compute
from tracer.null_gpu.values.device_reads import ReadLog
from tracer.null_gpu.values.device_values import LARGE_BYTES, DeviceValues, Known
from tracer.null_gpu.values.operators import Operator, tensors_of

COALESCE: Final = "aten::_coalesce"
SIZED = frozenset({"nonzero", "_unique2", "unique_dim", "unique_consecutive", "nms"})


class SizedResults:
    """Runs such operators."""

    def __init__(
        self, values: DeviceValues, log: ReadLog, compute: Compute, answer_reads: Callable[[int | None], None]
    ) -> None:
        self._values, self._log, self._compute, self._answer_reads = values, log, compute, answer_reads
        self._running = _Running()

    @property
    def pending(self) -> int | None:
        """The size that the operator that runs on this thread is told."""
        return self._running.size

    def call(
        self,
        operator: Operator,
        outermost: str,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run an operator whose result's size depends on values.

        Args:
            outermost: Name of the operator that the program called, as `aten::index` for a `nonzero` inside it.
        """
        if self._running.size is not None:  # inside another that was told its size
            return original(*args, **kwargs)
        results, known = self._on_host(operator, args, kwargs)
        rows = results[0].size(_row_dimension(operator, args, kwargs)) if results else 0
        answer = self._log.answer()
        size = rows if answer is None else max(0, int(answer))
        outputs = self._told(size, original, args, kwargs)
        with torch_dispatch.BelowOperators():
            self._fill(tensors_of(outputs if isinstance(outputs, list | tuple) else (outputs,)), results, size, known)
        self._log.note(outermost, str(size), known, answered=answer is not None, size=size)
        return outputs

    def coalesce(self, original: Callable[..., Any], sparse: torch.Tensor) -> Any:
        """Run `_coalesce`, whose result has each place of a sparse tensor once."""
        _, indices = torch_tensors.parts_of_sparse(sparse)
        size, shape = indices.size(1), sparse.shape[: sparse.sparse_dim()]
        if self._running.size is not None or sparse.is_coalesced() or size < 2:
            return original(sparse)
        if indices.nbytes > LARGE_BYTES:
            self._compute.left_out[f"{COALESCE}: more than {LARGE_BYTES >> 20} MiB"] += 1
            return self._told(min(size, math.prod(shape)), original, (sparse,), {})
        with torch_dispatch.BelowOperators():
            values, known = self._values.read(indices)
            # Along one axis, since `unique` of columns makes a tensor of each.
            strides = torch.tensor([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], device="cpu")
            each_once = torch.unique((values * strides[:, None]).sum(0))
            places = torch.stack(torch.unravel_index(each_once, shape))
        result = self._told(places.size(1), original, (sparse,), {})
        with torch_dispatch.BelowOperators():
            self._values.write(torch_tensors.parts_of_sparse(result)[1], places, max(known, Known.DRAWN))
        return result

    def _told(self, size: int, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._running.size = size
        self._answer_reads(size)
        try:
            return original(*args, **kwargs)
        finally:
            self._answer_reads(None)
            self._running.size = None

    def _on_host(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], Known]:
        inputs = tensors_of((*args, *kwargs.values()))
        if any(tensor.nbytes > LARGE_BYTES for tensor in inputs):
            self._compute.left_out[f"{operator.name}: more than {LARGE_BYTES >> 20} MiB"] += 1
            return [], Known.UNKNOWN
        with torch_dispatch.BelowOperators():
            known = Known.EXACT
            host_args = []
            for value in args:
                if isinstance(value, torch.Tensor):
                    values, of_value = self._values.read(value)
                    known = min(known, of_value)
                    host_args.append(values)
                else:
                    host_args.append(value)
            results = operator.call(*host_args, **{name: value for name, value in kwargs.items() if name != "out"})
        return tensors_of(results if isinstance(results, list | tuple) else (results,)), known

    def _fill(self, outputs: list[torch.Tensor], results: list[torch.Tensor], size: int, known: Known) -> None:
        for n, output in enumerate(outputs):
            result = results[n] if n < len(results) else None
            if result is None or result.dim() != output.dim() or not result.numel():
                if output.numel() and output.nbytes <= LARGE_BYTES:
                    self._values.write(output, torch.zeros_like(output, device="cpu"), Known.DRAWN)
                continue
            if result.size() != output.size():  # a size was given: rows come again, or are left out
                for dimension, length in enumerate(output.size()):
                    rows = torch.arange(length, device="cpu") % result.size(dimension)
                    result = result.index_select(dimension, rows)
            self._values.write(output, result, max(known, Known.DRAWN))


class _Running(threading.local):
    def __init__(self) -> None:
        self.size: int | None = None


def _row_dimension(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Along which dimension of the first result the size is that values decide."""
    if operator.short_name == "unique_dim":
        return int(args[1] if len(args) > 1 else kwargs["dim"])
    if operator.short_name == "unique_consecutive":
        dimension = args[3] if len(args) > 3 else kwargs.get("dim")
        return int(dimension or 0)
    return 0
