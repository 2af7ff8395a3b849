"""Next uses that a failed program makes of its blocks, and what made these, observed in a run without a limit."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeAlias

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

_MAX_ENTRIES: Final = 2_000_000
_MOST_STEPS: Final = 2
"""Steps that are followed: the rest of the step that failed, and a whole one."""
_MOST_TIMES: Final = 2
"""Multiple of the allocations before the failure for which a program without steps is followed."""
_LEAST_FOLLOWED: Final = 10_000
_MOST_DRIFT: Final = 4
_LEAST_DRIFT: Final = 1_000
"""Allocations, and one in so many, by which a run may come later to the request."""
_LEAST_MADE_BYTES: Final = 1 << 20
"""Least bytes of a block whose operator is kept."""
_MOST_INPUTS: Final = 8
_OF_ROWS: Final = ("aten::index", "aten::index_select", "aten::embedding", "aten::gather", "aten::take")
"""Operators that read no more of their first tensor than they return."""
_VIEWS: Final = ("aten::_unsafe_view", "aten::_reshape_alias")
"""Operators that return a view though their schema does not say so."""
_KEEP_ROWS: Final = ("aten::mm", "aten::bmm", "aten::constant_pad_nd")
"""Operators that make each row of a result of the row of their first tensor."""
_TRACER_FOLDER: Final = str(Path(__file__).parents[2])
_TORCH_FOLDER: Final = str(Path(torch.__file__).parent)


_LOOKS: Final = ((read_tensors, False), (overwritten_tensors, True))
"""Ways to find tensors of an operator's, and whether it overwrites these."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Elements of a block that an operator reads."""

    key: object  # Equal for looks at the same elements
    size_bytes: int  # 0 where they are overwritten
    are_rows: bool = False  # Whether these are whole rows


@dataclass(frozen=True, slots=True)
class _Read:
    """A look at a block, or at a part of it."""

    count: int  # Allocations by then
    row: int  # Of `_uses`
    step: int
    part: _Part
    into: int = 0  # Address of the result that has a value for each element, or a row for each row; 0 for none
    of_rows: bool = False  # Whether it is the latter


