"""What a program read of a device that computes nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValueRead:
    """Values that one line read with one operator."""

    file: str  # File of the innermost line outside torch; empty where no Python called
    line: int  # Its number; 0 likewise
    function: str  # It is in
    operator: str  # Such as `aten::nonzero`
    count: int  # How often
    value: str  # The last one, as text; where it decides a size, that size
    known: str  # How well the worst known of them is known: `exact`, `drawn` or `unknown`
    answered: bool  # Whether it was given by `--answer`
    decides_size: bool  # Whether it was the size of a result
    num_empty: int  # How many of those results were empty


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Operators whose results could not be computed."""

    reason: str  # With the operator's name
    count: int  # How often


@dataclass(frozen=True, slots=True)
class ValuesRead:
    """All that was read until the results were put together."""

    reads: tuple[ValueRead, ...] = ()  # The reads, in the order in which they first happened
    left_out: tuple[LeftOut, ...] = ()  # What could not be computed
    num_compiled_buffers: int = 0  # Buffers of compiled code: what its kernels left there is unknown
    unused_answers: tuple[str, ...] = ()  # Such as `train.py:12`, where nothing was read
