"""The first bad commit or version on a terminal, with what changed at the peak."""

from __future__ import annotations

from rich.console import Console

from tracer.exporters.screen.diff import print_peak_diffs
from tracer.exporters.screen.text import say
from tracer.results.bisection import Bisection
from tracer.units import format_bytes, some


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
