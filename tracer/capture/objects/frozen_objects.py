"""Tensors, modules and optimizers that a program has hidden from the garbage collector's list by `gc.freeze()`.

`gc.get_objects()` leaves frozen objects out. vLLM freezes all when its engine has started, the KV cache among them, and
servers that fork do so before. So `gc.freeze` is replaced while a profile runs, and notes weakly what is about to go.
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

_NOTED = (Tensor, torch.UntypedStorage, nn.Module, torch.optim.Optimizer)


class FrozenObjects:
    """Notes what is frozen while anybody has started it."""

    def __init__(self) -> None:
        self._num_starts = 0
        self._freeze: Callable[[], None] | None = None
        self._references: list[weakref.ref[Any]] = []

    def start(self) -> None:
        """Note what is frozen from now on; as often as it is called, `stop` has to be."""
        self._num_starts += 1
        if self._num_starts == 1:
            self._freeze = gc.freeze
            gc.freeze = self._note_and_freeze

    def stop(self) -> None:
        """Put `gc.freeze` back and forget all, if nobody else wants to know."""
        self._num_starts -= 1
        if not self._num_starts and self._freeze is not None:
            if gc.freeze == self._note_and_freeze:
                gc.freeze = self._freeze
            self._freeze = None
            self._references.clear()

    def alive(self) -> list[Any]:
        """Return the noted objects that are frozen and alive; without a Python call for each."""
        if not self._references:
            return []
        if not gc.get_freeze_count():  # the program has called gc.unfreeze
            self._references.clear()
            return []
        found = [thing for thing in map(operator.call, self._references) if thing is not None]
        return list({id(thing): thing for thing in found}.values())

    def _note_and_freeze(self) -> None:
        objects = gc.get_objects()
        wanted = {kind for kind in set(map(type, objects)) if issubclass(kind, _NOTED)}
        self._references += map(weakref.ref, compress(objects, map(wanted.__contains__, map(type, objects))))
        if self._freeze is not None:
            self._freeze()


FROZEN = FrozenObjects()
