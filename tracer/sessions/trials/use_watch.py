"""What a program that failed does next with the blocks that it had then: seen where memory does not end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from tracer.capture.objects.later_uses import LaterUses, NextUse
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.capture.torch_private.torch_dispatch import overwritten_tensors, read_tensors, watched
from tracer.capture.torch_private.torch_graph import running_node
from tracer.capture.torch_private.torch_history import (
    allocator_snapshot,
    allocator_statistics,
    start_history_without_stacks,
)

_NEVER: Final = -1
_MAX_ENTRIES: Final = 2_000_000
_MOST_STEPS: Final = 2
"""Steps that are followed: the rest of the step that failed, and a whole one."""
_MOST_TIMES: Final = 2
"""Where no step ends, a program is followed for so many times the allocations before the failure."""
_LEAST_FOLLOWED: Final = 10_000
_OURS: Final = str(Path(__file__).parents[2])
_TORCHS: Final = str(Path(torch.__file__).parent)


class UseWatch:
    """Notes which operator reads each block next, behind the request that failed in an earlier run of this program.

    Operators are watched from the start, and again from the step in which that request is about to come: it costs
    some microseconds for each.
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
        self._mode: Any = None
        self._first: dict[int, tuple[int, int]] = {}  # By address: allocations by then, and row of `_uses`
        self._uses: dict[NextUse, int] = {}
        self._behind = 0  # Allocations when the operator that failed has ended; 0 before
        self._num_steps = 0  # Ended since the failed request, its own included
        self._allocated = self._of_last_step = 0
        self.is_done = False

    def begin(self) -> None:
        """Watch from where CUDA begins; called before it does."""
        when_cuda_has_begun(lambda: start_history_without_stacks(self._device, _MAX_ENTRIES))
        self._watch()

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
        elif self._allocated + 2 * self._of_last_step < self._until:
            self.stop()
        else:
            self._watch()
        return not self.is_done

    def is_reached_in(self, num_steps: int) -> bool:
        """Whether so many further steps come to the request that failed, if all are like the last."""
        return self._allocated + num_steps * self._of_last_step >= self._until

    def stop(self) -> None:
        """Watch no operator any more."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _watch(self) -> None:
        if self._mode is None:
            self._mode = watched(self._see)
            self._mode.__enter__()

    def _count(self) -> int:
        counters = allocator_statistics(self._device) if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]
        return int(counters["allocation"]["all"]["allocated"]) if counters else 0

    def _see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self.is_done or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        count = self._count()
        if count <= self._until:
            return
        self._behind = self._behind or count
        for find, overwrites in ((read_tensors, False), (overwritten_tensors, True)):
            use = None
            for tensor in find(name, args, kwargs):
                if tensor.device == self._device and (address := _address(tensor)) not in self._first:
                    use = use or self._use(name, overwrites=overwrites)
                    self._first[address] = count, self._uses.setdefault(use, len(self._uses))
        if not self._num_steps and count > self._until * (1 + _MOST_TIMES) + _LEAST_FOLLOWED:
            self._end()

    def _end(self) -> None:
        self.is_done = True
        self._when_done()

    def _use(self, name: str, *, overwrites: bool) -> NextUse:
        in_backward = running_node() is not None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCHS)):
            frame = frame.f_back
        if frame is None:
            return NextUse("", 0, name, in_backward, overwrites, self._num_steps)
        return NextUse(frame.f_code.co_filename, frame.f_lineno, name, in_backward, overwrites, self._num_steps)

    def found(self, *, is_to_the_end: bool) -> LaterUses | None:
        """Return what was seen; None if the program did not come so far.

        Args:
            is_to_the_end: Whether the program has ended by itself.
        """
        self.stop()
        if not self._behind:
            return None
        trace = allocator_snapshot(self._device)["device_traces"][self._device.index]
        num_unknown = self._count() - sum(entry["action"] == "alloc" for entry in trace)
        alive: dict[int, tuple[int, int]] = {}  # By address: number and size of the block
        blocks: list[tuple[int, int, int, int]] = []
        number = num_unknown
        for entry in trace:
            if entry["action"] == "alloc":
                number += 1
                if number <= self._until:
                    alive[entry["addr"]] = number, entry["size"]
            elif entry["action"] == "free_completed":
                block = alive.pop(entry["addr"], None)
                if block is not None and number > self._behind:  # else the failed operator itself freed it
                    blocks.append((*block, number, self._row(entry["addr"], number)))
        blocks += [(*block, self._until, self._row(address, None)) for address, block in alive.items()]
        blocks.sort()
        return LaterUses(
            distance=tuple(self._until + 1 - made for made, *_ in blocks),
            size_bytes=tuple(size for _, size, *_ in blocks),
            use=tuple(row if row != _NEVER else len(self._uses) for *_, row in blocks),
            freed=tuple(freed - self._until for _, _, freed, _ in blocks),
            uses=tuple(self._uses),
            num_steps=self._num_steps,
            is_to_the_end=is_to_the_end and not self.is_done,
        )

    def _row(self, address: int, freed: int | None) -> int:
        """Return the row of the next use of a block that lies there until so many blocks had been allocated."""
        count, row = self._first.get(address, (0, _NEVER))
        return row if freed is None or count <= freed else _NEVER


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
