"""Kernels in front of torch's own for CUDA: torch's runs first and allocates, then values are computed.

They are registered with the dispatcher, below autograd and compilation: threads of autograd come by, compiled code
stays compiled, and what C++ calls inside an operator comes by as well.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import torch

from tracer.capture.torch_private import torch_dispatch
from tracer.null_gpu.values.compute import Compute
from tracer.null_gpu.values.device_reads import ReadLog
from tracer.null_gpu.values.device_values import (
    LARGE_BYTES,
    MEDIUM_BYTES,
    SMALL_BYTES,
    DeviceValues,
    Known,
    extent,
    host_generator,
    host_view,
    is_number,
)
from tracer.null_gpu.values.operators import ALLOCATIONS, UNTOUCHED, Operator, operator_named, packet_name, tensors_of
from tracer.null_gpu.values.sizes import COALESCE, SIZED, SizedResults

Kernel = Callable[..., Any]
__tracebackhide__ = True  # for pytest: an operator's error is at the line that called it
NAMESPACES = frozenset({"aten", "torchvision"})
"""CodeOwner operators are looked at; those of others are made of them, or leave floats that nobody has written."""


_MADE_OF_OTHERS = ("aten::copy_", "aten::_is_all_true")
"""Operators without a kernel for CUDA that get one all the same."""


_NUMBERS_ON_DEVICE = {
    "aten::pow.Scalar": "aten::pow.Tensor_Tensor",
    "aten::pow.Scalar_out": "aten::pow.Tensor_Tensor_out",
    "aten::isin.Scalar_Tensor": "aten::isin.Tensor_Tensor",
    "aten::isin.Scalar_Tensor_out": "aten::isin.Tensor_Tensor_out",
}
"""Operators that hand their number to another as a tensor of the device that counts as a number.

