"""Uses and origins of the blocks at a failure, seen where the same program ran again without an end; without torch.

Two runs on the null GPU ask for the same blocks in the same order, so that a block of the second run is named by the
number of allocations between it and the request that failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NextUse:
    """A place in the program that reads blocks next, or overwrites them."""

    file: str  # Empty where no line of the program is known, as in a backward
    line: int
    operator: str  # As `aten::mm`
    in_backward: bool
    overwrites: bool  # Whether it writes without a look at the values, as `zero_`
    fails: bool  # Whether it is the operator whose request failed
    can_be_in_place: bool  # Whether there is an operator of the same name that writes to its first argument
    step: int  # Steps that ended between the failed request and the read; 0 for the step that failed
    leaves_bytes: int = 0  # Of what the operator returned


@dataclass(frozen=True, slots=True)
class Sized:
    """A tensor that an operator was given, or made."""

    shape: tuple[int, ...]
    dtype: str  # As `float32`
    size_bytes: int  # Of its elements, each once: of an expanded tensor less than its shape has

    @property
    def num_elements(self) -> int:
        """Number of elements that its shape has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Making:
    """An operator with the tensors that it made a block of."""

    operator: str  # As `aten::mm`
    inputs: tuple[Sized, ...]
    result: Sized  # The one with that block
    file: str = ""  # Of the line of the program that called it; empty where none is known, as in a backward
    line: int = 0
    by_elements: bool = False  # Whether each element of the result is made of one of each tensor
    copied_bytes: int = 0  # Of the values that the result only repeats, joins or picks; 0 where it computes

    @property
    def num_rows(self) -> int:
        """The first axis of the result; 0 for a single number."""
        return self.result.shape[0] if self.result.shape else 0

    def has_rows(self, number: int) -> bool:
        """True if the result has so many rows, or so many times some number."""
        return self.num_rows > 0 and self.num_rows % number == 0


@dataclass(frozen=True, slots=True)
class LargeBlocks:
    """Large blocks that were there at the failed request, or were made behind it, in order."""

    made: tuple[int, ...] = ()  # [L] allocations up to the block, itself included
    freed: tuple[int, ...] = ()  # [L] allocations until it was freed; 0 if it never was
    size_bytes: tuple[int, ...] = ()  # [L] as requested
    making: tuple[int, ...] = ()  # [L] row of `makings`, as in `LaterUses`
    read_bytes: tuple[int, ...] = ()  # [L] likewise

    def __post_init__(self) -> None:
        columns = self.made, self.freed, self.size_bytes, self.making, self.read_bytes
        if len(set(map(len, columns))) > 1:
            raise ValueError("columns differ in length")


@dataclass(frozen=True, slots=True)
class LaterUses:
    """Blocks that were in use at the failed request and after the operator that made it, with their next use.

    Example: `distance=(4,), uses=(), use=(0,), is_last=(False,), freed=(9,)`: the block four allocations before the
    failed request is not read again, and is freed when nine more have been allocated.
    """

    distance: tuple[int, ...]  # [B] allocations from the block until the failed request; 0 for what that one made
    size_bytes: tuple[int, ...]  # [B] as requested
    use: tuple[int, ...]  # [B] row of `uses`; their number if nothing reads the block before it is freed
    is_last: tuple[bool, ...]  # [B] nothing reads the block after that use
    freed: tuple[int, ...]  # [B] allocations from the failed request until it is freed; 0 if it never is
    # [B] most of its bytes that are ever read, or made into results that are; all where that is not known
    read_bytes: tuple[int, ...]
    making: tuple[int, ...]  # [B] row of `makings`; their number where no operator was seen to make the block
    uses: tuple[NextUse, ...]
    makings: tuple[Making, ...]
    num_steps: int  # Steps that were followed to their end, from the step that failed
    is_to_the_end: bool  # Whether the program was followed to its end
    request: int = 0  # Allocations up to the one that failed, itself included
    large: LargeBlocks = LargeBlocks()
    ahead_bytes: tuple[int, ...] = ()  # [B] of `read_bytes`, those from the failed request on; none where not noted

    @property
    def horizon(self) -> str:
        """Words for the point up to which the program was followed."""
        if self.is_to_the_end:
            return "to the program's end"
        return "in the rest of this step" if self.num_steps < 2 else "in the rest of this step and the next one"


@dataclass(frozen=True, slots=True)
class SecondRun:
    """A second run of the program that failed, with memory that does not end."""

    need: tuple[str, ...]  # Sentences on how much memory it takes
    missing_bytes: int = 0  # Bytes of the blocks that it needs at once, beyond those that there are
    uses: LaterUses | None = None  # None where the two runs cannot be compared
    peak_bytes: int = 0  # The blocks that it needs at once; 0 where that is not known
    grows: bool = False  # Whether each of its last steps left more in use
    reserved_bytes: int = 0  # At its peak; 0 where that is not known
