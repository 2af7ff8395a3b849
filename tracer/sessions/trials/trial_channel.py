"""Requests to a process for trials, and its ends; without torch, which the asking process need not load."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tracer.command_line import again, in_role
from tracer.exporters.screen.terminal import say
from tracer.sessions.jobs.child_processes import IdleLimit, asked_of_processors_s, end_child

_ONE_THREAD = "OMP_NUM_THREADS"
_COUNT_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_LOOK_EVERY_S = 1.0
_IDLE_LIMIT_S = 60.0
"""A fork that has been idle for so long is ended, and its trial made in a new process: it may wait for a thread that
only its parent has."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A trial of the script with changes, and how it is made."""

    changes: tuple[str, ...]  # Their names
    folder: str  # It leaves its answer there
    arguments: tuple[str, ...] = ()  # Behind the script's own
    is_limited: bool = True  # Whether memory ends where the card's does, or never
    limit_s: int = 0  # Seconds of a processor after which it ends; 0 for none
    # Index of a device, its allocations before the request that failed there, and the bytes that were requested of it
    # and in use then: what is in use then is followed.
    follow: tuple[int, int, int] | None = None
    is_explained: bool = False  # Whether it also leaves the allocator's history where memory runs out, or grows
    is_recorded: bool = False  # Whether it leaves the allocator's history until memory repeats
    room_bytes: int = sys.maxsize  # It ends with the step that allocates more

    @property
    def text(self) -> str:
        """The trial as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The request with these values, as JSON has them."""
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})


def answer_name(rank: int) -> str:
    """File in the request's folder that a rank leaves in the end; a script of one process is rank 0."""
    return f"{rank}.json"


def uses_name(rank: int) -> str:
    """File of the uses that a rank followed, where that is asked for."""
    return f"{rank}.uses"


def history_name(rank: int) -> str:
    """File of a rank's allocator history, where it is asked for and there is one."""
    return f"{rank}.pickle"


def output_of(folder: Path) -> Path:
    """File in the request's folder with what a fork prints."""
    return folder / "output"


@dataclass(frozen=True, slots=True)
class Channel:
    """The side that is asked."""

    requests: int  # A pipe's end to read from
    replies: int  # A pipe's end to write to

    def next(self) -> TrialRequest | None:
        """The next request, when it comes; None where no more will come."""
        line = bytearray()
        while not line.endswith(b"\n"):
            part = os.read(self.requests, 1)  # a byte at a time: what is behind the line stays for who comes next
            if not part:
                return None
            line += part
        return TrialRequest.of(json.loads(bytes(line)))

    def has_ended(self) -> None:
        """Say that the trial which was asked for last has ended."""
        os.write(self.replies, b"\n")

    def close(self) -> None:
        """Leave it to other processes."""
        os.close(self.requests)
        os.close(self.replies)


class TrialServer:
    """A process on the null GPU that makes trials in forks, see `ForkedTrials`; begun with the first of them."""

    def __init__(
        self,
        told: Callable[..., Mapping[str, str]] = in_role,
        variables: Mapping[str, str] = {},
        *,
        rank: int = 0,
        may_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin nothing yet.

        Args:
            told: Makes the environment variables by which the process has a role, with the trials' pipes as a part.
            may_wait: Whether a trial has a reason to use no processor.
        """
        self._told, self._variables, self._rank, self._may_wait = told, variables, rank, may_wait
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = -1
        self._is_over = self._is_busy = self._has_answered = False

    @property
    def used_s(self) -> float:
        """Seconds of a processor that its process, forks of that and all below these have used so far."""
        used_s = asked_of_processors_s(self._process.pid) if self._process is not None else {}
        return sum(seconds for number, seconds in used_s.items() if number > 0)

    def answers(self, request: TrialRequest) -> bool:
        """True if a trial left an answer; it leaves none if the script fails, or if nothing can be shared."""
        if self._is_over:
            return False
        self.begin()
        self._is_busy = True
        with suppress(BrokenPipeError):
            os.write(self._requests, f"{request.text}\n".encode())
        goes_on = self._is_answered()
        self._is_busy = False
        if not goes_on:  # it has ended, with an answer if this was its own trial
            self.close()
        is_answered = (Path(request.folder) / answer_name(self._rank)).exists()
        self._has_answered |= is_answered
        return is_answered

    def output(self, request: TrialRequest) -> str | None:
        """Return the output of a trial that left no answer; None if a new process may succeed where forks fail."""
        file = output_of(Path(request.folder))
        is_told = self._has_answered and not self._is_over and file.exists()
        return file.read_text("utf-8", "replace") if is_told else None

    def _is_answered(self) -> bool:
        """Wait for the trial's end, unless it waits for what does not come; False where the process has ended."""
        assert self._process is not None
        idle = IdleLimit(self._process.pid, _IDLE_LIMIT_S)
        while not select.select([self._replies], [], [], _LOOK_EVERY_S)[0]:
            if self._may_wait():
                idle.reset()
            elif idle.is_over():
                say(f"Note: {idle.sentence}")
                end_child(self._process)
                idle.reset()
        return bool(os.read(self._replies, 1))

    def begin(self) -> None:
        """Begin, if that has not been done; the process ends with the thread that calls this."""
        if self._process is not None:
            return
        to_read, self._requests = os.pipe()
        self._replies, to_write = os.pipe()
        asked = asdict(Channel(to_read, to_write))
        # A fork lacks the threads of a library that works in several. torch refuses CUDA in a fork of a process that
        # asked the runtime for the number of GPUs, as `torch.cuda.is_available()` does unless it may ask NVML.
        variables = {_ONE_THREAD: "1", **os.environ, **self._variables, _COUNT_BY_NVML: "1"}
        self._process = subprocess.Popen(
            again(),
            env={**variables, **self._told(trial=asked)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
        )
        os.close(to_read)
        os.close(to_write)

    def close(self) -> None:
        """End the process."""
        self._is_over = True
        if self._process is None:
            return
        os.close(self._requests)
        os.close(self._replies)
        if self._is_busy:
            end_child(self._process)
        self._process.wait()
        self._process = None
