"""Removing hooks on optimizers' steps at any moment, also at the end of a step, when torch walks over them.

torch goes over its dictionary of hooks without a copy: a hook that goes meanwhile ends the user's step with
"OrderedDict mutated during iteration".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tracer.capture.torch_private import torch_modules

_LEFT: list[Callable[[], None]] = []


def remove_hooks(removes: Iterable[Callable[[], None]]) -> None:
    """Remove hooks that are deaf already; inside an optimizer's step they stay until the next call outside of one."""
    _LEFT.extend(removes)
    if not torch_modules.is_inside_step():
        while _LEFT:
            _LEFT.pop()()
