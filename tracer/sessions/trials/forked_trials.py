"""Trials of changes that share all that a script does before any of them could matter: each is a fork from there.

Imports are most of what a trial of a large model takes, and they are made once.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

from tracer.capture.device.allocator_history import MAX_ENTRIES as ALL_ENTRIES
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.forked_child import fork_to_go_on
from tracer.capture.torch_private.torch_compile import load_compiler
from tracer.capture.torch_private.torch_cuda import (
    before_cuda_begins,
    can_begin_in_fork,
    set_allocator_settings,
    when_cuda_has_begun,
)
from tracer.capture.torch_private.torch_distributed import before_first_group
from tracer.capture.torch_private.torch_history import on_out_of_memory
from tracer.changes.applied import AppliedChanges
from tracer.changes.script_changes import ALLOCATOR_SETTINGS, allocator_variables
from tracer.command_line import flush_output
from tracer.exporters.memory_snapshot import write_memory_snapshot
from tracer.null_gpu.job.place import RankPlace
from tracer.null_gpu.process import WITHOUT_END_BYTES, limited_to
from tracer.null_gpu.values.kernels import before_first_allocation
from tracer.null_gpu.writes import own_files
from tracer.sessions.jobs.child_processes import end_with_parent
from tracer.sessions.program_writes import WRITES
from tracer.sessions.termination import uninterrupted
from tracer.sessions.training_watch import MAX_ENTRIES
from tracer.sessions.trials.trial_channel import Channel, TrialRequest, output_of

_GRACE_S: Final = 10
"""Seconds of a processor in which a trial at its limit may still say so."""


class ForkedTrials:
    """Serves requests from within the script: where a change could first matter, each request is answered by a fork.

    That is before memory of a device is allocated, of a job's rank before CUDA begins, before a process group is made,
    or before a module's first call. If the process has Python threads, children or connections there, which a fork
    would not have, it makes the first trial itself.
    """

    def __init__(self, channel: Channel, begin: Callable[[TrialRequest], None]) -> None:
        """Create a server that reads no request before `look_out` is called and the script has come so far.

        Args:
            begin: Called with the request of the trial that a process is, before it goes on.
        """
        self._channel = channel
        self._begin = begin
        self._settings = os.environ.get(ALLOCATOR_SETTINGS)
        self._end = ExitStack()
        self._is_fork = False
        self._children_before: set[Any] = set()
        # Folder for the answer of this process; None in the process that forks, and before a trial begins
        self.folder: Path | None = None
        self.applied = AppliedChanges((), choose=self._choose)  # The changes that are made, from then on

    def __enter__(self) -> Self:
        return self

    def look_out(self) -> None:
        """Look out for where a change could first matter, until the block ends."""
        self.applied.__enter__()
        # A library that is imported may begin CUDA. On a GPU that ranks share, the process with the context matters.
        before_memory = before_first_allocation if RankPlace.here() is None else before_cuda_begins
        self._end.callback(before_memory(self.applied.decide))
        if torch.distributed.is_available():
            self._end.callback(before_first_group(self.applied.decide))

    @uninterrupted
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End a fork here: what the script wants done at the end of its process, its parent's other forks still use.

        So this is the outermost block.
        """
        if self._is_fork:
            for child in set(multiprocessing.active_children()) - self._children_before:
                child.terminate()
            WRITES.delete()
            os._exit(0 if error is None else 1)
        self._end.close()
        self.applied.__exit__(kind, error, trace)

    def _choose(self) -> Sequence[str]:
        """Fork for each requested trial; in the child, return names of its changes."""
        self._end.close()
        asked = self._fork_for_each() if _is_alone(self._channel) else self._channel.next()
        if asked is None:
            WRITES.delete()
            os._exit(0)
        self.folder = Path(asked.folder)
        self._channel.close()
        self._begin(asked)
        if os.environ.get(ALLOCATOR_SETTINGS) == self._settings:  # else the script has settings of its own
            os.environ.update(allocator_variables(asked.changes))
            if (settings := os.environ.get(ALLOCATOR_SETTINGS)) is not None and settings != self._settings:
                set_allocator_settings(settings)
        return asked.changes

    def _fork_for_each(self) -> TrialRequest | None:
        """Return, in each fork, the request it answers; None after the last."""
        load_compiler()  # once, and not in each fork
        offsets = {number: os.lseek(number, 0, os.SEEK_CUR) for number, mode in _modes().items() if stat.S_ISREG(mode)}
        while (asked := self._channel.next()) is not None:
            flush_output()
            child = fork_to_go_on()
            if child == 0:
                end_with_parent()
                self._is_fork = True
                with own_files(), output_of(Path(asked.folder)).open("ab") as output:
                    for number in (1, 2):
                        os.dup2(output.fileno(), number)
                WRITES.copy_in_fork()
                self._children_before = set(multiprocessing.active_children())
                can_begin_in_fork()
                return asked
            os.waitpid(child, 0)
            for descriptor, offset in offsets.items():  # forks read the same open files
                os.lseek(descriptor, offset, os.SEEK_SET)
            self._channel.has_ended()
        return None


