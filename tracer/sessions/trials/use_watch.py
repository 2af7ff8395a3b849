"""Next uses that a failed program makes of its blocks, and what made these, observed in a run without a limit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import torch

from tracer.capture.objects.later_uses import LaterUses, Making, NextUse, Sized
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.capture.torch_private.torch_dispatch import (
    is_by_elements,
    may_be_view,
    operator,
    overwritten_tensors,
    read_tensors,
    tensors_of,
    watched,
)
from tracer.capture.torch_private.torch_graph import running_node
from tracer.capture.torch_private.torch_history import (
    allocator_snapshot,
    allocator_statistics,
    start_history_without_stacks,
)
from tracer.sessions.trials.seen_uses import LEAST_LARGE_BYTES, MOST_STEPS, Elements, Read, SeenUses, later_uses

_MAX_ENTRIES: Final = 2_000_000
_MOST_TIMES: Final = 2
"""Multiple of the allocations before the failure for which a program without steps is followed."""
_LEAST_FOLLOWED: Final = 10_000
_MOST_INPUTS: Final = 8
_OF_ROWS: Final = ("aten::index", "aten::index_select", "aten::embedding")
_OF_ELEMENTS: Final = ("aten::gather", "aten::take")
"""Operators that read no more of their first tensor than they return."""
_VIEWS: Final = ("aten::_unsafe_view", "aten::_reshape_alias")
"""Operators that return a view though their schema does not say so."""
_KEEP_ROWS: Final = ("aten::mm", "aten::bmm", "aten::constant_pad_nd")
"""Operators that make each row of a result of one row of their first tensor, or of none."""
_COPY: Final = (*_OF_ROWS, "aten::repeat", "aten::cat", "aten::stack", "aten::clone", "aten::constant_pad_nd")
"""Operators whose results have no values but those of their tensors, each as often as they like."""
_TRACER_FOLDER: Final = str(Path(__file__).parents[2])
_TORCH_FOLDER: Final = str(Path(torch.__file__).parent)
_LOOKS: Final = ((read_tensors, False), (overwritten_tensors, True))
"""Ways to find tensors of an operator's, and whether it overwrites these."""
_NOTHING: Final = Elements(None, 0)


