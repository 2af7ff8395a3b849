"""Processes that a program starts by `multiprocessing`: each follows its own phases, and its training as a rank.

A process that is spawned loads this file before its program, and nothing else of this package until that loads torch.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from tracer.command_line import in_role, role
from tracer.loaded_modules import when_loaded

_PACKAGE = "tracer"
_HELPERS: Final = ("multiprocessing.", "torch.utils.data.")
"""Modules whose functions train nothing: servers of shared objects, and loaders of data."""
_SPAWN: Final = "torch.multiprocessing.spawn"


@contextmanager
def children_followed(profiled: Callable[[], AbstractContextManager[None]] | None = None) -> Iterator[None]:
    """Within the block each process that is started, by whatever method, follows its phases into the run's folder.

    Args:
        profiled: Called in a child, it gives what records and tells of a training meanwhile; it can be pickled. A
            child's number is its rank, unless it has another. None to record no training there. A group of children
            that starts when all before have ended, some of which have recorded a training, records none.
    """
    start = BaseProcess.start
    from tracer.exporters.screen.next_commands import program_name  # no spawned child needs it

    pickled = pickle.dumps(profiled) if profiled is not None else b""
    num_started, has_recorded = 0, False

    def profile_of(child: Any) -> ProfileOfChild | None:
        nonlocal num_started, has_recorded
        folder = Path(role("engine") or os.devnull)
        if not pickled or role("child") or _module_of(child).startswith(_HELPERS):
            return None
        if not multiprocessing.active_children():
            num_started, has_recorded = 0, any(folder.glob("rank*"))
        num_started += 1
        return None if has_recorded else ProfileOfChild(pickled, str(folder), num_started - 1, program_name())

    @functools.wraps(start)
    def started(child: Any) -> None:
        own = vars(child).get("run")
        if _finds_package(child):
            child.run = FollowedRun(child.run, profile_of(child))
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
class ProfileOfChild:
    """Records a child's training as that of a rank."""

    pickled: bytes  # See `children_followed`
    folder: str  # Folder in which ranks leave their messages to the parent
    index: int  # Its rank, if it says no other
    program: str  # How this program was called

    def profiled(self) -> AbstractContextManager[None]:
        """Record a training within the block."""
        os.environ.update(in_role(child=[self.folder, self.index], program=self.program))
        make: Callable[[], AbstractContextManager[None]] = pickle.loads(self.pickled)
        return make()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function within the block."""
        with self.profiled():
            return function(*arguments)


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """Stands for a process's own `run`, which it calls in that process."""

    run: Callable[[], object]
    profile: ProfileOfChild | None = None

    def __call__(self) -> None:
        """Run; from when torch is loaded, follow phases and training."""
        with ExitStack() as stack:
            if (folder := role("engine")) is not None:
                stack.callback(when_loaded("torch", lambda _: stack.enter_context(_followed(Path(folder)))))
                if (profile := self.profile) is not None and not self._profiles_function(profile):
                    stack.callback(when_loaded("torch", lambda _: stack.enter_context(profile.profiled())))
            self.run()

    def _profiles_function(self, profile: ProfileOfChild) -> bool:
        """Profile the function of a process of torch's, which turns an exception of that into an exit; else False."""
        process: Any = getattr(self.run, "__self__", None)
        if process is None or _module_of(process) != _SPAWN:
            return False
        function, *arguments = vars(process)["_args"]
        vars(process)["_args"] = (functools.partial(profile.call, function), *arguments)
        return True


def _module_of(process: Any) -> str:
    """Return the module of the function that a process calls; empty where its class has a `run` of its own."""
    return str(getattr(vars(process).get("_target"), "__module__", ""))


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
