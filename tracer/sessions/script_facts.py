"""Facts about a script in which no training was found, or no step, and the sentences on them."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from tracer.errors import TracerError
from tracer.null_gpu import process
from tracer.sessions.session import fault_text
from tracer.units import some

_PYTHON: Final = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|.+\.py")
"""Names of programs that may train, among the words of a command."""
_SHOWN_CHARACTERS: Final = 120


class StartedProcesses:
    """Counts the processes that a script starts by multiprocessing, and as other Python programs."""

    def __init__(self) -> None:
        self.num_by_multiprocessing = 0
        self.programs: list[str] = []  # Commands of the other Python programs, as a shell takes them

    def __len__(self) -> int:
        return self.num_by_multiprocessing + len(self.programs)

    def begin(self) -> Callable[[], None]:
        """Begin to count; return a function that ends it."""

        def noting(owner: Any, name: str, note: Callable[..., object]) -> Callable[[], None]:
            original = getattr(owner, name)

            @functools.wraps(original)
            def started(*args: Any, **options: Any) -> Any:
                result = original(*args, **options)
                note(*args, **options)
                return result

            setattr(owner, name, started)
            return functools.partial(setattr, owner, name, original)

        ends = (
            noting(BaseProcess, "start", self._note_child),
            noting(subprocess.Popen, "__init__", lambda popen, args, *_, **options: self._note(args)),
            noting(os, "system", lambda command: self._note(command)),
        )
        return lambda: [end() for end in ends].clear()

    def sentences(self, *, are_recorded: bool) -> Iterator[str]:
        """Sentences for a script of whose own process no training is known."""
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
        if self.programs:
            yield (
                f"The script started {some(len(self.programs), 'other Python program')}. Whether training ran there is "
                f"not known: give this command that program in place of the script. The first was: {self.programs[0]}"
            )

    def _note_child(self, _: object) -> None:
        self.num_by_multiprocessing += 1

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


_NO_MODEL = "no model with parameters to be trained was called, and no optimizer made a step."
NO_MODEL = f"No training was found: {_NO_MODEL}"
NO_MODEL_HERE = f"No training was found in the script's own process: {_NO_MODEL}"
NO_CALL = "No model was called."
NO_STEP = (
    "No optimizer of torch's kind made a step, and the end of a step was not found otherwise. Use profile_training in "
    "the script, with a call of session.step()."
)


class ScriptFacts:
    """Progress of a script.

    Attributes:
        fault: A fault of ours by which nothing is recorded, or None.
        has_called: Whether a module was called.
        has_stepped: Whether a step has ended.
        ended_by: The class of the exception that ended the script, or None.
        started: The processes that it has started.
        children_recorded: How many children by multiprocessing have recorded a training; None where that is not looked
            for.
    """

    def __init__(self, *, is_inference: bool) -> None:
        self.fault: Exception | None = None
        self.has_called = self.has_stepped = False
        self.ended_by: type[BaseException] | None = None
        self.children_recorded: int | None = None
        self._is_inference, self.started = is_inference, StartedProcesses()

    @property
    def without_session(self) -> tuple[str, ...]:
        """Sentences on why no training was found; none where an error says it."""
        if self.fault is not None:
            return (f"The script was not profiled, and went on: {fault_text(self.fault)}",)
        if self.ended_by is not None and issubclass(self.ended_by, TracerError):
            return ()
        if self.ended_by is not None and issubclass(self.ended_by, Exception):
            return (f"The script ended by {self.ended_by.__name__} before a training was found.",)
        if self._is_inference:
            return (NO_CALL,)
        if self.children_recorded:
            return ()
        found = NO_MODEL_HERE if len(self.started) else NO_MODEL
        if self.has_called:
            found += " It called a model without training it: with --inference, `run` explains such calls."
        elif not len(self.started):
            found += " Name the script that trains, or one that only calls models behind --inference."
        of_children = self.started.sentences(are_recorded=self.children_recorded is not None)
        return (" ".join([found, *of_children]),)

    @property
    def without_steps(self) -> tuple[str, ...]:
        """A sentence where a training was found, and no step of it."""
        return () if self.has_stepped or self.ended_by is not None else (NO_STEP,)