def _is_alone(channel: Channel) -> bool:
    """True if a fork has all that the program may wait for: no other Python thread, no child, no connection.

    Threads that libraries start, as pyarrow does when it is imported, do not prevent a fork: most libraries start them
    again there or do without. The command ends a fork that waits for such a thread, and makes that trial in a new
    process.
    """
    try:
        children = [path.read_text("ascii").split() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        return False
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    has_threads = any(type(thread).__module__ != "tqdm._monitor" for thread in others)  # bars work without it
    own = {0, 1, 2, channel.requests, channel.replies}
    connected = (number for number, mode in _modes().items() if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode))
    return bool(children) and not any(children) and not has_threads and own.issuperset(connected)


def _modes() -> dict[int, int]:
    modes = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own is closed again
            modes[int(path.name)] = os.fstat(int(path.name)).st_mode
    return modes


class TrialMemory:
    """Sets the limit and records the history that a trial asks for, from `begin` until `close`."""

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices
        self._end = ExitStack()
        self._history: AllocatorHistory | None = None
        self.room_bytes = sys.maxsize  # As of `TrialRequest`

    def begin(self, request: TrialRequest) -> None:
        """Do as a request says from now on, before anything is allocated."""
        self.room_bytes = request.room_bytes
        if not request.is_limited:
            self._end.enter_context(limited_to(WITHOUT_END_BYTES, self._num_devices))
        if request.limit_s:
            _limit_processor(request.limit_s)
        if request.is_explained or request.is_recorded:
            when_cuda_has_begun(partial(self._record, ALL_ENTRIES if request.is_recorded else MAX_ENTRIES))

    def _record(self, max_entries: int) -> None:
        device = torch.device("cuda", 0)  # torch records all of them
        self._history = AllocatorHistory(device, max_entries=max_entries, stacks_of_frees=False, is_timed=False)
        self._history.start()
        on_out_of_memory(device, self.keep)

    def keep(self) -> None:
        """Keep the history so far; nothing that goes wrong may reach the allocator, which may be within a request."""
        try:
            if self._history is not None:
                self._history.dump()
        except Exception:
            sys.excepthook(*sys.exc_info())

    def keep_whole(self) -> None:
        """Keep the history of a program that has ended, if none of its first steps was kept."""
        if self._history is not None and self._history.snapshot is None:
            self.keep()

    def write(self, path: Path) -> None:
        """Write what was kept last, if anything was."""
        if self._history is not None and self._history.snapshot is not None:
            with own_files():
                write_memory_snapshot(self._history.snapshot, path)

    def close(self) -> None:
        """Memory ends again where the card's does, and nothing is recorded."""
        if self._history is not None:
            self._history.stop()
        self._end.close()


def _limit_processor(limit_s: int) -> None:
    """End this process when it has used a processor for so many seconds more, in words if Python comes to run."""

    def end(*_: object) -> None:
        with suppress(OSError):
            os.write(2, f"\nError: It took more than {limit_s:,} s of a processor.\n".encode())
        os._exit(1)

    most_s = int(time.process_time()) + limit_s
    with suppress(ValueError):  # in another thread than the main one
        signal.signal(signal.SIGXCPU, end)
    last_s, hard_s = most_s + _GRACE_S, resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, last_s if hard_s < 0 else min(last_s, hard_s)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
