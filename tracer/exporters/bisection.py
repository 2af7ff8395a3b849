"""The first commit, or the first version of a package, with which a script needs more memory: screen and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from tracer.analysis.peak_diff import PeakDiff, SavedPeak, diff_peaks
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.peak import diff_device
from tracer.exporters.screen.diff import print_peak_diffs
from tracer.exporters.screen.text import say
from tracer.units import format_bytes, some

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Bisection:
    """The last good point and the first bad one, with their peaks."""

    point: str  # The word for a point: commit, version, or change
    good: str
    bad: str
    unknown: tuple[str, ...]  # Points between the two at which the script cannot run
    num_measured: int
    num_points: int  # Both ends included
    good_peak: SavedPeak
    bad_peak: SavedPeak | None  # None where memory runs out
    merged: str | None = None  # Range of the commits that the first bad one merged

    @property
    def diff(self) -> PeakDiff | None:
        """The changes at the peak; None where the bad point has no peak."""
        return None if self.bad_peak is None else diff_peaks(self.good_peak, self.bad_peak)


def print_bisection(found: Bisection, console: Console, *, top: int) -> None:
    """Print the answer and the rows of `diff`."""
    measured = f"{found.num_measured} of {some(found.num_points, found.point)} measured"
    if found.unknown:
        say(console, f"The first bad {found.point} is one of {len(found.unknown) + 1} ({measured}):", style="bold")
        for name in found.unknown:
            say(console, f"{name} (the script does not run)", indent=2)
        say(console, found.bad, indent=2)
    else:
        say(console, f"The first bad {found.point} ({measured}):", style="bold")
        say(console, found.bad, indent=2)
    say(console, f"The last good {found.point}:", style="bold")
    say(console, found.good, indent=2)
    say(console)
    if (diff := found.diff) is not None:
        print_peak_diffs([diff], console, before=found.good, after=found.bad, top=top)
        return
    say(
        console,
        f"Peak {format_bytes(found.good_peak.bytes)} -> out of memory. Name a card with more memory to compare.",
    )


def bisection_json(found: Bisection) -> dict[str, Any]:
    """Return the JSON of a bisection; docs/files.md describes its keys."""
    diff = found.diff
    return {
        **json_header("bisect", _VERSION, computed=False),
        "point": found.point,
        "first_bad": found.bad,
        "last_good": found.good,
        "unknown": list(found.unknown),
        "num_measured": found.num_measured,
        "num_points": found.num_points,
        "good_peak_bytes": found.good_peak.bytes,
        "bad_peak_bytes": None if found.bad_peak is None else found.bad_peak.bytes,
        "devices": [] if diff is None else [diff_device(diff)],
    }
