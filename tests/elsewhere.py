"""Calls functions in a process with another device than this one has, one process for many calls."""

from __future__ import annotations

import gc
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

import torch

from tests.processes import Process, call

P = ParamSpec("P")
T = TypeVar("T")
# Nothing here takes so long; what hangs is a defect that has to be seen as one.
_LIMIT_S = 240.0


class Elsewhere:
    """The process: started at the first call, and again after one from which it did not come back."""

    def __init__(self, variables: Mapping[str, str], set_as_new: Callable[[], object]) -> None:
        """A process that is not there yet.

        Args:
            variables: Of its environment, beside this process's.
            set_as_new: Called there before the first call and after each.
        """
        self._variables, self._set_as_new = variables, set_as_new
        self._process: Process | None = None
        self._connection: Connection | None = None

    def __call__(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """What a function of a module of the tests returns there; its value is pickled.

        Raises:
            AssertionError: It raised, or took the process with it.
        """
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._connection.send((function, arguments, options))
        if not self._connection.poll(_LIMIT_S):
            self.close()
            raise AssertionError(f"{function.__name__} still ran after {_LIMIT_S:.0f} s")
        try:
            value, error = self._connection.recv()
        except EOFError:
            status = self._process.wait() if self._process is not None else None
            self._process = self._connection = None
            raise AssertionError(f"the process died with {status}") from None
        assert error is None, error
        return value  # type: ignore[no-any-return]

    def _start(self) -> None:
        self._process, self._connection = call(
            _work, self._set_as_new, variables=self._variables, is_on_null_gpu="NULL_GPU_COUNT" in self._variables
        )

    def close(self) -> None:
        """End the process."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.kill()
        self._process = self._connection = None


def _work(connection: Connection, set_as_new: Callable[[], object]) -> None:
    set_as_new()
    torch.set_num_threads(1)
    # What torch consists of need not be looked through after each call.
    gc.collect()
    gc.freeze()
    answer: Any
    while True:
        try:
            function, arguments, options = connection.recv()
        except EOFError:
            return
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                answer = (function(*arguments, **options), None)
        except BaseException:
            answer = (None, traceback.format_exc())
        connection.send(answer)
        answer = function = arguments = None
        # What one call leaves behind would be held in the next one's peak.
        gc.collect()
        set_as_new()
