"""Runs a function in a fresh process that has imported torch: no run of a program leaves anything to another."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar
from unittest.mock import patch

T = TypeVar("T")
# Nothing here takes so long; what hangs is a defect that has to be seen as one.
_LIMIT_S = 300.0
# torch keeps the first batch of a graph that it has compiled anew, and not of one from its caches: no run uses those.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "KINETO_LOG_LEVEL": "99",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
}
_STARTING = threading.Lock()
_NO_STATUS = 255
"""What multiprocessing puts where nobody was there to say with which status a process ended."""
_PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "tests.truth.running",
    "tracer.runs.training",
    "tracer.runs.outputs",
]


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """What became of a call: its value, or why there is none."""

    value: T | None
    error: str | None


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> Returned[T]:
    """Call it elsewhere; arguments and value are pickled."""
    try:
        return _call(function, arguments)
    except _ServerDiedError:
        return _call(function, arguments)


class _ServerDiedError(Exception):
    """The process that the others are forked from is gone; the next call starts another."""


def _call(function: Callable[..., T], arguments: tuple[Any, ...]) -> Returned[T]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, function, arguments))
    # OpenMP's threads wait by spinning, which takes fifty times as long where more of them run than there are cores.
    with _STARTING, patch.dict(os.environ, _ENVIRONMENT):
        process.start()
    theirs.close()
    try:
        if not ours.poll(_LIMIT_S):
            return Returned(None, f"still running after {_LIMIT_S:.0f} s")
        returned: Returned[T] = ours.recv()
        return returned
    except EOFError:
        process.join()
        if process.exitcode == _NO_STATUS:
            raise _ServerDiedError from None
        return Returned(None, f"the process died with exit code {process.exitcode}")
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _work(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # As in a program of its own, where nobody has chosen how processes start.
    multiprocessing.set_start_method("fork" if sys.version_info < (3, 14) else None, force=True)
    try:
        returned = Returned(function(*arguments), None)
    except BaseException:
        returned = Returned(None, traceback.format_exc())
    connection.send(returned)
    connection.close()
    for child in multiprocessing.active_children():
        child.kill()
    # Whatever threads and queues a program left are not waited for.
    os._exit(0)
