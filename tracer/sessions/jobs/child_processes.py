"""Processes that run the command again, as ranks or trials: none outlives its parent, and none waits for ever."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tracer.command_line import again, flush_output
from tracer.exporters.screen.terminal import say
from tracer.sessions.termination import SIGNALS, signals_deferred

IDLE_LIMIT_S: Final = 300.0
"""Longest time that a process may ask for no processor."""
_LOOKS: Final = 10
"""Looks at a process in that time: what a thread or a child asks for that ends between two of them is not seen."""
_IDLE_SHARE: Final = 0.01
"""Share of a processor that polling takes at most."""
END_LIMIT_S: Final = 20.0
"""Longest time that a process which is being ended may write its files."""
_LOOK_EVERY_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Have this process receive SIGTERM when its parent dies, of whatever signal; Linux alone can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class IdleLimit:
    """Tells when a process and those that it has started have asked for no processor for too long."""

    def __init__(self, process: int, limit_s: float | None = None) -> None:
        self._process, self._limit_s = process, IDLE_LIMIT_S if limit_s is None else limit_s
        self.reset()

    def reset(self) -> None:
        """Begin anew: the process has a reason to wait."""
        self._since = self._looked = time.monotonic()
        self._asked_s, self._before = 0.0, asked_of_processors_s(self._process)

    def is_over(self) -> bool:
        """Return whether it has waited for longer than the limit."""
        now = time.monotonic()
        if now - self._looked <= self._limit_s / _LOOKS:
            return False
        self._looked, before, self._before = now, self._before, asked_of_processors_s(self._process)
        self._asked_s += sum(max(0.0, asked_s - before.get(key, 0.0)) for key, asked_s in self._before.items())
        if self._asked_s > _IDLE_SHARE * self._limit_s:
            self.reset()
        return now - self._since > self._limit_s

    @property
    def sentence(self) -> str:
        """Return the sentence that is said when it is over."""
        asked = f"A process asked for no processor for {self._limit_s:.0f} s"
        return f"{asked} and is ended: it waits for what does not come."


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended."""

    status: int
    text: str = ""  # What it has printed, where that was not seen
    errors: str = ""  # The part that went to stderr, where the two were kept apart

    @property
    def lines(self) -> list[str]:
        """The text, line by line."""
        return self.text.splitlines()


class ChildProcesses:
    """Processes that run side by side, waited for in threads or in the main one, and ended together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._ended_at: float | None = None

    def run_again(
        self,
        variables: Mapping[str, str],
        *,
        command: Sequence[str] | None = None,
        folder: Path | None = None,
        is_seen: bool = False,
        are_errors_apart: bool = False,
        may_wait: Callable[[], bool] = lambda: False,
    ) -> Ended:
        """Run the running command again with other environment variables, and wait for it.

        Args:
            folder: Where it runs; by default where this process does.
            is_seen: Whether it prints where this process does, and reads what that reads.
            are_errors_apart: Whether stderr is returned apart from stdout, where it is not seen.
            may_wait: Whether it has a reason to use no processor.
        """
        flush_output()
        with (
            nullcontext() if is_seen else tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() if are_errors_apart else nullcontext() as errors,
        ):
            standard: dict[str, Any] = {"stdin": None if is_seen else subprocess.DEVNULL, "stdout": output}
            standard["stderr"] = output if errors is None else errors
            status = self.run(
                lambda: subprocess.Popen(command or again(), env=variables, cwd=folder, **standard), may_wait
            )
            return Ended(status, _all_of(output), _all_of(errors))

    def run(self, start: Callable[[], subprocess.Popen[bytes]], may_wait: Callable[[], bool] = lambda: False) -> int:
        """Start a process and wait for it; ChildProcessError where all are being ended."""
        child: subprocess.Popen[bytes] | None = None
        try:
            with signals_deferred(), self._lock:
                if self._ended_at is not None:
                    raise ChildProcessError("The job is being ended.")
                child = start()
                self._running.append(child)
            return self._wait(child, may_wait)
        except BaseException:
            self.end()
            if child is not None:
                try:
                    self._wait(child, lambda: True)
                except BaseException:  # a second Ctrl-C
                    child.kill()
                    raise
            raise
        finally:
            with self._lock:
                self._running = [one for one in self._running if one is not child]

    def end(self) -> None:
        """Ask all to end, and start no other one. A second Ctrl-C does not disturb one that it has reached already."""
        with self._lock:
            self._ended_at = self._ended_at or time.monotonic()
            for child in self._running:
                child.terminate()

    def _wait(self, child: subprocess.Popen[bytes], may_wait: Callable[[], bool]) -> int:
        idle = IdleLimit(child.pid)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(_LOOK_EVERY_S)
            if self._ended_at is not None:
                if time.monotonic() - self._ended_at > END_LIMIT_S:
                    child.kill()
            elif SIGNALS.is_one_waiting:  # for work of ours, which this is
                return end_child(child)
            elif may_wait():
                idle.reset()
            elif idle.is_over():
                say(f"Note: {idle.sentence}")
                return end_child(child)


def _all_of(file: IO[bytes] | None) -> str:
    """The text of a file that a process has written to; none without a file."""
    if file is None:
        return ""
    file.seek(0)
    return file.read().decode(errors="replace")


def end_child(child: subprocess.Popen[bytes]) -> int:
    """End a process that waits: by SIGTERM, with its files, or by force where that takes too long."""
    child.terminate()
    try:
        return child.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def asked_of_processors_s(process: int) -> dict[int, float]:
    """Seconds that a process and all below it have used a processor, by their numbers, or were ready to.

    The latter are by a thread's number below zero, where the kernel counts them: on a busy machine others run then.
    """
    parents: dict[int, list[int]] = {}
    used_s: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
            used_s[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    asked_s: dict[int, float] = {}
    left = [process]
    while left:
        number = left.pop()
        left += parents.get(number, [])
        asked_s[number] = used_s.get(number, 0.0)
        with suppress(OSError, IndexError, ValueError):
            for thread in Path(f"/proc/{number}/task").iterdir():
                asked_s[-int(thread.name)] = int((thread / "schedstat").read_text("ascii").split()[1]) / 1e9
    return asked_s
