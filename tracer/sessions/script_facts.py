"""Facts about a script in which no training was found, or no step, and the sentences on them."""

from __future__ import annotations

from collections.abc import Callable

from tracer.errors import TracerError
from tracer.sessions.session import fault_text
from tracer.sessions.started_processes import StartedProcesses

_NO_MODEL = "no model with parameters to be trained was called, and no optimizer made a step."
NO_MODEL = f"No training was found: {_NO_MODEL}"
NO_MODEL_HERE = f"No training was found in the script's own process: {_NO_MODEL}"
NO_CALL = "No model was called."
NO_STEP = (
    "No optimizer of torch's kind made a step, and the end of a step was not found otherwise. Use profile_training in "
    "the script, with a call of session.step()."
)


class ScriptFacts:
    """How far a script got.

    Attributes:
        fault: A fault of ours by which nothing is recorded, or None.
        has_called: Whether a module was called.
        has_stepped: Whether a step has ended.
        ended_by: The class of the exception that ended the script, or None.
        children_recorded: How many children by multiprocessing have recorded a training; None where that is not looked
            for.
    """

    def __init__(self, *, is_inference: bool) -> None:
        self.fault: Exception | None = None
        self.has_called = self.has_stepped = False
        self.ended_by: type[BaseException] | None = None
        self.children_recorded: int | None = None
        self._is_inference, self._started = is_inference, StartedProcesses()

    def begin(self) -> Callable[[], None]:
        """Count the processes that the script starts; return a function that ends it."""
        return self._started.begin()

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
        found = NO_MODEL_HERE if len(self._started) else NO_MODEL
        if self.has_called:
            found += " It called a model without training it: with --inference, `run` explains such calls."
        elif not len(self._started):
            found += " Name the script that trains, or one that only calls models behind --inference."
        of_children = self._started.sentences(are_recorded=self.children_recorded is not None)
        return (" ".join([found, *of_children]),)

    @property
    def without_steps(self) -> tuple[str, ...]:
        """A sentence where a training was found, and no step of it."""
        return () if self.has_stepped or self.ended_by is not None else (NO_STEP,)
