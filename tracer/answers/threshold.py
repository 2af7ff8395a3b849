"""Allowed growth of a peak: a limit in bytes or in percent, as people write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracer.answers.difference import PeakDiff
from tracer.errors import UsageError
from tracer.units import GIB, KIB, MIB, format_bytes


@dataclass(frozen=True, slots=True)
class Threshold:
    """Allowed growth of a peak, in bytes or in percent of what it was."""

    bytes: int | None = None
    percent: float | None = None

    def is_exceeded_by(self, diff: PeakDiff) -> bool:
        """True if the peak grew by more than the threshold; exactly as much is not more."""
        if self.percent is not None:
            return diff.bytes * 100 > self.percent * diff.before_bytes
        assert self.bytes is not None
        return diff.bytes > self.bytes

    def sentence(self, device: str, diff: PeakDiff) -> str:
        """The reason why the limit is exceeded: `cpu: peak grew 50.7 %, the limit is 5 %`."""
        if self.percent is None:
            assert self.bytes is not None
            grown, limit = format_bytes(diff.bytes), format_bytes(self.bytes)
            if grown == limit:
                grown, limit = f"{diff.bytes:,} B", f"{self.bytes:,} B"
        elif not diff.before_bytes:
            grown, limit = f"from 0 B to {format_bytes(diff.bytes)}", f"{self.percent:g} %"
        else:
            percent, limit = 100 * diff.bytes / diff.before_bytes, f"{self.percent:g} %"
            digits = next((n for n in (1, 3, 6) if f"{percent:.{n}f}" != f"{self.percent:.{n}f}"), 9)
            grown = f"{percent:.{digits}f} %"
        return f"{device}: peak grew {grown}, the limit is {limit}."


def parse_threshold(text: str) -> Threshold:
    """Read `5%`, `100MiB`, `2 GiB`, `4096B` and the like."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|B|[KMGkmg]i?B?)?\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a threshold.", hint="Write a percentage or a size, as in 5% or 100MiB.")
    number, unit = float(match.group(1)), match.group(2)
    if unit is None:
        bare = text.strip()
        raise UsageError(
            f"A threshold of {bare} could be percent or bytes.", hint=f"Write {bare}%, {bare}MiB or {bare}B."
        )
    if unit == "%":
        return Threshold(percent=number)
    factor = {"b": 1, "k": KIB, "m": MIB, "g": GIB}[unit[0].lower()]
    return Threshold(bytes=round(number * factor))
