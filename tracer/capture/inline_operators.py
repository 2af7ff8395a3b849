"""Places operators that make no call, such as `a + b`, between the calls around them, and so on a line of their own."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracer.capture.operator_lines import function_source, source_text
from tracer.capture.source_files import is_user_code, whole_path

Ints = npt.NDArray[np.int64]
Frame = tuple[str, int, str]


def inline_frames(
    ops: Sequence[tuple[int, str, int, int, int]],
    call_parent: Ints,
    call_start_ns: Ints,
    call_frame: Ints,
    call_function: Ints,
    frames: Sequence[Frame],
    *,
    text_of: Callable[[str], str],
) -> Iterator[tuple[int, Frame]]:
    """Find the lines of operators that ran in a Python function itself.

    Args:
        ops: In order, per operator its row, name, enclosing call, start in ns, and the frame of the last call or -1.
        call_parent: [C] Row of the enclosing call, or -1.
        call_start_ns: [C]
        call_frame: [C] Where each was called from, a row of `frames`.
        call_function: [C] The function called, a row of `frames` with its first line, or -1.
        frames: File, line and function, as recorded.
        text_of: The source of a file of the user's; "" for others, and where there is none.

    Yields:
        Row and place, for those operators whose line the source tells.
    """
    inside = _CallsInside(call_parent, call_start_ns, call_frame)
    counted: dict[tuple[int, int, str], int] = defaultdict(int)
    for row, name, call, start_ns, last in ops:
        function = int(call_function[call])
        file, first_line, called = frames[function] if function >= 0 else ("", 0, "")
        text = text_of(file) if file else ""
        if not text:
            continue
        num_before, following = inside.around(call, start_ns)
        number = counted[call, num_before, name]
        counted[call, num_before, name] += 1
        around = [frames[frame] if frame >= 0 else None for frame in (last, following)]
        if any(frame is not None and (frame[0], frame[2]) != (file, called) for frame in around):
            continue  # called from elsewhere, as hooks are
        source = function_source(text, first_line, called)
        if source is None:
            continue
        after, before = (frame[1] if frame is not None else None for frame in around)
        line = source.line_of(name, after=after, before=before, number=number)
        if line is not None:
            yield row, (file, line, called)


def user_text(file: str) -> str:
    """The source of a file of the user's, as this process has it; "" for others."""
    return source_text(whole_path(file)) if is_user_code(file) else ""


class _CallsInside:
    """The calls that each call makes, in order."""

    def __init__(self, parent: Ints, start_ns: Ints, frame: Ints) -> None:
        order = np.lexsort((start_ns, parent))
        self._parent = parent[order]
        self._start_ns = start_ns[order].tolist()
        self._frame = frame[order].tolist()

    def around(self, call: int, time_ns: int) -> tuple[int, int]:
        """How many calls it has made by then, and from which frame it makes the next one; -1 if it makes none."""
        first, end = (int(np.searchsorted(self._parent, call, side)) for side in ("left", "right"))
        at = bisect_right(self._start_ns, time_ns, first, end)
        return at - first, self._frame[at] if at < end else -1
