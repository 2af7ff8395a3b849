"""Messages of sessions: to a program that calls one, or about an unchanged script."""

from __future__ import annotations

from typing import ClassVar

from tracer.capture.objects.training_objects import TrainingObjects
from tracer.exporters.notebook import Paragraph, display_in_notebook
from tracer.exporters.screen.terminal import say
from tracer.sessions.session import warn_at_users_line


class Voice:
    """Words to a program that calls the session: at once, and with warnings at the program's line."""

    is_of_script: ClassVar[bool] = False  # Whether hooks find the steps, and the answer waits for the script's end
    to_record_the_first: ClassVar[str] = "schedule=Schedule(0, 0, 1, 1) records from the first one"
    if_too_short: ClassVar[str] = "call session.step() after each step, or pass a shorter schedule=Schedule(...)"

    def of_optimizers(self, objects: TrainingObjects) -> None:
        """Warn, at the line that makes the session, of optimizers that update something else."""
        for sentence in objects.updates_of_others():
            warn_at_users_line(sentence)

    def complain(self, sentence: str) -> None:
        """Warn, at the line that ends the block; in a notebook, below the cell."""
        if not display_in_notebook(Paragraph(sentence)):
            warn_at_users_line(sentence)


class ScriptVoice(Voice):
    """The voice of `run`: lines on stderr, because a warning would name a line of the script that is not at fault."""

    is_of_script = True
    to_record_the_first = "--n-wait-steps 0 --n-warmup-steps 0 record from the first one"
    if_too_short = "record from the first one with --n-warmup-steps 0, or let the script train for longer"

    def of_optimizers(self, objects: TrainingObjects) -> None:
        """No-op: optimizers of a script may train tensors outside any model, such as latents and prompts."""

    def complain(self, sentence: str) -> None:
        """Print it."""
        say(f"Note: {sentence}")
