"""The command line on the null GPU, called for a script as a user would, and what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from tracer.null_gpu.cards import named_card
from tracer.null_gpu.process import environment

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).parent / "scripts"
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended.

    Attributes:
        status: Its exit status; negative for a signal.
        document: What it answered: `predict --json`, or peak.json of `run`; empty where it left none.
        stderr: What it said, and what the script printed.
        seconds: By the clock.
    """

    status: int
    document: dict[str, Any]
    stderr: str
    seconds: float

    @property
    def last_line(self) -> str:
        """For people: why it failed."""
        lines = [line for line in self.stderr.strip().splitlines() if line.strip()]
        return lines[-1][:160] if lines else ""


def predicted(
    script: Path,
    arguments: Sequence[str],
    *,
    on: str,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = _NONE,
) -> Ended:
    """`predict script --on CARD --json -- arguments`."""
    command = ["predict", str(script), "--on", on, "--json", *options, "--", *arguments]
    status, said, stderr, seconds = _called(command, variables)
    return Ended(status, json.loads(said) if said.startswith("{") else {}, stderr, seconds)


def alone(script: Path, arguments: Sequence[str], *, on: str, variables: Mapping[str, str] = _NONE) -> Ended:
    """A script on the null GPU, without a command of ours, that prints the bytes that were reserved at most."""
    card = named_card(on)
    assert card is not None
    start = perf_counter()
    ended = subprocess.run(
        [sys.executable, str(script), *arguments], env=environment([card]) | {"PYTHONPATH": _paths(), **variables},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    document: dict[str, Any] = {"fits": ended.returncode == 0} if "OutOfMemoryError" in ended.stderr else {}
    if ended.returncode == 0:
        document = {"fits": True, "peak_reserved_bytes": int(ended.stdout.split()[-1])}
    return Ended(ended.returncode, document, ended.stderr, perf_counter() - start)


def profiled(
    script: Path, arguments: Sequence[str] = (), *, on: str, options: Sequence[str] = (),
    variables: Mapping[str, str] = _NONE,
) -> Ended:  # fmt: skip
    """`run --on CARD script arguments`, and its peak.json."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--on", on, "--save-dir", folder, *options, str(script), *arguments]
        status, _, stderr, seconds = _called(command, variables)
        peak = Path(folder) / "peak.json"
        return Ended(status, json.loads(peak.read_text("utf-8")) if peak.is_file() else {}, stderr, seconds)


def watched(
    script: Path, arguments: Sequence[str], *, on: str, options: Sequence[str] = (),
    variables: Mapping[str, str] = _NONE,
) -> Ended:  # fmt: skip
    """`run --watch --on CARD script arguments`, which records no steps: for what a script itself says of its memory."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--watch", "--on", on, "--save-dir", folder, *options, str(script), *arguments]
        status, stdout, stderr, seconds = _called(command, variables)
        return Ended(status, {}, stdout + stderr, seconds)


def _called(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str, str, float]:
    shown = {**os.environ, "PYTHONPATH": _paths(), **variables}
    start = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, str(ROOT / "main.py"), *arguments],
            cwd=folder, env=shown, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
    return ended.returncode, ended.stdout.strip(), ended.stderr, perf_counter() - start


def _paths() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
