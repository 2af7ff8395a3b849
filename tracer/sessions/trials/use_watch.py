"""Next uses that a failed program makes of its blocks, observed in a run without a memory limit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import torch

from tracer.capture.objects.later_uses import LaterUses, NextUse
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.capture.torch_private.torch_dispatch import operator, overwritten_tensors, read_tensors, watched
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
_TRACER_FOLDER: Final = str(Path(__file__).parents[2])
_TORCH_FOLDER: Final = str(Path(torch.__file__).parent)


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
        self._reads: dict[int, list[tuple[int, int]]] = {}  # By address: allocations by then, and row of `_uses`
        self._uses: dict[NextUse, int] = {}
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
        count = self._count()
        if count <= self._until:
            return
        self._behind = self._behind or count
        use = None
        for find, overwrites in ((read_tensors, False), (overwritten_tensors, True)):
            for tensor in find(name, args, kwargs):
                if tensor.device == self._device:
                    use = use or self._use(name, fails=count == self._behind)
                    # The first argument is the one that `mul_` and its like write to.
                    of_tensor = replace(
                        use, overwrites=overwrites, can_be_in_place=tensor is args[0] and _has_in_place(name)
                    )
                    row = self._uses.setdefault(of_tensor, len(self._uses))
                    self._reads.setdefault(_address(tensor), []).append((count, row))
        if not self._num_steps and count > self._until * (1 + _MOST_TIMES) + _LEAST_FOLLOWED:
            self._end()

    def _end(self) -> None:
        self.is_done = True
        self._when_done()

    def _use(self, name: str, *, fails: bool) -> NextUse:
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
        blocks: list[tuple[int, int, int, int, bool]] = []
        number = num_unknown
        for entry in trace:
            if entry["action"] == "alloc":
                number += 1
                if number <= self._until:
                    alive[entry["addr"]] = number, entry["size"]
            elif entry["action"] == "free_completed":
                block = alive.pop(entry["addr"], None)
                # The failed operator itself allocated and freed a block that no operator was given: a workspace.
                is_behind = number > self._behind or (number == self._behind and entry["addr"] in self._reads)
                if block is not None and is_behind:
                    blocks.append((*block, number, *self._next(entry["addr"], number)))
        blocks += [(*block, self._until, *self._next(address, None)) for address, block in alive.items()]
        made, size, freed, use, is_last = zip(*sorted(blocks), strict=True) if blocks else ((),) * 5
        return LaterUses(
            distance=tuple(self._until + 1 - each for each in made),
            size_bytes=size,
            use=use,
            is_last=is_last,
            freed=tuple(each - self._until for each in freed),
            uses=tuple(self._uses),
            num_steps=self._num_steps,
            is_to_the_end=is_to_the_end and not self.is_done,
        )

    def _next(self, address: int, freed: int | None) -> tuple[int, bool]:
        """Return the row of the next use of a block that lies there until so many blocks had been allocated.

        Returns:
            Behind all rows if nothing uses it; and whether that use is the last one.
        """
        rows = [row for count, row in self._reads.get(address, ()) if freed is None or count <= freed]
        return (rows[0], len(rows) == 1) if rows else (len(self._uses), False)


@cache
def _has_in_place(name: str) -> bool:
    """True if an operator has a form that writes to its first argument, such as `aten::div_` of `aten::div`."""
    in_place = f"{name.partition('::')[2]}_"
    return operator(in_place) is not None or operator(in_place, "Tensor") is not None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
