"""Runs a function in a fresh process that has imported torch: no run of a program leaves anything to another."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic, ParamSpec, TypeVar

from tests.processes import call
from tracer.null_gpu.process import is_active

P = ParamSpec("P")
T = TypeVar("T")
# Nothing here takes so long; what hangs is a defect that has to be seen as one.
_LIMIT_S = 300.0
# torch keeps the first batch of a graph that it has compiled anew, and not of one from its caches: no run uses those.
WITHOUT_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """What became of a call: its value, or why there is none."""

    value: T | None
    error: str | None


def in_fresh_process(
    function: Callable[..., T], *arguments: Any, variables: Mapping[str, str] = WITHOUT_CACHES
) -> Returned[T]:
    """Call it elsewhere; arguments and value are pickled."""
    on_null_gpu = is_active() or "NULL_GPU_COUNT" in variables
    process, connection = call(_work, function, arguments, variables=variables, is_on_null_gpu=on_null_gpu)
    try:
        if not connection.poll(_LIMIT_S):
            process.kill()
            return Returned(None, f"still running after {_LIMIT_S:.0f} s")
        returned: Returned[T] = connection.recv()
        process.wait()
        return returned
    except EOFError:
        return Returned(None, f"the process died with exit code {process.wait()}")
    finally:
        connection.close()


def value_in_fresh_process(
    function: Callable[..., T], *arguments: Any, variables: Mapping[str, str] = WITHOUT_CACHES
) -> T:
    """Call it elsewhere and return what it returns; a test fails where it raises."""
    returned = in_fresh_process(function, *arguments, variables=variables)
    assert returned.error is None, returned.error
    return returned.value  # type: ignore[return-value]


@dataclass(frozen=True)
class Elsewhere:
    """Calls each function in a fresh process with these variables of its environment."""

    variables: Mapping[str, str]

    def __call__(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Return what it returns there."""
        return value_in_fresh_process(partial(function, *arguments, **options), variables=self.variables)


def runs_elsewhere(test: Callable[..., None]) -> Callable[..., None]:
    """The body of a test runs in a fresh process, as the fixture `elsewhere` says; its assertions are made there."""
    given = inspect.signature(test)

    def run(elsewhere: Elsewhere, **arguments: Any) -> None:
        elsewhere(_run_body, test.__module__, test.__name__, arguments)

    first = inspect.Parameter("elsewhere", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(run).update(
        __name__=test.__name__, __doc__=test.__doc__, body=test,
        __signature__=given.replace(parameters=[first, *given.parameters.values()]),
    )  # fmt: skip
    return run


def _run_body(module: str, name: str, arguments: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).body(**arguments)


def _work(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # As in a program of its own, where nobody has chosen how processes start.
    multiprocessing.set_start_method("fork" if sys.version_info < (3, 14) else None, force=True)
    try:
        returned = Returned(function(*arguments), None)
    except BaseException as error:
        # Pytest says what an assertion compares, and is not there: the variables say it.
        told = traceback.TracebackException.from_exception(error, capture_locals=isinstance(error, AssertionError))
        returned = Returned(None, "".join(told.format()))
    connection.send(returned)
    connection.close()
    for child in multiprocessing.active_children():
        child.kill()
    # Whatever threads and queues a program left are not waited for.
    os._exit(0)
