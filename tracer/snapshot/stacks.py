"""Turns the stacks of a snapshot into small numbers: a million entries have a few thousand distinct stacks."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from typing import Any

from tracer.errors import SnapshotError
from tracer.snapshot.text import spelled

Frames = list[Any]

NO_STACK = 0
COMPILE_CONTEXT = "??"  # The file of the frame that stands for a compiled region: as in C++, there is none
NO_CONTEXT = (None, "", "N/A")
_MAX_TRACE = 64
# A line of a traceback as Python writes it, outermost first.
_TRACE_LINE = re.compile(r'^[ \t]*File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\n]{1,400})$', re.MULTILINE)
_MAX_LINE = 2**31 - 1
_DAMAGED = "The file is damaged, or it is no allocator snapshot."
# On the null GPU, our kernels stand before torch's: without them a stack is what it is on a GPU. A thread of autograd's
# has no other line of Python in it, by which it is known.
_OUR_KERNELS = re.compile(r"(?:^|[/\\])tracer[/\\]null_gpu[/\\]values[/\\]\w+\.py$")


class StrangeStackError(Exception):
    """Something that should be a stack is not; the caller knows where and says so."""


class StackTable:
    """Gives every distinct stack a number, in the order of first appearance; 0 is the stack without frames.

    A dump shares one dict object among all equal frames that were symbolised together, so stacks are told apart by the
    identities of their frames. Two frames in the middle name a candidate, and comparing it costs a fifth of listing all
    identities, which is left to the stacks that share those two. Equal frames may still be different objects, therefore
    `by_value` settles the matter in the end, once for each distinct stack.
    """

    def __init__(self) -> None:
        self._stacks: list[Frames] = [[]]  # also keeps the frame objects alive, so that their ids stay theirs
        self._candidates: dict[int, tuple[Frames, int]] = {}
        self._by_identity: dict[tuple[int, ...], int] = {}

    def ids(self, stacks: Iterable[Frames | None]) -> array[int]:
        """The numbers of many stacks; None counts as empty."""
        candidates = self._candidates
        out: list[int] = []
        last: Frames | None = None
        last_id = NO_STACK
        # The hottest loop of a load. A free_completed mostly repeats the stack of its free_requested.
        for frames in stacks:
            if frames != last:
                last = frames
                if not frames:
                    last_id = NO_STACK
                elif type(frames) is not list:
                    raise StrangeStackError
                else:
                    depth = len(frames)
                    candidate = candidates.get(id(frames[depth >> 2]) * 3 + id(frames[depth >> 1]) + depth)
                    last_id = candidate[1] if candidate and candidate[0] == frames else self._id_of(frames)
            out.append(last_id)
        return array("i", out)

    def _id_of(self, frames: Frames) -> int:
        identity = tuple(map(id, frames))
        number = self._by_identity.get(identity)
        if number is None:
            number = self._by_identity[identity] = len(self._stacks)
            self._stacks.append(frames)
            depth = len(frames)
            key = id(frames[depth >> 2]) * 3 + id(frames[depth >> 1]) + depth
            self._candidates.setdefault(key, (frames, number))
        return number

    def by_value(self) -> dict[str, array[int] | list[str]]:
        """Distinct frames and stacks by value.

        Returns:
            `strings`; per frame `frame_name`, `frame_file` (indices into strings) and `frame_line`; per stack
            `stack_offset` [stacks + 1] into `stack_frame`; and `stack_of_id`, the stack of every number of `ids`.

        Raises:
            SnapshotError: Something in a stack is no frame.
        """
        frames = _FrameTable()
        stacks: dict[tuple[int, ...], int] = {}
        ids = (tuple(number for frame in s for number in frames.ids_of(frame)) for s in self._stacks)
        stack_of_id = array("i", [stacks.setdefault(stack, len(stacks)) for stack in ids])
        offsets, flat = array("q", [0]), array("i")
        for stack in stacks:
            flat.extend(stack)
            offsets.append(len(flat))
        return {**frames.columns(), "stack_offset": offsets, "stack_frame": flat, "stack_of_id": stack_of_id}


class Contexts:
    """Stacks with the compiled region that an entry was in as their outermost frame; the same region is one object."""

    def __init__(self) -> None:
        self._frames: dict[str, dict[str, Any]] = {}

    def stack_of(self, entry: dict[str, Any]) -> Any:
        """An entry's stack, as it is where it was in no region, or where the stack is no list."""
        frames, context = entry.get("frames"), entry.get("compile_context")
        if type(context) is not str or context in NO_CONTEXT or (frames is not None and type(frames) is not list):
            return frames
        region = self._frames.setdefault(context, {"name": context[:400], "filename": COMPILE_CONTEXT, "line": 0})
        return [*(frames or ()), region]


class _FrameTable:
    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[int, ...]] = {}
        self._by_value: dict[tuple[str, str, int], int] = {}

    def ids_of(self, frame: Any) -> tuple[int, ...]:
        """The number of a frame, and of the lines that it was generated for where it says them; none for our kernels.

        torch puts these lines behind a frame of Inductor's code by itself, and into the frame for code of torch.fx.
        """
        numbers = self._by_identity.get(id(frame))
        if numbers is None:
            value = self._value(frame)
            values = () if _OUR_KERNELS.search(value[1]) else (value, *self._original(frame))
            numbers = tuple(self._by_value.setdefault(value, len(self._by_value)) for value in values)
            self._by_identity[id(frame)] = numbers
        return numbers

    def _original(self, frame: dict[Any, Any]) -> list[tuple[str, str, int]]:
        """The lines of `fx_original_trace`, innermost first."""
        trace = frame.get("fx_original_trace")
        if type(trace) is not str:
            return []
        lines = _TRACE_LINE.findall(trace[-_MAX_TRACE * 1024 :])[-_MAX_TRACE:]
        return [(name, file, _line(int(line))) for file, line, name in reversed(lines)]

    def _value(self, frame: Any) -> tuple[str, str, int]:
        if type(frame) is not dict:
            raise SnapshotError(f"A stack frame is {spelled(frame)}, not a dict.", hint=_DAMAGED)
        name, file, line = frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)
        if type(name) is not str or type(file) is not str or type(line) is not int:
            words = ", ".join(map(spelled, (name, file, line)))
            raise SnapshotError(f"A stack frame has no name, file and line, but {words}.", hint=_DAMAGED)
        node = frame.get("fx_node_name")
        if type(node) is str and node:
            name = f"{name}, node {node[:200]}"
        return name, file, _line(line)

    def columns(self) -> dict[str, array[int] | list[str]]:
        strings: dict[str, int] = {}
        names, files, lines = array("i"), array("i"), array("i")
        for name, file, line in self._by_value:
            names.append(strings.setdefault(name, len(strings)))
            files.append(strings.setdefault(file, len(strings)))
            lines.append(line)
        return {"strings": list(strings), "frame_name": names, "frame_file": files, "frame_line": lines}


def _line(value: int) -> int:
    """The number of a line; 0 for one that C++ does not know, which it writes as 2**64 - 1, its -1."""
    return value if -1 <= value <= _MAX_LINE else 0
