"""A reason why memory is full, with the change that removes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from tracer.analysis.snapshots.changed_requests import Changed
from tracer.analysis.snapshots.modelled import Modelled
from tracer.analysis.snapshots.sites import Site


class GivesUp(IntEnum):
    """The price of a change to a program; the lower comes first."""

    NOTHING = 0
    """It lets go of what nobody needs."""
    A_LITTLE = 1
    """The same results by another operator, or in another order."""
    TIME_OR_SIZE = 2
    """Time, or a smaller batch, model or length."""
    UNKNOWN = 3
    """A line is named, and not how to change it."""


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """A cause of full memory with its change, which is not replayed yet."""

    name: str  # For scripts, such as `graphs kept`
    sentence: str  # What holds how much; empty where the change says it all
    change: str  # What to change, as an order: `call torch.cuda.empty_cache()`
    make: Callable[[Modelled], Changed]  # The recorded program with that change
    site: Site | None = None  # The line that it is about; None for none in particular
    gives_up: GivesUp = GivesUp.NOTHING
    grows: str = ""  # Why more memory will be wanted than what this request asks for, as `memory grows`
    postpones: bool = False  # Where that is so, the change serves this request alone
