"""Next uses that a failed program makes of its blocks, and what made these, observed in a run without a limit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import torch

from tracer.capture.objects.later_uses import LaterUses, Making, NextUse, Sized
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.capture.torch_private.torch_dispatch import (
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

_MAX_ENTRIES: Final = 2_000_000
_MOST_STEPS: Final = 2
"""Steps that are followed: the rest of the step that failed, and a whole one."""
_MOST_TIMES: Final = 2
"""Multiple of the allocations before the failure for which a program without steps is followed."""
_LEAST_FOLLOWED: Final = 10_000
_LEAST_MADE_BYTES: Final = 1 << 20
"""Least bytes of a block whose operator is kept."""
_MOST_INPUTS: Final = 8
_OF_ROWS: Final = ("aten::index", "aten::index_select", "aten::embedding", "aten::gather", "aten::take")
"""Operators that read no more of their first tensor than they return."""
_TRACER_FOLDER: Final = str(Path(__file__).parents[2])
_TORCH_FOLDER: Final = str(Path(torch.__file__).parent)


_LOOKS: Final = ((read_tensors, False), (overwritten_tensors, True))
"""Ways to find tensors of an operator's, and whether it overwrites these."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A look at a block, or at a part of it."""

    count: int  # Allocations by then
    row: int  # Of `_uses`
    step: int
    part: object  # Equal for looks at the same elements
    size_bytes: int  # Of these elements; 0 where they are overwritten