The dispatcher cannot hand such a tensor to a kernel in Python. So the other is called with a tensor like any other.
"""


_BEFORE_FIRST: list[Callable[[], object]] = []


def before_first_allocation(act: Callable[[], object]) -> Callable[[], None]:
    """Have something called once, right before an operator allocates memory of a device; what is returned ends that."""

    def end() -> None:
        if act in _BEFORE_FIRST:
            _BEFORE_FIRST.remove(act)

    _BEFORE_FIRST.append(act)
    return end


class _CallsOfThread(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.written: list[frozenset[int]] = []
        self.size: int | None = None
        self.is_moving = False  # in a collective, whose copies are of bytes that nobody knows yet
        self.script: deque[bool] | None = None


class ValueKernels:
    """The kernels in place of torch's, until `remove`."""

    def __init__(self, values: DeviceValues, log: ReadLog, answer_reads: Callable[[int | None], None]) -> None:
        """Replace those of all operators that torch has loaded by now.

        Args:
            answer_reads: Tells the device what an operator's own small reads shall find, until None is told.
        """
        self.values, self.log, self.compute = values, log, Compute(values)
        self._sized = SizedResults(values, log, self.compute, answer_reads)
        self._calls = _CallsOfThread()
        self._replaced: set[str] = set()
        self._libraries: dict[str, Any] = {}
        self._special: dict[str, Callable[[str, Kernel], Kernel]] = {
            "_local_scalar_dense": self._item,
            "copy_": self._copy,
            "resize_": self._resize,
            "_is_all_true": self._check,
            "_amp_foreach_non_finite_check_and_unscale_": self._found_inf,
            **dict.fromkeys(ALLOCATIONS, self._allocation),
            **dict.fromkeys(SIZED, self._sizing),
        }
        self.replace((*torch_dispatch.operators_with_kernel("CUDA"), *_MADE_OF_OTHERS))
        if COALESCE in torch_dispatch.operators_with_kernel("SparseCUDA"):
            coalesce = partial(self._sized.coalesce, torch_dispatch.device_kernel(COALESCE, "SparseCUDA"))
            torch_dispatch.add_kernel(self._libraries["aten"], "_coalesce", unrecorded(coalesce), "SparseCUDA")

    def replace(self, names: Iterable[str]) -> None:
        """Put a kernel in front of those operators' own, once."""
        for name in names:
            namespace, short = name.partition("::")[0], packet_name(name)
            is_collective = name in COLLECTIVES
            is_looked_at = is_collective or (namespace in NAMESPACES and short not in UNTOUCHED)
            if not is_looked_at or name in self._replaced:
                continue
            self._replaced.add(name)
            make = self._number_on_device if name in _NUMBERS_ON_DEVICE else self._special.get(short, self._general)
            make = self._collective if is_collective else make
            kernel = make(name, torch_dispatch.device_kernel(name, "CUDA"))
            if namespace not in self._libraries:
                self._libraries[namespace] = torch_dispatch.kernel_library(namespace)
            torch_dispatch.add_kernel(self._libraries[namespace], name.partition("::")[2], unrecorded(kernel), "CUDA")

    def replace_new(self) -> None:
        """Replace the kernels of operators of a library that was loaded since."""
        self.replace(torch_dispatch.operators_with_kernel("CUDA"))

    def remove(self) -> None:
        """Leave torch's own kernels."""
        for library in self._libraries.values():
            torch_dispatch.remove_library(library)
        self._libraries.clear()
        self._replaced.clear()

    def truncated_draw(
        self, original: Kernel, tensor: torch.Tensor, mean: float, std: float, low: float, high: float, **kwargs: Any
    ) -> Any:
        """`trunc_normal_`: of large tensors nothing is computed, and it draws again as often as a device would.

        Its loop would not end else: numbers that stand for those of a kernel keep to no bounds.
        """
        if tensor.device.type != "cuda" or tensor.nbytes <= SMALL_BYTES or self._calls.script is not None:
            return original(tensor, mean, std, low, high, **kwargs)
        self._calls.script = deque([True] * rounds(tensor.numel(), mean, std, low, high))
        try:
            return original(tensor, mean, std, low, high, **kwargs)
        finally:
            self._calls.script = None

    # ------------------------------------------------------------------------------------------------ kernels by kind
    def _general(self, name: str, original: Kernel) -> Kernel:
        calls, forget = self._calls, self.values.ranges.forget
        operator: Operator | None = None

        def kernel(*args: Any, **kwargs: Any) -> Any:
            nonlocal operator
            operator = operator or operator_named(name)
            if any(not isinstance(value, torch.Tensor) for value in args[: len(operator.tensors)]):
                with torch_dispatch.BelowOperators():
                    args, kwargs = operator.with_tensors(args, kwargs)
            if calls.script is not None:
                result = original(*args, **kwargs)
                self.values.forget([*tensors_of((result,)), *operator.written_tensors(args, kwargs)])
                return result
            generator = self._generator(operator, args, kwargs) if operator.random else None
            written = operator.written_tensors(args, kwargs)
            calls.names.append(name)
            calls.written.append(
                frozenset(tensor.data_ptr() for tensor in written) if operator.computed else frozenset()
            )
            try:
                result = original(*args, **kwargs)
            finally:
                calls.names.pop()
                calls.written.pop()
            if isinstance(result, torch.Tensor):
                if result.layout is not torch.strided:
                    return result
                if is_number(result) and result.nbytes > MEDIUM_BYTES:
                    forget(*extent(result))
                    return result
                outputs = [result]
            elif isinstance(result, list | tuple):
                outputs = tensors_of((result,))
            elif result is None:
                outputs = written
            else:
                return self._scalar(operator, args, kwargs, result)
            if not self._is_for_the_caller(written):
                with torch_dispatch.BelowOperators():
                    self.compute.results(operator, args, kwargs, outputs, generator)
            return result

        return kernel

    def _is_for_the_caller(self, written: list[torch.Tensor]) -> bool:
        """Return True if an enclosing operator will compute what this one has written."""
        around = self._calls.written
        return bool(around and written) and any(
            tensor.data_ptr() in pointers for pointers in around for tensor in written
        )

    def _generator(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
        if operator.generator is None:
            return None
        generator = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)), None)
        device = next((tensor.device for tensor in tensors_of((*args, *kwargs.values()))), None)
        with torch_dispatch.BelowOperators():
            return host_generator(device or torch.device("cuda", torch.cuda.current_device()), generator)

    def _scalar(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """A value that an operator returns as a number of Python, such as `equal`."""
        if type(result) not in (bool, int, float, complex) or not operator.computed:
            return result
        with torch_dispatch.BelowOperators():
            computed, known = self.compute.number(operator, args, kwargs)
        result = result if computed is None else computed
        if not self._calls.names:
            answer = self.log.answer()
            result = result if answer is None else type(result)(answer)
            self.log.note(operator.name, str(result), known, answered=answer is not None)
        return result

    def _number_on_device(self, name: str, original: Kernel) -> Kernel:
        call = torch_dispatch.operator_by_full_name(_NUMBERS_ON_DEVICE[name])

        def kernel(number: float | complex, tensor: torch.Tensor, **kwargs: Any) -> Any:
            dtype = torch.result_type(tensor, number)
            return call(torch.scalar_tensor(number, dtype=dtype, device=tensor.device), tensor, **kwargs)

        return kernel

    def _allocation(self, name: str, original: Kernel) -> Kernel:
        forget = self.values.ranges.forget

        def kernel(*args: Any, **kwargs: Any) -> Any:
            while _BEFORE_FIRST:
                _BEFORE_FIRST.pop()()
            result = original(*args, **kwargs)
            forget(*extent(result))
            return result

        return kernel

    def _resize(self, name: str, original: Kernel) -> Kernel:
        def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            before, at = extent(tensor), tensor.data_ptr()
            known = self.values.ranges.known(*before)
            result = original(tensor, *args, **kwargs)
            if tensor.data_ptr() != at:
                self.values.forget([tensor])
                if known != Known.UNKNOWN and before[1] - before[0] <= MEDIUM_BYTES and at:
                    ctypes.memmove(tensor.data_ptr(), at, min(before[1] - before[0], tensor.nbytes))
                    self.values.ranges.note(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, known)
            return result

        return kernel

    def _item(self, name: str, original: Kernel) -> Kernel:
        def kernel(tensor: torch.Tensor) -> Any:
            original(tensor)
            if self._sized.pending is not None:
                return self._sized.pending
            if self._calls.script is not None:
                again = self._calls.script.popleft() if self._calls.script else False
                self.log.note(name, str(again), Known.DRAWN, answered=False)
                return again
            with torch_dispatch.BelowOperators():
                values, known = self.values.read(tensor)
                value = values.item()
            if not self._calls.names:
                answer = self.log.answer()
                value = value if answer is None else type(value)(answer)
                self.log.note(name, str(value), known, answered=answer is not None)
            return value

        return kernel

    def _collective(self, name: str, original: Kernel) -> Kernel:
        """Return the kernel of a collective, whose outputs are as known as its inputs.

        NCCL moves the bytes itself: each slot gets this rank's own.
        """

        def kernel(outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            self._calls.is_moving = True
            try:
                result = original(outputs, inputs, *rest, **options)
            finally:
                self._calls.is_moving = False
            known = min((self.values.known(tensor) for tensor in _tensors(inputs)), default=None)
            if known is not None:
                for tensor in _tensors(outputs):
                    self.values.ranges.note(*extent(tensor), known)
            return result

        return kernel

    def _copy(self, name: str, original: Kernel) -> Kernel:
        def kernel(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            original(target, source, non_blocking)
            if self._calls.is_moving or target.numel() == 0 or self._is_for_the_caller([target]):
                return target
            if self._calls.script is not None:
                self.values.forget([target] if target.device.type == "cuda" else [])
                return target
            with torch_dispatch.BelowOperators():
                if target.device.type == "cuda":
                    self._copy_to_device(target, source)
                elif source.device.type == "cuda":
                    self._copy_to_host(name, target, source)
            return target

        return kernel

    def _copy_to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        limit = MEDIUM_BYTES if is_number(target) else LARGE_BYTES
        on_host = source.device.type != "cuda"
        known = Known.EXACT if on_host else self.values.known(source)
        if target.nbytes > limit or (known == Known.UNKNOWN and source.nbytes > SMALL_BYTES):
            self.values.forget([target])
            return
        values = source if on_host else self.values.read(source)[0]
        if values.size() != target.size():
            values = values.expand(target.size())
        if values.dtype != target.dtype:
            values = values.to(target.dtype)
        self.values.write(target, values, max(known, Known.DRAWN))

    def _copy_to_host(self, name: str, target: torch.Tensor, source: torch.Tensor) -> None:
        known = self.values.known(source)
        if known == Known.UNKNOWN and not (is_number(source) and source.nbytes <= LARGE_BYTES):
            text = "unknown"
        else:
            values, known = self.values.read(source)
            target.copy_(values)
            text = _text(values)
        if not self._calls.names:
            answer = self.log.answer()
            if answer is not None:
                target.fill_(answer)
            self.log.note(name, str(answer) if answer is not None else text, known, answered=answer is not None)

    def _check(self, name: str, original: Kernel) -> Kernel:
        """A check of a program's own, as distributions make of their parameters, holds for what was drawn."""

        def kernel(tensor: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = original(tensor)
            with torch_dispatch.BelowOperators():
                known = self.values.known(tensor)
                if known != Known.EXACT:
                    self.values.write(result, torch.ones((), dtype=torch.bool, device="cpu"), Known.DRAWN)
            return result

        return kernel

    def _found_inf(self, name: str, original: Kernel) -> Kernel:
        """Gradients that were not computed are finite; the scale is kept for them."""

        def kernel(gradients: list[torch.Tensor], found: torch.Tensor, scale: torch.Tensor) -> None:
            original(gradients, found, scale)
            with torch_dispatch.BelowOperators():
                exact = [
                    gradient
                    for gradient in gradients
                    if gradient.nbytes <= SMALL_BYTES and self.values.known(gradient) == Known.EXACT
                ]
                views = [host_view(gradient) for gradient in exact]
                by = self.values.read(scale)[0]
                if self.values.known(found) == Known.UNKNOWN:
                    self.values.fill(found)
                finite = all(bool(torch.isfinite(view).all()) for view in views)
                if not finite:
                    host_view(found).fill_(1)
                for view in views:
                    view.mul_(by.to(view.dtype))

        return kernel

    def _sizing(self, name: str, original: Kernel) -> Kernel:
        operator: Operator | None = None

        def kernel(*args: Any, **kwargs: Any) -> Any:
            nonlocal operator
            operator = operator or operator_named(name)
            calls = self._calls.names
            calls.append(name)
            try:
                return self._sized.call(operator, calls[0], original, args, kwargs)
            finally:
                calls.pop()

        return kernel


def unrecorded(kernel: Kernel) -> Kernel:
    """Return the kernel without its Python calls in a profiler's recording: there are tens of them for an operator."""
    state, enter, leave = (
        _PYTHON.PyThreadState_Get,
        _PYTHON.PyThreadState_EnterTracing,
        _PYTHON.PyThreadState_LeaveTracing,
    )

    def run(*args: Any, **kwargs: Any) -> Any:
        thread = state()
        enter(thread)
        try:
            return kernel(*args, **kwargs)
        finally:
            leave(thread)

    return run


def _python() -> ctypes.PyDLL:
    python = ctypes.PyDLL(None)
    python.PyThreadState_Get.restype = ctypes.c_void_p
    for name in ("PyThreadState_EnterTracing", "PyThreadState_LeaveTracing"):
        getattr(python, name).argtypes = (ctypes.c_void_p,)
        getattr(python, name).restype = None
    return python


_PYTHON = _python()


def _text(values: torch.Tensor) -> str:
    if values.numel() == 1:
        return str(values.item())
    shape = "x".join(str(size) for size in values.size())
    return f"{shape} {str(values.dtype).removeprefix('torch.')}"


def rounds(count: int, mean: float, std: float, low: float, high: float) -> int:
    """Expected number of times that `torch.nn.init.trunc_normal_` draws again for numbers outside its bounds.

    torch takes normal numbers and draws those outside again; where less than three in ten would be inside, uniform ones
    that it keeps by the height of the curve.

    Source:
        torch/nn/init.py, `_no_grad_trunc_normal_`, of torch 2.15.
    """
    inside = _below((high - mean) / std) - _below((low - mean) / std)
    kept_share = inside
    if inside <= 0.3:
        mode = max(low, min(mean, high))
        height = math.exp(-0.5 * ((mode - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        kept_share = inside / (height * (high - low)) if height and high > low else 1.0
    lost_share = min(max(1.0 - kept_share, 0.0), 0.99)
    num_rounds, left = 0, count * lost_share
    while left >= 0.5:
        num_rounds, left = num_rounds + 1, left * lost_share
    return num_rounds


def _below(deviations: float) -> float:
    return (1.0 + math.erf(deviations / math.sqrt(2.0))) / 2.0


COLLECTIVES: Final = frozenset(
    {
        "c10d::_allgather_base_",
        "c10d::_reduce_scatter_base_",
        "c10d::allgather_",
        "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_",
        "c10d::alltoall_",
        "c10d::alltoall_base_",
        "c10d::gather_",
        "c10d::reduce_scatter_",
        "c10d::reduce_scatter_tensor_coalesced_",
        "c10d::scatter_",
    }
)
"""Operators of torch.distributed whose first argument is written to from the second; others keep what is there."""


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    else:
        for value in values:
            yield from _tensors(value)
