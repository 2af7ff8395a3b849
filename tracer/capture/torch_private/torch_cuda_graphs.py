"""torch.cuda.CUDAGraph: when a graph is captured, by whatever means, and when it gives up its memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_Told = Callable[[Any], None]


def on_captures(*, begins: _Told, ended: _Told, was_reset: _Told) -> Callable[[], None]:
    """Have it called with the graph before a capture begins, after it has ended, well or not, and after a reset.

    torch's own hooks come with 2.15, and the first of them when the capture has begun, which forbids most of CUDA.

    Returns:
        What ends it.
    """
    kind: Any = torch.cuda.CUDAGraph
    originals = {name: kind.__dict__[name] for name in ("capture_begin", "capture_end", "reset")}

    def told(name: str, *, before: _Told | None = None, after: _Told | None = None) -> Callable[..., Any]:
        original = originals[name]

        @wraps(original)
        def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(graph)
            try:
                return original(graph, *args, **kwargs)
            finally:
                if after is not None:
                    after(graph)

        return call

    ours = {
        "capture_begin": told("capture_begin", before=begins),
        "capture_end": told("capture_end", after=ended),
        "reset": told("reset", after=was_reset),
    }
    for name, call in ours.items():
        setattr(kind, name, call)

    def end() -> None:
        for name, call in ours.items():
            if kind.__dict__.get(name) is call:  # else another has wrapped it since
                setattr(kind, name, originals[name])

    return end
