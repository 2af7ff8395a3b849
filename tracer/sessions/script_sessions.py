"""The sessions of a script: one of its first training, and one that watches what comes behind the recorded steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tracer.capture.objects.alive_objects import Alive
from tracer.exporters.screen.terminal import say
from tracer.sessions.counted_steps import CountedSteps
from tracer.sessions.session import fault_text
from tracer.sessions.training_profile import TrainingProfile

if TYPE_CHECKING:
    from tracer.sessions.training_watch import TrainingWatch

    ScriptSession = TrainingProfile | TrainingWatch | CountedSteps
    MakeSession = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], ScriptSession]
    MakeLater = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], TrainingWatch]


class ScriptSessions:
    """Makes both of the models and optimizers that are alive.

    Attributes:
        session: The first one; None until it has begun.
        later: The other one; None until then, and where nobody asked for it.
    """

    def __init__(self, make_session: MakeSession, make_later: MakeLater | None, *, is_inference: bool) -> None:
        self.session: ScriptSession | None = None
        self.later: TrainingWatch | None = None
        self._make_session, self._make_later, self._is_inference = make_session, make_later, is_inference
        self._is_told_by_profile = False  # Whether the failure that ended the script is in the profile's answer

    @property
    def profile(self) -> TrainingProfile | None:
        """The session where it is a profile."""
        return self.session if isinstance(self.session, TrainingProfile) else None

    @property
    def watch(self) -> TrainingWatch | None:
        """The session where it is a watch, whose class is loaded with it."""
        session = self.session
        return None if session is None or isinstance(session, TrainingProfile | CountedSteps) else session

    @property
    def page(self) -> Path | None:
        """The page of the recorded steps, if it was written."""
        return self.profile.page if self.profile is not None else None

    @property
    def is_incomplete(self) -> bool:
        """True if files or answers are missing."""
        return any(session.is_incomplete for session in (self.session, self.later) if session is not None)

    def begin_of_calls(self, module: nn.Module) -> list[nn.Module]:
        """Begin at a call of a model; return the models whose calls are steps."""
        alive = Alive()
        models = alive.callable(module)
        self.session = self._make_session(alive.named(models), ())
        self.session.__enter__()
        return models

    def begin_of_training(
        self, module: nn.Module | None, args: tuple[Any, ...], *, is_within_step: bool
    ) -> list[nn.Module]:
        """Begin at a call of a model, or at an optimizer's step; return the called models that no optimizer updates."""
        alive = Alive()
        trained, models = alive.trained(module)
        given = models or ([] if module is None else [module])
        self.session = self._make_session(alive.named(given), alive.optimizers)
        if is_within_step:
            self.session.wait_for_next_step()
        self.session.__enter__()
        if module in models:  # whose hooks of this call were read before ours were among them
            self.session.observe_call(module, args)
        parameters = (parameter for model in models for parameter in model.parameters())
        are_updated = module is None or any(id(parameter) in trained for parameter in parameters)
        return [] if are_updated else given

    def begin_without_training(self) -> None:
        """Begin where memory has ended before anything was trained."""
        alive = Alive()
        self.session = self._make_session(alive.named(alive.callable(None) or [nn.Module()]), alive.optimizers)
        self.session.__enter__()

    def abandon(self) -> None:
        """Drop the first one without a result."""
        session, self.session = self.session, None
        if session is not None:
            session.abandon()

    @property
    def can_watch_later(self) -> bool:
        """True if the steps after the recorded ones were asked for, too."""
        return self._make_later is not None

    def watch_later(self, num_steps_done: int) -> bool:
        """Watch what comes behind the recorded steps; where that goes wrong, a note says so, and the script goes on."""
        assert self._make_later is not None
        try:
            alive = Alive()
            models = alive.callable(None) if self._is_inference else alive.trained(None)[1]
            self.later = self._make_later(alive.named(models), alive.optimizers)
            self.later.num_steps_done = num_steps_done
            self.later.__enter__()
        except Exception as fault:
            self.later = None
            say(f"Note: What comes now is not watched: {fault_text(fault)}")
            return False
        return True

    def end_later(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End that watch, where there is one."""
        if self.later is not None:
            self.later.__exit__(kind, error, trace)
            if error is not None and self.later.report is not None and self.profile is not None:
                self._is_told_by_profile = self.profile.failed_later(error, self.later.report)

    def tell(self) -> tuple[str, ...]:
        """Print what was found, when the script has ended; return lines that say what to do next."""
        for watch in (self.watch, self.later):
            if watch is not None and not self._is_told_by_profile:
                watch.tell()
        if self.profile is not None:
            return self.profile.tell(self.later.explained_in if self.later is not None else None)
        return ()

    @property
    def are_elsewhere(self) -> bool:
        """True if this thread's steps are not those that are recorded: torch records one thread.

        A loop that has moved to another thread has left its first thread waiting, in `threading`.
        """
        recorded = self.profile.recorder.thread if self.profile is not None else threading.get_ident()
        if recorded == threading.get_ident():
            return False
        frame = sys._current_frames().get(recorded)
        return frame is not None and frame.f_code.co_filename != threading.__file__