class UseWatch:
    """Notes which operator reads each block next, behind the request that failed in an earlier run of this program.

    Enter it before CUDA begins, and leave it when the program has ended: in between, the program may have dispatch
    modes of its own on top of this one, which leaving would take away. Far from the request an operator costs a call.
    """

    def __init__(
        self,
        device: int,
        num_allocations: int,
        requested_bytes: int = 0,
        *,
        when_done: Callable[[], None] = lambda: None,
    ) -> None:
        """Watch a device.

        Args:
            device: Index of the CUDA device.
            num_allocations: Allocations of the device before the request that failed.
            requested_bytes: Bytes in use then, as requested: where a run has allocated more often before, these tell.
            when_done: Called once, when the program has been followed far enough.
        """
        self._when_done = when_done
        self._device = torch.device("cuda", device)
        self._seen = SeenUses(num_allocations, requested_bytes)
        self._mode: Any = watched(self._see)
        self._is_near = True  # Whether the failed request may come before the next step ends
        self._allocated = self._of_last_step = 0
        self.is_done = False

    def __enter__(self) -> Self:
        when_cuda_has_begun(lambda: start_history_without_stacks(self._device, _MAX_ENTRIES))
        self._mode.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._mode.__exit__(*raised)

    def step_ended(self) -> bool:
        """Count a step that has ended; False once as many as are followed have, or the failure is far off."""
        if self.is_done:
            return False
        before, self._allocated = self._allocated, self._count()
        self._of_last_step = self._allocated - before
        if self._seen.behind:
            self._seen.step_ends.append(self._allocated)
            if self._seen.num_steps >= MOST_STEPS:
                self._end()
        else:
            self._is_near = self._allocated + 2 * self._of_last_step >= self._seen.until
        return not self.is_done

    def is_reached_in(self, num_steps: int) -> bool:
        """True if so many further steps reach the request that failed, provided all are like the last."""
        return self._allocated + num_steps * self._of_last_step >= self._seen.until

    def _count(self) -> int:
        counters = allocator_statistics(self._device) if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]
        return int(counters["allocation"]["all"]["allocated"]) if counters else 0

    def _see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self.is_done or not self._is_near or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        count, is_view = self._count(), (may_be_view(name) or name in _VIEWS) and self._is_of_an_input(args, out)
        if not is_view:
            self._note_made(count, name, args, kwargs, out)
        if count <= self._seen.until:
            return
        self._seen.behind = self._seen.behind or count
        if not self._seen.ends or count > self._seen.ends[-1]:
            self._seen.ends.append(count)
        use = None
        for find, overwrites in () if is_view else _LOOKS:
            for tensor in find(name, args, kwargs):
                if self._has(tensor):
                    use = use or self._use(name, out)
                    # The first argument is the one that `mul_` and its like write to.
                    of_tensor = replace(
                        use, overwrites=overwrites, can_be_in_place=tensor is args[0] and _has_in_place(name)
                    )
                    row = self._seen.uses.setdefault(of_tensor, len(self._seen.uses))
                    read = self._read(count, row, name, tensor, args, out, overwrites=overwrites)
                    self._seen.reads.setdefault(_address(tensor), []).append(read)
        if not self._seen.num_steps and count > self._seen.until * (1 + _MOST_TIMES) + _LEAST_FOLLOWED:
            self._end()

    def _is_of_an_input(self, args: tuple[Any, ...], out: Any) -> bool:
        """True if what an operator returned lies in memory of its arguments."""
        given = {_address(each) for each in tensors_of(args) if self._has(each)}
        return any(self._has(each) and _address(each) in given for each in tensors_of([out]))

    def _has(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device and tensor.layout is torch.strided

    def _note_made(self, count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what an operator makes of large blocks; and what it reads of them, before the request."""
        for tensor in () if self._seen.behind else read_tensors(name, args, kwargs):
            if self._has(tensor) and tensor.untyped_storage().nbytes() >= LEAST_LARGE_BYTES:
                read = self._read(count, -1, name, tensor, args, out)
                self._seen.before.setdefault(_address(tensor), {})[read.part.key, read.into or read.result] = read
        results = [*filter(self._has, tensors_of([out]))]
        for result in results:  # new, or written to, if only in part
            self._seen.copied.pop(_address(result), None)
        large = [each for each in results if each.nbytes >= LEAST_LARGE_BYTES]
        inputs = [*tensors_of((*args, *kwargs.values()))] if large else []
        given = {_address(each) for each in inputs if self._has(each)}
        for result in large:
            if (address := _address(result)) not in given:
                known = (each for each in inputs[:_MOST_INPUTS] if each.layout is torch.strided)
                copied_bytes = self._copied_bytes(name, inputs, result)
                by_elements = _is_by_elements(name)
                making = Making(name, tuple(map(_sized, known)), _sized(result), *_place(), by_elements, copied_bytes)
                row = self._seen.makings.setdefault(making, len(self._seen.makings))
                if by_elements or name in _KEEP_ROWS:
                    self._seen.row_wise.add(row)
                self._seen.made.setdefault(address, []).append((count, row))
                if not self._seen.behind:
                    self._seen.before.pop(address, None)

    def _copied_bytes(self, name: str, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> int:
        """Bytes of the values that an operator only copies to its result, those of copies once; 0 where it computes."""
        given = inputs[:1] if name in _OF_ROWS else inputs
        if name not in _COPY or any(each.layout is not torch.strided for each in given):
            return 0
        own = (min(_sized(each).size_bytes, self._seen.copied.get(_address(each), each.nbytes)) for each in given)
        copied_bytes = min(sum(own), result.nbytes)
        self._seen.copied[_address(result)] = copied_bytes
        return copied_bytes

    def _read(
        self,
        count: int,
        row: int,
        name: str,
        tensor: torch.Tensor,
        args: tuple[Any, ...],
        out: Any,
        *,
        overwrites: bool = False,
    ) -> Read:
        part = _NOTHING if overwrites else _part(name, tensor, args, out)
        is_kept = isinstance(out, torch.Tensor) and self._has(out) and out.nbytes >= LEAST_LARGE_BYTES
        keeps_all = is_kept and _is_by_elements(name) and out.numel() == tensor.numel()
        keeps_rows = is_kept and name in _KEEP_ROWS and tensor is args[0]
        result = _address(out) if is_kept and _address(out) != _address(tensor) else 0
        into = result if keeps_all or keeps_rows else 0
        rows = _rows(out) / max(_rows(tensor), 1) if keeps_rows else 0.0
        needs_result = result if running_node() is None else 0  # gradients that nothing reads have words of their own
        return Read(count, row, self._seen.num_steps, part, into, rows, needs_result)

    def _end(self) -> None:
        self.is_done = True
        self._when_done()

    def _use(self, name: str, out: Any) -> NextUse:
        file, line = _place()
        return NextUse(
            file=file,
            line=line,
            operator=name,
            in_backward=running_node() is not None,
            overwrites=False,
            fails=False,
            can_be_in_place=False,
            step=self._seen.num_steps,
            leaves_bytes=sum(each.nbytes for each in tensors_of([out])),
        )

    def found(self, *, is_to_the_end: bool) -> LaterUses | None:
        """Return what was seen; None if the program did not come so far.

        Args:
            is_to_the_end: Whether the program has ended by itself.
        """
        if not self._seen.behind:
            return None
        trace = allocator_snapshot(self._device)["device_traces"][self._device.index]
        return later_uses(self._seen, trace, self._count(), is_whole=is_to_the_end and not self.is_done)


def _place() -> tuple[str, int]:
    """File and line of the program's innermost function; nothing where there is none, as in a backward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TRACER_FOLDER, _TORCH_FOLDER)):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def _is_by_elements(name: str) -> bool:
    return is_by_elements(name) or name == "aten::_to_copy"


@cache
def _has_in_place(name: str) -> bool:
    """True if an operator has a form that writes to its first argument, such as `aten::div_` of `aten::div`."""
    in_place = f"{name.partition('::')[2]}_"
    return operator(in_place) is not None or operator(in_place, "Tensor") is not None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _part(name: str, tensor: torch.Tensor, args: tuple[Any, ...], out: Any) -> Elements:
    """The elements that an operator reads of a tensor."""
    size = _sized(tensor).size_bytes
    are_rows = tensor.dim() > 1 and tensor.stride(-1) == 1 and tensor.stride(-2) == tensor.shape[-1]
    if name in (*_OF_ROWS, *_OF_ELEMENTS) and tensor is args[0]:
        are_rows &= name in _OF_ROWS and out.dim() >= tensor.dim() and out.shape[-1] == tensor.shape[-1]
        return Elements(object(), min(size, out.nbytes), are_rows)  # others each time
    return Elements((tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype), size, are_rows)


def _rows(tensor: torch.Tensor) -> int:
    return tensor.numel() // max(tensor.shape[-1], 1)


def _sized(tensor: torch.Tensor) -> Sized:
    own = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Sized(tuple(tensor.shape), dtype, math.prod(own) * tensor.element_size())
