"""Facts about a script in which no training was found, or no step, and the sentences on them."""

from __future__ import annotations

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
        children_recorded: How many children by multiprocessing have recorded a training.
    """

    def __init__(self, *, is_inference: bool) -> None:
        self.fault: Exception | None = None
        self.has_called = self.has_stepped = False
        self.ended_by: type[BaseException] | None = None
        self.children_recorded, self._is_inference = 0, is_inference

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
        if number := process.num_other_processes():
            return (
                f"{NO_MODEL_HERE} It used the GPU in {some(number, 'other process')} that it started, of which this "
                "command sees phases alone: start ranks by torchrun or torch.multiprocessing.spawn instead.",
            )
        if self.has_called:
            return (f"{NO_MODEL} It called a model without training it: with --inference, `run` explains such calls.",)
        return (f"{NO_MODEL} Name the script that trains, or one that only calls models behind --inference.",)

    @property
    def without_steps(self) -> tuple[str, ...]:
        """A sentence where a training was found, and no step of it."""
        return () if self.has_stepped or self.ended_by is not None else (NO_STEP,)
