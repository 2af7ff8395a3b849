"""The running command again, once for all trials: a process that comes as far as they share, and forks for each."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tracer.sessions.trials.trial_channel import TrialRequest

_ONE_THREAD = "OMP_NUM_THREADS"
_COUNT_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_LOOK_EVERY_S = 1.0


class SharedStart:
    """A process on the null GPU that makes trials in forks, see `ForkedTrials`; begun with the first of them."""

    def __init__(
        self,
        variable: str,
        more: Mapping[str, str] = {},
        *,
        rank: int = 0,
        may_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin nothing yet.

        Args:
            variable: Environment variable in which the process is told that it is one, and of its pipes.
            more: Other variables that it has.
            rank: Number of the rank that it is.
            may_wait: Whether a trial has a reason to use no processor.
        """
        self._variable, self._more, self._rank, self._may_wait = variable, more, rank, may_wait
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = -1
        self._is_over = False

    def __enter__(self) -> Self:
        """Nothing has begun."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._close()

    def answers(self, request: TrialRequest) -> bool:
        """Whether a trial left an answer; none is left where the script fails, or where nothing can be shared."""
        from tracer.sessions.trials.trial_channel import answer_name

        if self._is_over:
            return False
        self.begin()
        with suppress(BrokenPipeError):
            os.write(self._requests, f"{request.text}\n".encode())
        if not self._is_answered():  # it has ended, with an answer if this was its own trial
            self._close()
        return (Path(request.folder) / answer_name(self._rank)).exists()

    def _is_answered(self) -> bool:
        """Wait for the trial's end, unless it waits for what does not come; False where the process has ended."""
        from tracer.exporters.screen.terminal import say
        from tracer.sessions.jobs.child_processes import IdleLimit, end_child

        assert self._process is not None
        idle = IdleLimit(self._process.pid)
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
        asked = json.dumps({"requests": to_read, "replies": to_write})
        # A fork lacks the threads of a library that works in several. torch refuses CUDA in a fork of a process that
        # asked the runtime for the number of GPUs, as `torch.cuda.is_available()` does unless it may ask NVML.
        variables = {_ONE_THREAD: "1", **os.environ, **self._more, _COUNT_BY_NVML: "1", self._variable: asked}
        self._process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
        )
        os.close(to_read)
        os.close(to_write)

    def _close(self) -> None:
        self._is_over = True
        if self._process is None:
            return
        os.close(self._requests)
        os.close(self._replies)
        self._process.wait()
        self._process = None
