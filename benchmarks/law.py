"""The law of sizes beside runs at sizes that it has not seen, for the programs of `scripts/sizes.py`.

    uv run python -m benchmarks.law [NAME ...] [--seen N] [--keep FOLDER]

Each program's law is found as `predict --law` finds it, for a batch of 2 to 64 and a sample of 16 to 256; then the
program runs at further sizes, and both peaks are compared. A run is a fork of one process on the null GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from benchmarks.scripts.sizes import PROGRAMS
from benchmarks.tables import as_markdown
from tracer.allocator.law import Sizes
from tracer.answers.law import CheckedRun, SizedRun, find_law, run_of
from tracer.commands.fit_trials import answer_trial
from tracer.commands.on_card import OnOptions
from tracer.commands.script import Script
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.process import restart_on
from tracer.sessions.trials.trial_channel import TrialRequest, answer_name, history_name

CARD = "h100"
NAMES, RANGES = ("batch_size", "size"), ((2, 64), (16, 256))
_SCRIPT = Path(__file__).parent / "scripts" / "sizes.py"


def runner(program: str, keep: Path) -> Callable[[Sizes], SizedRun]:
    """Return what runs a program at some sizes, once; the results stay in a folder."""

    def run(at: Sizes) -> SizedRun:
        folder = keep / f"{program}-{'-'.join(map(str, at))}"
        answer, history = folder / answer_name(0), folder / history_name(0)
        if not answer.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _run_in_fork(program, at, folder)
        if not answer.exists():
            raise RuntimeError(f"{program} leaves no answer at {at}: {(folder / 'output').read_text()[-2000:]}")
        peaks = json.loads(answer.read_text())
        found = run_of(at, history, peaks["allocated"], peaks["reserved"])
        assert found is not None
        return found

    return run


def _run_in_fork(program: str, at: Sizes, folder: Path) -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        words = [program, "--batch-size", str(at[0]), "--size", str(at[1])]
        request = TrialRequest((), str(folder), is_limited=False, is_recorded=True)
        script = Script(str(_SCRIPT), words, is_module=False)
        answer_trial(asdict(request), CARD, OnOptions(on=CARD), script)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def row_of(program: str, num_seen: int, keep: Path) -> tuple[list[str], list[CheckedRun]]:
    """Return a program's row, and its runs at sizes that the law has not seen."""
    run, seen = runner(program, keep), list[Sizes]()

    def noted(at: Sizes) -> SizedRun:
        seen.append(at)
        return run(at)

    found = find_law(NAMES, RANGES, RANGES, noted)
    draw = random.Random(zlib.crc32(program.encode()))
    checks, used_s = list[CheckedRun](), 0.0
    while len(checks) < num_seen:
        at = tuple(round(low * (high / low) ** draw.random()) for low, high in RANGES)
        if at in seen:
            continue
        ran = run(at)
        began = perf_counter()
        said = found.law.peak(at)
        used_s += perf_counter() - began
        checks.append(CheckedRun(at, ran.allocated_bytes, ran.reserved_bytes, said))
    cells = [program, str(len(found.sizes)), str(len(found.law.ways)), *counts(checks), worst(checks)]
    return [*cells, f"{1000 * used_s / max(1, len(checks)):.1f}"], checks


def counts(checks: Sequence[CheckedRun]) -> list[str]:
    """Return how many are exact, within 0.1 %, and within 2 % of what was reserved."""
    errors = [(abs(allocated), abs(reserved)) for allocated, reserved in (check.errors for check in checks)]
    exact = sum(allocated == 0 for allocated, _ in errors)
    near = sum(allocated <= 0.001 for allocated, _ in errors)
    return [f"{number} of {len(errors)}" for number in (exact, near, sum(reserved <= 0.02 for _, reserved in errors))]


def worst(checks: Sequence[CheckedRun]) -> str:
    """Return the largest relative errors of both peaks."""
    allocated, reserved = (max(map(abs, errors)) for errors in zip(*(check.errors for check in checks), strict=True))
    return f"{allocated:.3%}, {reserved:.2%}"


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs of scripts/sizes.py; all by default")
    parser.add_argument("--seen", type=int, default=4, help="further sizes of each program")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    arguments = parser.parse_args()
    restart_on([devices_of(CARD).card])
    header = ["program", "runs", "ways", "exact", "0.1 %", "reserved 2 %", "worst", "ms to ask"]
    rows, checks = [], list[CheckedRun]()
    with tempfile.TemporaryDirectory() as name:
        for program in arguments.names or PROGRAMS:
            row, of_program = row_of(program, arguments.seen, arguments.keep or Path(name))
            rows.append(row)
            checks += of_program
            print(row, file=sys.stderr, flush=True)
    rows.append([f"all {len(rows)}", "", "", *counts(checks), worst(checks), ""])
    print(as_markdown([header, *rows]))


if __name__ == "__main__":
    main()