class UseWatch:
    """Notes which operator reads each block next, behind the request that failed in an earlier run of this program.

    Enter it before CUDA begins, and leave it when the program has ended: in between, the program may have dispatch
    modes of its own on top of this one, which leaving would take away. Far from the request an operator costs a call.
    """

    def __init__(self, device: int, num_allocations: int, *, when_done: Callable[[], None] = lambda: None) -> None:
        """Watch a device.

        Args:
            device: Index of the CUDA device.
            num_allocations: Allocations of the device before the request that failed.
            when_done: Called once, when the program has been followed far enough.
        """
        self._when_done = when_done
        self._device, self._until = torch.device("cuda", device), num_allocations
        self._mode: Any = watched(self._see)
        self._is_near = True  # Whether the failed request may come before the next step ends
        self._reads: dict[int, list[_Read]] = {}  # By address
        self._uses: dict[NextUse, int] = {}
        self._made: dict[int, tuple[int, int]] = {}  # By address: allocations by then, and row of `_makings`
        self._makings: dict[Making, int] = {}
        self._parts: dict[int, dict[object, int]] = {}  # By address: what was read before the request, with its bytes
        self._behind = 0  # Allocations when the operator that failed has ended; 0 before
        self._num_steps = 0  # Ended since the failed request, its own included
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
        if self._behind:
            self._num_steps += 1
            if self._num_steps >= _MOST_STEPS:
                self._end()
        else:
            self._is_near = self._allocated + 2 * self._of_last_step >= self._until
        return not self.is_done

    def is_reached_in(self, num_steps: int) -> bool:
        """True if so many further steps reach the request that failed, provided all are like the last."""
        return self._allocated + num_steps * self._of_last_step >= self._until

    def _count(self) -> int:
        counters = allocator_statistics(self._device) if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]
        return int(counters["allocation"]["all"]["allocated"]) if counters else 0

    def _see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self.is_done or not self._is_near or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        count, is_view = self._count(), may_be_view(name) and self._is_of_an_input(args, out)
        if not self._behind and not is_view:
            self._note_before(count, name, args, kwargs, out)
        if count <= self._until:
            return
        self._behind = self._behind or count
        use = None
        for find, overwrites in () if is_view else _LOOKS:
            for tensor in find(name, args, kwargs):
                if self._has(tensor):
                    use = use or self._use(name, out, fails=count == self._behind)
                    # The first argument is the one that `mul_` and its like write to.
                    of_tensor = replace(
                        use, overwrites=overwrites, can_be_in_place=tensor is args[0] and _has_in_place(name)
                    )
                    row = self._uses.setdefault(of_tensor, len(self._uses))
                    part, size = (None, 0) if overwrites else _part(name, tensor, args, out)
                    self._reads.setdefault(_address(tensor), []).append(_Read(count, row, self._num_steps, part, size))
        if not self._num_steps and count > self._until * (1 + _MOST_TIMES) + _LEAST_FOLLOWED:
            self._end()

    def _is_of_an_input(self, args: tuple[Any, ...], out: Any) -> bool:
        """True if what an operator returned lies in memory of its arguments."""
        given = {_address(each) for each in tensors_of(args) if self._has(each)}
        return any(self._has(each) and _address(each) in given for each in tensors_of([out]))

    def _has(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device and tensor.layout is torch.strided

    def _note_before(self, count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what an operator before the request, or the one that makes it, reads and makes of large blocks."""
        for tensor in read_tensors(name, args, kwargs):
            if self._has(tensor) and tensor.untyped_storage().nbytes() >= _LEAST_MADE_BYTES:
                part, size = _part(name, tensor, args, out)
                self._parts.setdefault(_address(tensor), {})[part] = size
        large = [each for each in tensors_of([out]) if self._has(each) and each.nbytes >= _LEAST_MADE_BYTES]
        inputs = [*tensors_of((*args, *kwargs.values()))] if large else []
        given = {_address(each) for each in inputs if self._has(each)}
        for result in large:
            if (address := _address(result)) not in given:
                known = (each for each in inputs[:_MOST_INPUTS] if each.layout is torch.strided)
                making = Making(name, tuple(map(_sized, known)), _sized(result))
                self._made[address] = count, self._makings.setdefault(making, len(self._makings))
                self._parts.pop(address, None)

    def _end(self) -> None:
        self.is_done = True
        self._when_done()

    def _use(self, name: str, out: Any, *, fails: bool) -> NextUse:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((_TRACER_FOLDER, _TORCH_FOLDER)):
            frame = frame.f_back
        return NextUse(
            file=frame.f_code.co_filename if frame is not None else "",
            line=frame.f_lineno if frame is not None else 0,
            operator=name,
            in_backward=running_node() is not None,
            overwrites=False,
            fails=fails,
            can_be_in_place=False,
            step=self._num_steps,
            leaves_bytes=sum(each.nbytes for each in tensors_of([out])),
        )

    def found(self, *, is_to_the_end: bool) -> LaterUses | None:
        """Return what was seen; None if the program did not come so far.

        Args:
            is_to_the_end: Whether the program has ended by itself.
        """
        if not self._behind:
            return None
        trace = allocator_snapshot(self._device)["device_traces"][self._device.index]
        num_unknown = self._count() - sum(entry["action"] == "alloc" for entry in trace)
        alive: dict[int, tuple[int, int]] = {}  # By address: number and size of the block
        blocks: list[tuple[int, ...]] = []
        number = num_unknown
        for entry in trace:
            if entry["action"] == "alloc":
                number += 1
                if number <= self._until + 1:  # with what the failed request is for
                    alive[entry["addr"]] = number, entry["size"]
            elif entry["action"] == "free_completed":
                block = alive.pop(entry["addr"], None)
                # The failed operator itself allocated and freed a block that no operator was given: a workspace.
                is_behind = number > self._behind or (number == self._behind and entry["addr"] in self._reads)
                if block is not None and is_behind:
                    blocks.append((*block, number, *self._of_block(entry["addr"], *block, number)))
        is_whole = is_to_the_end and not self.is_done
        blocks += [
            (*block, self._until, *self._of_block(address, *block, None, is_whole=is_whole))
            for address, block in alive.items()
        ]
        made, size, freed, use, is_last, read, making = zip(*sorted(blocks), strict=True) if blocks else ((),) * 7
        return LaterUses(
            distance=tuple(self._until + 1 - each for each in made),
            size_bytes=size,
            use=use,
            is_last=tuple(map(bool, is_last)),
            freed=tuple(each - self._until for each in freed),
            read_bytes=read,
            making=making,
            uses=tuple(self._uses),
            makings=tuple(self._makings),
            num_steps=self._num_steps,
            is_to_the_end=is_whole,
        )

    def _of_block(
        self, address: int, number: int, size_bytes: int, freed: int | None, *, is_whole: bool = True
    ) -> tuple[int, bool, int, int]:
        """Describe a block that lies at an address until so many blocks had been allocated, None for on and on.

        Args:
            is_whole: Whether all that reads the block was seen.

        Returns:
            The row of its next use, behind all rows if nothing uses it; whether that use is the last one; the bytes of
            it that are ever read, all of them where other parts may be read later; and the row of what made it.
        """
        reads = [read for read in self._reads.get(address, ()) if freed is None or read.count <= freed]
        rows = [read.row for read in reads]
        before = self._parts.get(address, {})
        parts = {**before, **{read.part: read.size_bytes for read in reads}}
        count, making = self._made.get(address, (0, len(self._makings)))
        return (
            rows[0] if rows else len(self._uses),
            len(rows) == 1,
            min(sum(parts.values()), size_bytes) if is_whole or self._are_steady(reads, before) else size_bytes,
            making if count >= number else len(self._makings),
        )

    def _are_steady(self, reads: Sequence[_Read], before: Collection[object]) -> bool:
        """True if the last step that was followed reads parts of a block that had been read before."""
        latest = {read.part for read in reads if read.step == _MOST_STEPS - 1}
        known = {*before, *(read.part for read in reads if read.step < _MOST_STEPS - 1)}
        return self._num_steps >= _MOST_STEPS and bool(latest) and latest <= known


@cache
def _has_in_place(name: str) -> bool:
    """True if an operator has a form that writes to its first argument, such as `aten::div_` of `aten::div`."""
    in_place = f"{name.partition('::')[2]}_"
    return operator(in_place) is not None or operator(in_place, "Tensor") is not None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _part(name: str, tensor: torch.Tensor, args: tuple[Any, ...], out: Any) -> tuple[object, int]:
    """The elements that an operator reads of a tensor, as a key for them, and their bytes."""
    size = _sized(tensor).size_bytes
    if name in _OF_ROWS and tensor is args[0]:
        return object(), min(size, out.nbytes)  # others each time
    return (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype), size


def _sized(tensor: torch.Tensor) -> Sized:
    own = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Sized(tuple(tensor.shape), dtype, math.prod(own) * tensor.element_size())
