"""Rehearsed savings beside measured ones, of every change that is listed and verified, on small models on the CPU.

python -m benchmarks.advice [fno gpt resnet lstm unet]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.advice.programs import PROGRAMS
from tracer.runs.advising import advise_on
from tracer.units import MIB

_TOLERATED_SHARE, _TOLERATED_BYTES = 0.05, MIB


def main(names: Sequence[str]) -> None:
    """Print a row for each change."""
    for name in names or list(PROGRAMS):
        report = advise_on(PROGRAMS[name], PROGRAMS[name](), verify=True)
        for row in (*report.rows, report.together):
            if row is None or row.measured is None:
                continue
            measured = row.measured.saves_bytes
            error = row.saves_bytes - measured
            is_near = abs(error) <= max(_TOLERATED_SHARE * measured, _TOLERATED_BYTES)
            print(
                f"{name:8} rehearsed {row.saves_bytes / MIB:8.2f} MiB, measured {measured / MIB:8.2f} MiB, "
                f"error {error / MIB:+6.2f} MiB {'near' if is_near else 'FAR '}  {row.change}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