_NOTHING: Final = _Part(None, 0)
_NEVER: Final = -1


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
        self._device, self._until = torch.device("cuda", device), num_allocations
        self._requested_bytes = requested_bytes
        self._ends: list[int] = []  # Allocations when an operator behind that many has ended, where it made some
        self._mode: Any = watched(self._see)
        self._is_near = True  # Whether the failed request may come before the next step ends
        self._reads: dict[int, list[_Read]] = {}  # By address
        self._uses: dict[NextUse, int] = {}
        self._made: dict[int, list[tuple[int, int]]] = {}  # By address: allocations by then, and row of `_makings`
        self._makings: dict[Making, int] = {}
        self._before: dict[int, dict[tuple[object, int], _Read]] = {}  # By address: looks before the request
        self._behind = 0  # Allocations when the operator that failed has ended; 0 before
        self._num_steps = 0  # Ended since the failed request, its own included
        self._step_ends: list[int] = []  # Allocations when they did
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
            self._step_ends.append(self._allocated)
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
        count, is_view = self._count(), (may_be_view(name) or name in _VIEWS) and self._is_of_an_input(args, out)
        if not is_view:
            self._note_made(count, name, args, kwargs, out)
        if count <= self._until:
            return
        self._behind = self._behind or count
        if not self._ends or count > self._ends[-1]:
            self._ends.append(count)
        use = None
        for find, overwrites in () if is_view else _LOOKS:
            for tensor in find(name, args, kwargs):
                if self._has(tensor):
                    use = use or self._use(name, out)
                    # The first argument is the one that `mul_` and its like write to.
                    of_tensor = replace(
                        use, overwrites=overwrites, can_be_in_place=tensor is args[0] and _has_in_place(name)
                    )
                    row = self._uses.setdefault(of_tensor, len(self._uses))
                    read = self._read(count, row, name, tensor, args, out, overwrites=overwrites)
                    self._reads.setdefault(_address(tensor), []).append(read)
        if not self._num_steps and count > self._until * (1 + _MOST_TIMES) + _LEAST_FOLLOWED:
            self._end()

    def _is_of_an_input(self, args: tuple[Any, ...], out: Any) -> bool:
        """True if what an operator returned lies in memory of its arguments."""
        given = {_address(each) for each in tensors_of(args) if self._has(each)}
        return any(self._has(each) and _address(each) in given for each in tensors_of([out]))

    def _has(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device and tensor.layout is torch.strided

    def _note_made(self, count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what an operator makes of large blocks; and what it reads of them, before the request."""
        for tensor in () if self._behind else read_tensors(name, args, kwargs):
            if self._has(tensor) and tensor.untyped_storage().nbytes() >= _LEAST_MADE_BYTES:
                read = self._read(count, -1, name, tensor, args, out)
                self._before.setdefault(_address(tensor), {})[read.part.key, read.into] = read
        large = [each for each in tensors_of([out]) if self._has(each) and each.nbytes >= _LEAST_MADE_BYTES]
        inputs = [*tensors_of((*args, *kwargs.values()))] if large else []
        given = {_address(each) for each in inputs if self._has(each)}
        for result in large:
            if (address := _address(result)) not in given:
                known = (each for each in inputs[:_MOST_INPUTS] if each.layout is torch.strided)
                making = Making(name, tuple(map(_sized, known)), _sized(result), *_place())
                row = self._makings.setdefault(making, len(self._makings))
                self._made.setdefault(address, []).append((count, row))
                if not self._behind:
                    self._before.pop(address, None)

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
    ) -> _Read:
        part = _NOTHING if overwrites else _part(name, tensor, args, out)
        is_kept = isinstance(out, torch.Tensor) and self._has(out) and out.nbytes >= _LEAST_MADE_BYTES
        keeps_all = is_kept and is_by_elements(name) and out.numel() == tensor.numel()
        keeps_rows = is_kept and name in _KEEP_ROWS and tensor is args[0]
        into = _address(out) if (keeps_all or keeps_rows) and _address(out) != _address(tensor) else 0
        return _Read(count, row, self._num_steps, part, into, of_rows=keeps_rows)

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
        number = self._count() - sum(entry["action"] == "alloc" for entry in trace)
        if not number and self._requested_bytes:
            self._find_request(trace)
        alive: dict[int, tuple[int, int]] = {}  # By address: number and size of the block
        lives: list[_Life] = []
        for entry in trace:
            address = entry["addr"]
            if entry["action"] == "alloc":
                number += 1
                alive[address] = number, entry["size"]
            elif entry["action"] == "free_completed" and (block := alive.pop(address, None)) is not None:
                # The failed operator itself allocated and freed a block that no operator was given: a workspace.
                is_behind = number > self._behind or (number == self._behind and address in self._reads)
                if is_behind and (block[0] <= self._until + 1 or block[1] >= _LEAST_MADE_BYTES):
                    lives.append(_Life(address, *block, number))
        lives += [_Life(address, *block, None) for address, block in alive.items()]
        is_whole = is_to_the_end and not self.is_done
        blocks: list[tuple[int, ...]] = []
        large: list[tuple[int, int, int, int, int, int]] = []
        needed: _Needed = {}
        for life in sorted(lives, key=lambda life: -life.number):  # a result before what it is made of
            use, is_last, read_bytes, making, are_rows = self._of_block(life, needed, is_whole=is_whole)
            needed.setdefault(life.address, []).append((life, read_bytes / max(life.size_bytes, 1), are_rows))
            freed = self._until if life.freed is None else life.freed
            made, freed = self._until + 1 - life.number, freed - self._until
            if made >= 0:
                blocks.append((made, life.size_bytes, use, is_last, freed, read_bytes, making))
            if life.size_bytes >= _LEAST_MADE_BYTES:
                large.append((max(made, 0), max(-made, 0), freed, life.size_bytes, making, read_bytes))
        distance, size, uses, last, freed_at, read, makings = zip(*blocks[::-1], strict=True) if blocks else ((),) * 7
        return LaterUses(
            distance=distance,
            size_bytes=size,
            use=tuple(len(self._uses) if row == _NEVER else row for row in uses),
            is_last=last,
            freed=freed_at,
            read_bytes=read,
            making=makings,
            uses=tuple(self._uses),
            makings=tuple(self._makings),
            num_steps=self._num_steps,
            is_to_the_end=is_whole,
            large=tuple(large[::-1]),
        )

    def _find_request(self, trace: Sequence[Mapping[str, Any]]) -> None:
        """Take the request before which as much was in use as before the one that failed, where that is a later one."""
        number = in_use_bytes = 0
        most = self._until + self._until // _MOST_DRIFT + _LEAST_DRIFT
        for entry in trace:
            if entry["action"] == "alloc":
                number += 1
                if number > self._until and in_use_bytes == self._requested_bytes:
                    break
                in_use_bytes += entry["size"]
            elif entry["action"] == "free_completed":
                in_use_bytes -= entry["size"]
        behind = next((end for end in self._ends if end >= number), 0)
        is_of_step = not self._step_ends or behind <= self._step_ends[0]
        if self._until < number <= most and in_use_bytes == self._requested_bytes and behind and is_of_step:
            self._until, self._behind = number - 1, behind

    def _of_block(self, life: _Life, needed: _Needed, *, is_whole: bool) -> tuple[int, bool, int, int, bool]:
        """Describe a block.

        Args:
            needed: Of the blocks made after it.
            is_whole: Whether all that reads the block was seen, where it is never freed.

        Returns:
            The row of its next use, behind all rows if nothing uses it; whether that use is the last one; the bytes of
            it that are ever read, all of them where other parts may be read later; the row of what made it; and
            whether these bytes are whole rows.
        """
        at = self._reads.get(life.address, ())
        seen = [read for read in at if life.number <= read.count and (life.freed is None or read.count <= life.freed)]
        reads = [read for read in seen if read.count >= self._behind]
        before = [read for read in self._before.get(life.address, {}).values() if read.count >= life.number]
        looks = [*before, *seen]
        shares = [_share(read, needed) for read in looks]
        parts: dict[object, int] = {}
        for read, (share, _) in zip(looks, shares, strict=True):
            whole = read.part.size_bytes
            parts[read.part.key] = min(parts.get(read.part.key, 0) + math.ceil(whole * share), whole)
        made = (row for count, row in self._made.get(life.address, ()) if count >= life.number)
        is_known = is_whole or life.freed is not None or self._are_steady(reads, before)
        return (
            self._row_of(reads[0]) if reads else _NEVER,
            len(reads) == 1,
            min(sum(parts.values()), life.size_bytes) if is_known else life.size_bytes,
            next(made, len(self._makings)),
            all(are_rows for _, are_rows in shares),
        )

    def _row_of(self, read: _Read) -> int:
        """The row of a use; that of the failed operator's own is another one."""
        if read.count != self._behind:
            return read.row
        use = next(itertools.islice(self._uses, read.row, None))
        return self._uses.setdefault(replace(use, fails=True), len(self._uses))

    def _are_steady(self, reads: Sequence[_Read], before: Collection[_Read]) -> bool:
        """True if the last step that was followed reads parts of a block that had been read before."""
        latest = {read.part.key for read in reads if read.step == _MOST_STEPS - 1}
        known = {read.part.key for read in before} | {read.part.key for read in reads if read.step < _MOST_STEPS - 1}
        return self._num_steps >= _MOST_STEPS and bool(latest) and latest <= known


@dataclass(frozen=True, slots=True)
class _Life:
    """A block, by allocations until it was made, and until it was freed; None if it never was."""

    address: int
    number: int
    size_bytes: int
    freed: int | None


_Needed: TypeAlias = dict[int, list[tuple[_Life, float, bool]]]
"""Blocks by address, each with the share that is ever read, and whether that is of whole rows."""


def _share(read: _Read, needed: _Needed) -> tuple[float, bool]:
    """The share of what an operator read that its result is ever read for, and whether that is of whole rows."""
    if not read.into:
        return 1.0, read.part.are_rows
    found = (
        (share, are_rows)
        for life, share, are_rows in needed.get(read.into, ())
        if life.number <= read.count and (life.freed is None or read.count <= life.freed)
    )
    share, are_rows = next(found, (1.0, False))
    return (1.0, True) if read.of_rows and not are_rows else (share, are_rows)


def _place() -> tuple[str, int]:
    """File and line of the program's innermost function; nothing where there is none, as in a backward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TRACER_FOLDER, _TORCH_FOLDER)):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


@cache
def _has_in_place(name: str) -> bool:
    """True if an operator has a form that writes to its first argument, such as `aten::div_` of `aten::div`."""
    in_place = f"{name.partition('::')[2]}_"
    return operator(in_place) is not None or operator(in_place, "Tensor") is not None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _part(name: str, tensor: torch.Tensor, args: tuple[Any, ...], out: Any) -> _Part:
    """The elements that an operator reads of a tensor."""
    size = _sized(tensor).size_bytes
    if name in _OF_ROWS and tensor is args[0]:
        are_rows = tensor.dim() > 1 and out.dim() > 0 and out.shape[-1] == tensor.shape[-1]
        return _Part(object(), min(size, out.nbytes), are_rows)  # others each time
    are_rows = tensor.dim() > 1 and tensor.stride(-1) == 1 and tensor.stride(-2) == tensor.shape[-1]
    return _Part((tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype), size, are_rows)


def _sized(tensor: torch.Tensor) -> Sized:
    own = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Sized(tuple(tensor.shape), dtype, math.prod(own) * tensor.element_size())
