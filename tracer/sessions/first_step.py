"""Record the first step of a program that may make no other; it is forgotten when a second one has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerAction

from tracer.capture.torch_private import torch_profiler
from tracer.capture.torch_private.torch_graph import running_node


class FirstStep:
    """A profiler of its own for the first step, and when the next one may begin to record."""

    def __init__(self, make_profiler: Callable[[Callable[[int], ProfilerAction]], Any]) -> None:
        self.profiler: Any = make_profiler(only_the_first)  # Records until `end` is called; None from then on
        self.is_kept = False  # Whether its recording is among the session's cycles
        self._regions = torch_profiler.OpenRegions()

    def __enter__(self) -> None:
        self._regions.start()
        self.profiler.__enter__()

    def end(self, *, is_kept: bool) -> None:
        """Stop recording; what was recorded is given to `on_trace_ready` if it is kept."""
        profiler, self.profiler, self.is_kept = self.profiler, None, is_kept
        if is_kept:
            profiler.step()
        else:
            profiler.on_trace_ready = None
        torch_profiler.end(profiler)

    def when_closed(self, begin: Callable[[], None]) -> None:
        """Call back when every region has closed that was opened since the beginning: at once if none is open.

        A region that was recorded writes its end into its recording, whose memory is free by then, if another one
        records. Inside of backward that is never called: an operator of torch's own is open there.
        """
        if running_node() is None:
            self._regions.when_closed(begin)

    def stop(self) -> None:
        """Call nothing back any more."""
        self._regions.stop()


def only_the_first(step: int) -> ProfilerAction:
    """The schedule of a profiler that records the first step."""
    return ProfilerAction.RECORD_AND_SAVE if step == 0 else ProfilerAction.NONE
