"""Processes that a script starts, in which nothing or something is recorded: what is said of them."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from tracer.capture.forked_child import in_forking_parent
from tracer.null_gpu import process
from tracer.units import some

_PYTHON: Final = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|.+\.py")
"""Names of programs that may train, among the words of a command."""
_SHOWN_CHARACTERS: Final = 120


class StartedProcesses:
    """Counts the processes that a script starts by multiprocessing, by `os.fork` and as other Python programs."""

    def __init__(self) -> None:
        self.num_by_multiprocessing = self.num_forked = 0
        self.programs: list[str] = []  # Commands of the other Python programs, as a shell takes them
        self._is_starting = False  # What starts a process may fork in doing so

    def __len__(self) -> int:
        return self.num_by_multiprocessing + self.num_forked + len(self.programs)

    def begin(self) -> Callable[[], None]:
        """Begin to count; return a function that ends it."""
        end_of_forks = in_forking_parent(self._has_forked)
        changed = (
            (BaseProcess, "start", self._multiprocessing),
            (subprocess.Popen, "__init__", self._popen),
            (os, "system", self._system),
        )
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in changed]
        for owner, name, make in changed:
            setattr(owner, name, make(getattr(owner, name)))

        def end() -> None:
            end_of_forks()
            for owner, name, original in before:
                setattr(owner, name, original)

        return end

    def sentences(self, *, are_recorded: bool) -> Iterator[str]:
        """Sentences for a script of whose own process no training is known.

        Args:
            are_recorded: Whether trainings in processes of multiprocessing are recorded.
        """
        number = process.num_other_processes()
        if number:
            yield (
                f"It used the GPU in {number} other {'process' if number == 1 else 'processes'} that it started, of "
                "which this command sees phases alone: start ranks by torchrun or torch.multiprocessing.spawn instead."
            )
        elif self.num_by_multiprocessing:
            yield f"The script started {some(self.num_by_multiprocessing, 'process')} by multiprocessing."
            yield (
                "No training was found there either. Where such a process does not find this package, use "
                "profile_training in the function that it runs."
                if are_recorded
                else "Training there is recorded by `run` alone."
            )
        if self.num_forked and not number:
            yield (
                f"The script forked {some(self.num_forked, 'process')}. Whether training ran there is not known: start "
                "such processes by torch.multiprocessing, and each that trains is recorded as a rank."
            )
        if self.programs:
            yield (
                f"The script started {some(len(self.programs), 'other Python program')}. Whether training ran there is "
                f"not known: give this command that program in place of the script. The first was: {self.programs[0]}"
            )

    def _multiprocessing(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def start(process: BaseProcess) -> None:
            with self._starting():
                original(process)
            self.num_by_multiprocessing += 1

        return start

    def _popen(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(popen: Any, args: Any, *others: Any, **options: Any) -> None:
            with self._starting():
                original(popen, args, *others, **options)
            self._note(args)

        return init

    def _system(self, original: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(original)
        def system(command: Any) -> int:
            status = original(command)
            self._note(command)
            return status

        return system

    @contextmanager
    def _starting(self) -> Iterator[None]:
        before, self._is_starting = self._is_starting, True
        try:
            yield
        finally:
            self._is_starting = before

    def _has_forked(self) -> None:
        self.num_forked += not self._is_starting

    def _note(self, command: Any) -> None:
        """Note a command if one of its words is a Python program's name."""
        words = _words(command)
        if any(_PYTHON.fullmatch(Path(word).name) for word in words):
            text = shlex.join([Path(words[0]).name, *words[1:]])
            self.programs.append(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ...")


def _words(command: Any) -> Sequence[str]:
    """The words of a command: a text for a shell, a program's path, or a sequence of such."""
    if isinstance(command, str | bytes | os.PathLike):
        text = os.fsdecode(command)
        try:
            return shlex.split(text)
        except ValueError:
            return text.split()
    return [os.fsdecode(word) for word in command if isinstance(word, str | bytes | os.PathLike)]
