"""Facts about a script in which no training was found, or no step, and the sentences on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from tracer.errors import TracerError
from tracer.null_gpu import process
from tracer.sessions.session import fault_text
from tracer.units import some

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
        num_started: Processes that it has started by multiprocessing.
        children_recorded: How many children by multiprocessing have recorded a training; None where that is not looked
            for.
    """

    def __init__(self, *, is_inference: bool) -> None:
        self.fault: Exception | None = None
        self.has_called = self.has_stepped = False
        self.ended_by: type[BaseException] | None = None
        self.children_recorded: int | None = None
        self._is_inference, self.num_started = is_inference, 0

    def count_started(self) -> Callable[[], None]:
        """Begin to count the processes that it starts; return a function that ends it."""
        start = BaseProcess.start

        @functools.wraps(start)
        def started(child: Any) -> None:
            start(child)
            self.num_started += 1

        BaseProcess.start = started  # type: ignore[method-assign, assignment]
        return functools.partial(setattr, BaseProcess, "start", start)

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
        of_children = tuple(self._of_children())
        found = NO_MODEL_HERE if of_children else NO_MODEL
        if self.has_called:
            found += " It called a model without training it: with --inference, `run` explains such calls."
        elif not of_children:
            found += " Name the script that trains, or one that only calls models behind --inference."
        return (" ".join([found, *of_children]),)

    def _of_children(self) -> Iterator[str]:
        if number := process.num_other_processes():
            yield (
                f"It used the GPU in {number} other {'process' if number == 1 else 'processes'} that it started, of "
                "which this command sees phases alone: start ranks by torchrun or torch.multiprocessing.spawn instead."
            )
        elif self.num_started:
            yield f"The script started {some(self.num_started, 'process')} by multiprocessing."
            yield (
                "Training there is recorded by `run` alone."
                if self.children_recorded is None
                else "No training was found there either. Where such a process does not find this package, use "
                "profile_training in the function that it runs."
            )

    @property
    def without_steps(self) -> tuple[str, ...]:
        """A sentence where a training was found, and no step of it."""
        return () if self.has_stepped or self.ended_by is not None else (NO_STEP,)
