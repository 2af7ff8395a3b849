"""Signals at random moments to programs of ten kinds under `run`: each ends, or goes on, as it would without us.

    uv run python -m benchmarks.signals [--count 200] [--seed 0] [--on h100] [--programs NAME ...] [--signals NAME ...]

Each program is forked from a process that has torch loaded, and gets one signal at a moment between its first line and
the time that it takes without one. It is right if within `--limit` seconds, and within twice as much of processor time,
SIGTERM and SIGHUP have ended it, SIGALRM was caught by the program itself and has cost nothing, and whatever files
there are can be read. A program that was written to handle a signal handles it. `--count` is for each signal, over all
programs; moments, programs and order follow from the seed, but not from the machine's load.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.signal_programs import END, OPTIONS, PROGRAMS, START
from benchmarks.tables import as_markdown
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.process import restart_on

SIGNALS = ("SIGTERM", "SIGHUP", "SIGALRM")
_PATIENCE_S = 120.0
"""Longest time that a program may take to begin or to end by itself; longer is a hang."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one program.

    Attributes:
        status: Its exit status, or minus the signal that ended it; None if it hung, and was killed.
        sent_after_s: When the signal was sent, from its first line on; None if it had ended by itself.
        ended_after_s: How long it took from then on.
        ended_after_cpu_s: In its processor time.
        output: What it printed.
    """

    status: int | None
    sent_after_s: float | None
    ended_after_s: float
    ended_after_cpu_s: float
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the signals, and print a table; 1 if a program did not do as it should."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200, help="times that each signal is sent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--minutes", type=float, default=0.0, help="end earlier, after so long; 0 for never")
    parser.add_argument("--on", metavar="CARD", help="on the null GPU")
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=list(SIGNALS), metavar="NAME")
    options = parser.parse_args(arguments)
    if options.on is not None:
        devices = devices_of(options.on)
        restart_on([devices.card])
    draw = random.Random(options.seed)
    takes_s = dict.fromkeys(options.programs, 0.0)
    plan = [(name, options.programs[i % len(takes_s)]) for name in options.signals for i in range(options.count)]
    draw.shuffle(plan)
    counts: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    for i, (signal_name, name) in enumerate(plan):
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            print(f"Ended after {i} of {len(plan)} signals.")
            break
        with tempfile.TemporaryDirectory() as folder:
            if not takes_s[name]:
                takes_s[name] = _run(name, options.on, Path(folder) / "first", None, 0.0).ended_after_s
            share = draw.random()
            trial = _run(name, options.on, Path(folder) / "out", signal_name, share * takes_s[name])
            problem = _problem(name, signal_name, trial, Path(folder) / "out", options.limit)
        counts[name, signal_name if trial.sent_after_s is not None else "too late"] += 1
        if problem:
            counts[name, "wrong"] += 1
            wrong.append(f"{signal_name} to {name!r} after {trial.sent_after_s or 0:.2f} s: {problem}\n{trial.output}")
            print(wrong[-1], flush=True)
    columns = [*options.signals, "too late", "wrong"]
    rows = [[name, *(str(counts[name, column]) for column in columns)] for name in options.programs]
    print(as_markdown([["program", *columns], *rows]))
    return 1 if wrong else 0


def _run(name: str, on: str | None, folder: Path, signal_name: str | None, after_s: float) -> Trial:
    """Run a program in a fork, and send it a signal so long after its first line."""
    script = folder.parent / "train.py"
    script.write_text(START + PROGRAMS[name] + END)
    output = folder.parent / f"{folder.name}.txt"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _be_program(name, on, script, folder, output)
    return _observe(child, output, getattr(signal, signal_name) if signal_name else None, after_s)


def _be_program(name: str, on: str | None, script: Path, folder: Path, output: Path) -> None:
    """Go on as the command, in a session of its own, and end the process."""
    status = 1
    try:
        os.setsid()
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        device = "cuda" if on is not None else "cpu"
        own = [str(script), device, str(folder)]
        if name == "session":
            from runpy import run_path

            sys.argv = own
            run_path(str(script), run_name="__main__")
        else:
            from tracer.commands.app import app

            card = ["--on", on] if on is not None else []
            app(["run", "--save-dir", str(folder), *card, *OPTIONS.get(name, []), *own])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # of the program `session`, as Python would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _observe(child: int, output: Path, number: int | None, after_s: float) -> Trial:
    began, begins_at, sent_at, cpu_before_s = time.monotonic(), 0.0, 0.0, 0.0
    status: int | None = None
    while True:
        now = time.monotonic()
        done, raw, used = os.wait4(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(raw)
            break
        if not begins_at and output.exists() and "begins" in output.read_text(errors="replace"):
            begins_at = now
        if number is not None and begins_at and not sent_at and now - begins_at >= after_s:
            cpu_before_s = _cpu_s(child)
            os.kill(child, number)
            sent_at = now
        if now - began > _PATIENCE_S:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            _, _, used = os.wait4(child, 0)
            break
        time.sleep(0.005)
    with suppress(ProcessLookupError):  # workers of a program that was ended
        os.killpg(child, signal.SIGKILL)
    since = sent_at or begins_at or began
    return Trial(
        status,
        sent_at - begins_at if sent_at else None,
        time.monotonic() - since,
        _seconds(used) - cpu_before_s,
        output.read_text(errors="replace"),
    )


def _cpu_s(process: int) -> float:
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _seconds(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def _problem(name: str, signal_name: str, trial: Trial, folder: Path, limit_s: float) -> str:
    """Return what a program did that it would not do without us; "" if nothing."""
    if trial.status is None:
        return "it hung"
    # Python ignores what a handler raises in a callback at a fork, as logging has one, with or without us.
    ignored = [part.partition("TimeLimit")[0] for part in trial.output.split("Exception ignored")[1:]]
    if "internal fault" in trial.output or any("/tracer/" in part for part in ignored):
        return "a fault of ours"
    if unreadable := _unreadable(folder):
        return unreadable
    if trial.sent_after_s is None:
        return "" if trial.status == 0 else f"it ended with status {trial.status} by itself"
    has_ended = "\nended\n" in trial.output
    if signal_name == "SIGALRM":
        is_caught = "caught 1\n" in trial.output or "caught 0\n" in trial.output  # 0: between two epochs, or behind
        if has_ended and is_caught and trial.status == 0:
            return ""
        return "" if "TimeLimit" in trial.output else f"the limit was lost, and it ended with status {trial.status}"
    if trial.ended_after_s > limit_s and trial.ended_after_cpu_s > limit_s:
        return f"it took {trial.ended_after_s:.1f} s, {trial.ended_after_cpu_s:.1f} s of a processor"
    if name == "own handlers":
        return "" if "stopped" in trial.output or has_ended or "Stop" in trial.output else "its handler was not called"
    ended_by = trial.status in (1, -getattr(signal, signal_name), 128 + getattr(signal, signal_name))
    return "" if ended_by or (has_ended and trial.status == 0) else f"it ended with status {trial.status}"


def _unreadable(folder: Path) -> str:
    """Return the file that cannot be read; "" if all can."""
    try:
        for path in folder.rglob("*.json"):
            json.loads(path.read_text())
        for path in folder.rglob("*.sqlite"):
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA integrity_check").fetchall()
        for path in folder.rglob("*.html"):
            if not path.read_text().rstrip().endswith("</html>"):
                return f"{path.name} is cut"
    except (ValueError, sqlite3.Error) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
