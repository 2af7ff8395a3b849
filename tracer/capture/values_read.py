"""What a program read of a device that computes nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValueRead:
    """What one line read with one operator.

    Attributes:
        file: File of the innermost line outside torch; empty where no Python called.
        line: Its number; 0 likewise.
        function: It is in.
        operator: Such as `aten::nonzero`.
        count: How often.
        value: The last one, as text; where it decides a size, that size.
        known: How well the worst known of them is known: `exact`, `drawn` or `unknown`.
        answered: Whether it was given by `--answer`.
        decides_size: Whether it was the size of a result.
        num_empty: How many of those results were empty.
    """

    file: str
    line: int
    function: str
    operator: str
    count: int
    value: str
    known: str
    answered: bool
    decides_size: bool
    num_empty: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Operators whose results could not be computed.

    Attributes:
        reason: With the operator's name.
        count: How often.
    """

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ValuesRead:
    """All that was read until the results were put together.

    Attributes:
        reads: The reads, in the order in which they first happened.
        left_out: What could not be computed.
        num_compiled_buffers: Buffers of compiled code: what its kernels left there is unknown.
        unused_answers: Such as `train.py:12`, where nothing was read.
    """

    reads: tuple[ValueRead, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    num_compiled_buffers: int = 0
    unused_answers: tuple[str, ...] = ()
