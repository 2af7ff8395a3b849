"""Phases of processes that a program starts by `multiprocessing`: each follows its own, and writes them for its parent.

A process that is spawned loads this file before its program, and nothing else of this package until that loads torch.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tracer.command_line import role
from tracer.loaded_modules import when_loaded

_PACKAGE = "tracer"


@contextmanager
def children_followed() -> Iterator[None]:
    """Within the block each process that is started, by whatever method, follows its phases into the run's folder."""
    start = BaseProcess.start

    @functools.wraps(start)
    def started(child: Any) -> None:
        own = vars(child).get("run")
        if _finds_package(child):
            child.run = FollowedRun(child.run)
        try:
            start(child)
        finally:
            vars(child).pop("run", None)
            if own is not None:
                child.run = own

    BaseProcess.start = started  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if BaseProcess.start is started:
            BaseProcess.start = start  # type: ignore[method-assign]


def _finds_package(child: Any) -> bool:
    """Return whether a process that is about to start has this package, or finds it in the `sys.path` that it gets."""
    contexts: dict[str, Any] = {
        name: multiprocessing.get_context(name) for name in multiprocessing.get_all_start_methods()
    }
    own = [method for method, context in contexts.items() if isinstance(child, context.Process)]
    if (own[0] if own else multiprocessing.get_start_method()) == "fork":
        return True
    spec = PathFinder.find_spec(_PACKAGE)
    return (
        spec is not None
        and spec.origin is not None
        and Path(spec.origin).samefile(sys.modules[_PACKAGE].__file__ or "")
    )


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """Stands for a process's own `run`, which it calls in that process."""

    run: Callable[[], object]

    def __call__(self) -> None:
        """Run; from when torch is loaded, follow phases."""
        with ExitStack() as stack:
            if (folder := role("engine")) is not None:
                stack.callback(when_loaded("torch", lambda _: stack.enter_context(_followed(Path(folder)))))
            self.run()


@contextmanager
def _followed(folder: Path) -> Iterator[None]:
    from tracer.capture.device.phase_ledger import PhaseLedger
    from tracer.sessions.phase_reports import follow_trl, ledger_of_process, write_phases

    if PhaseLedger.is_followed:
        yield
        return
    name = f"{Path(sys.argv[0]).name}, {multiprocessing.current_process().name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    ledger, end_trl = ledger_of_process(name, folder), follow_trl()
    try:
        with ledger:
            yield
    finally:
        end_trl()
        if folder.is_dir():  # else the run has ended before
            write_phases(ledger, folder)
