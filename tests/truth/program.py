"""What a program is to the harness, and the registry of them all."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tests.truth.storages import storages_in

T = TypeVar("T")
Builder = Callable[[], "Program"]
Ended = Callable[[object], None]
"""Called by a loop at the end of each step with what is compared, such as the loss."""


class Batch:
    """Which memory is the program's own batch, without keeping it alive."""

    def __init__(self) -> None:
        self._storages: list[weakref.ref[torch.UntypedStorage]] = []

    def of(self, value: T) -> T:
        """Say that these tensors are the batch from now on, and give them back."""
        self._storages = [weakref.ref(storage) for storage in storages_in(value)]
        return value

    def and_of(self, value: T) -> T:
        """Say that these belong to it as well."""
        self._storages += [weakref.ref(storage) for storage in storages_in(value)]
        return value

    def references(self) -> list[weakref.ref[torch.UntypedStorage]]:
        """One to each storage."""
        return list(self._storages)

    def storages(self) -> list[torch.UntypedStorage]:
        """Those that are alive."""
        return [storage for reference in self._storages if (storage := reference()) is not None]


@dataclass(eq=False)
class Program:
    """A training program of somebody's.

    Attributes:
        step: One step of training; what it returns is compared, such as the loss.
        loop: The program's own loop, of so many steps; where there is none, the harness calls `step` in one.
        model: What a user would give to a profiler.
        optimizers: The first is given to the profiler.
        batch: The step's inputs; None where the program cannot say.
        others: Further models that it holds, by name.
        parameters: Those that no model and no optimizer has.
        held: What else has to be kept for the program to run.
    """

    step: Callable[[], object]
    model: nn.Module | None = None
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    batch: Batch | None = field(default_factory=Batch)
    others: dict[str, nn.Module] = field(default_factory=dict)
    parameters: list[Tensor] = field(default_factory=list)
    held: object = None
    loop: Callable[[int, Ended], None] | None = None


class Provable(Enum):
    """What the bookkeeper can be asked about a program's peak."""

    EXACT = "every tensor is seen, and every allocation of a kernel"
    EAGER_TWIN = "compiled: what the allocator counts; of tensors, what lives from step to step in an eager twin"


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered program.

    Attributes:
        provable: What can be asked about its peak.
        saves: Whether hooks of saved tensors can be set: torch.func's gradients refuse them.
        threads: Whether others than the main thread compute, one at a time.
        chance_bytes: By how much the peak differs from run to run, by itself.
        slow: Whether it takes long.
        cycles: How many times some steps are recorded; what lay at an address in one says nothing of the next.
        needs: Packages that it imports.
        on_device: Whether it runs on a device alone.
        of_ranks: Whether it needs several ranks, which a GPU alone does not have.
        is_one_step: Whether its first step is the only one.
        fails: Whether its last step runs out of memory.
    """

    name: str
    build: Builder
    provable: Provable = Provable.EXACT
    saves: bool = True
    threads: bool = False
    chance_bytes: int = 0
    slow: bool = False
    cycles: int = 1
    needs: tuple[str, ...] = ()
    on_device: bool = False
    of_ranks: bool = False
    is_one_step: bool = False
    fails: bool = False


PROGRAMS: dict[str, Entry] = {}


def program(**properties: Any) -> Callable[[Builder], Builder]:
    """Enter a builder under its own name, with fields of `Entry`."""

    def enter(build: Builder) -> Builder:
        assert build.__name__ not in PROGRAMS
        PROGRAMS[build.__name__] = Entry(build.__name__, build, **properties)
        return build

    return enter


def there() -> torch.device:
    """Where the program trains: what it makes elsewhere, such as in a thread or of NumPy's memory, it brings there."""
    return torch.get_default_device()


def mlp(inputs: int = 64, hidden: int = 256, outputs: int = 32) -> nn.Sequential:
    """The network that needs no thought."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, *, clear_first: bool = False) -> Tensor:
    """Backward, optimizer, gradients away, or those of the step before; returns the loss without its graph."""
    if clear_first:
        optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if not clear_first:
        optimizer.zero_grad()
    return loss.detach()


def supervised(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    make_batch: Callable[[], tuple[Tensor, Tensor]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    call: Callable[[Tensor], Tensor] | None = None,
) -> Program:
    """Forward, loss, backward, optimizer, gradients away."""
    batch, forward = Batch(), model if call is None else call

    def step() -> Tensor:
        x, y = batch.of(make_batch())
        return descend(loss_of(forward(x), y), optimizer)

    return Program(step, model, [optimizer], batch)
