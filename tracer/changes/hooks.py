"""Changes of a running program, made from outside by hooks on its modules and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import nn


class Reached(IntEnum):
    """Progress of a program."""

    START = 0
    CALL = 1
    """A module has been called."""
    STEP = 2
    """An optimizer has made a step."""


class Hooks:
    """Makes a change while a program runs. A subclass overrides what it needs, and names the change, as `makes`."""

    of: ClassVar[dict[str, type[Hooks]]] = {}
    """The subclass that makes each change, by its name."""
    known_after: ClassVar[Reached] = Reached.STEP
    """From when on a change that was not made is one that cannot be."""
    note = ""  # Why it was not made, a sentence; empty for a change that is always made
    in_script = ""  # What would do the same in the script, a sentence, or nothing

    def __init_subclass__(cls, *, makes: str | None = None) -> None:
        if makes is not None:
            Hooks.of[makes] = cls

    def __init__(self) -> None:
        self.is_on = True  # Whether to make it; False while it is not known yet which changes to make
        self.num_made = 0  # How often it was made by now

    def why_not(self) -> str:
        """Return why the change could not be made, a sentence; empty where it was."""
        return "" if self.num_made else self.note

    def early(self) -> AbstractContextManager[None]:
        """Return what to enter at once, even before it is known whether to make the change."""
        return nullcontext()

    def entered(self) -> AbstractContextManager[None]:
        """Return what to enter as soon as that is known."""
        return nullcontext()

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Change a model that is about to be called for the first time.

        Args:
            blocks: Its repeated blocks, without those that have been called before.
        """

    def in_call(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Return what to enter for one call of a model, if anything."""
        return None

    def before_call(self, module: nn.Module) -> None:
        """Prepare for the call of any module, in others or not."""

    def after_call(self, module: nn.Module, output: Any) -> Any:
        """Return what the call is to return.

        Args:
            output: What forward returned; None where it raised.
        """
        return output

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Prepare for a step of an optimizer."""

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Follow a step of an optimizer."""
