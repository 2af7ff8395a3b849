"""Search by `fit` for the least that makes a program fit: its result, its time, and `run --apply` of it.

    uv run python -m benchmarks.fit [--here] [--workers N] [NAME ...]

Each program of scripts/fit says in its first line its card and the least that makes it fit there, which is known from
how it is made; "nothing" where no change from outside helps. Right is this set, with the peak that `fit` said under
`run --apply`. Time is a processor's. With `--here` `run --apply` is on the GPU of this machine, of whose memory the
program gets that of its card: right is what fits there.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.causes import limited_to
from benchmarks.tables import as_markdown

_PROGRAMS = Path(__file__).parent / "scripts" / "fit"
_HEAD = re.compile(r'"""(.+); on (\S+): (.+)\."""')
_LIMIT_S = 40
"""Longest time of a search."""
_SAME_PEAK = "the same peak"


def _processor_s() -> float:
    """Processor seconds of all processes that were begun here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ran(*words: str, variables: dict[str, str] | None = None) -> None:
    subprocess.run([sys.executable, "-m", "tracer", *words], env=variables, capture_output=True, check=False)


def _judged(program: Path, here: bool) -> dict[str, str]:
    head = _HEAD.match(program.read_text())
    assert head is not None, f"{program.name} does not say its card and the least."
    _, card, least = head.groups()
    before_s = _processor_s()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _ran("fit", "--on", card, "--save-dir", name, str(program))
        used_s = _processor_s() - before_s
        report = json.loads((folder / "fit.json").read_text())
        found = ",".join(report["apply"] or ())
        if report["apply"] is None:
            return _row(program, least, "nothing", report, used_s, "-")
        (said,) = {trial["allocated_bytes"] for trial in report["trials"] if ",".join(trial["apply"]) == found}
        run = ("--apply", str(folder / "fit.json"), "--save-dir", str(folder / "run"), str(program))
        if here:
            _ran("run", *run, variables=limited_to(card))
        else:
            _ran("run", "--on", card, *run)
        ended = [json.loads(path.read_text()) for path in (folder / "run").rglob("peak.json")]
    peaks = [peak["peak_bytes"] for peak in ended]
    is_same = bool(peaks) and max(peaks) == said
    applied = _SAME_PEAK if is_same else f"{max(peaks, default=0):,} bytes where {said:,} were said"
    if any(peak["failure"] is not None for peak in ended):
        applied = f"out of memory: {applied}"
    return _row(program, least, found or "as it is", report, used_s, applied)


def _row(program: Path, least: str, found: str, report: dict[str, Any], used_s: float, applied: str) -> dict[str, str]:
    return {
        "program": program.stem,
        "least": least,
        "found": "right" if found == least else found,
        "trials": str(len(report["trials"])),
        "processor, s": f"{used_s:.1f}",
        "run --apply": applied,
    }


def main() -> int:
    """Print a row for each program; 1 if one is wrong or late."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs of scripts/fit; all by default")
    parser.add_argument("--here", action="store_true", help="`run --apply` on the GPU of this machine")
    parser.add_argument("--workers", type=int, default=1, help="programs at a time, whose time then says nothing")
    arguments = parser.parse_args()
    programs = sorted(_PROGRAMS.glob("*.py"))
    chosen = [program for program in programs if not arguments.names or program.stem in arguments.names]
    rows = []
    with ThreadPoolExecutor(arguments.workers) as pool:
        for row in pool.map(partial(_judged, here=arguments.here), chosen):
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    print(as_markdown([list(rows[0]), *(list(row.values()) for row in rows)]))
    right = sum(row["found"] == "right" and row["run --apply"] in (_SAME_PEAK, "-") for row in rows)
    late = sum(float(row["processor, s"]) > _LIMIT_S for row in rows)
    print(f"{right} of {len(rows)} right, {len(rows) - late} in under {_LIMIT_S} s")
    return int(right < len(rows) or late > 0)


if __name__ == "__main__":
    sys.exit(main())
