"""The sessions of a script: one of its first training, and one that watches what comes behind the recorded steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import nn

from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.objects.model_names import names_of
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.exporters.screen.terminal import say
from tracer.sessions.session import fault_text
from tracer.sessions.training_profile import TrainingProfile

if TYPE_CHECKING:
    from tracer.sessions.training_watch import TrainingWatch

    ScriptSession: TypeAlias = "TrainingProfile | TrainingWatch | CountedSteps"
    MakeSession = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], ScriptSession]
    MakeLater = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], TrainingWatch]


class Alive:
    """Optimizers and models that are there now, found in one look at all that Python holds."""

    def __init__(self) -> None:
        objects: list[Any] = objects_of((torch.optim.Optimizer, nn.Module))
        optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        # Some wrappers have no groups.
        self.optimizers = [optimizer for optimizer in optimizers if hasattr(optimizer, "param_groups")]
        modules = [each for each in objects if isinstance(each, nn.Module)]
        modules = [module for module in modules if not torch_compile.is_graph_of_compiler(module)]
        inner = {id(child) for module in modules for child in torch_modules.child_modules(module).values()}
        self._outermost = [module for module in modules if id(module) not in inner]

    def trained(self, module: nn.Module | None) -> tuple[set[int], list[nn.Module]]:
        """`id()` of the parameters that optimizers update, and the models that have some or are being called."""
        trained = {
            id(parameter)
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return trained, [model for model in self._outermost if model is module or _holds(model, module, trained)]

    def callable(self, module: nn.Module | None) -> list[nn.Module]:
        """Models that can be called for an answer: a loss or a layer of its own is none; what is called is one."""
        return [model for model in self._outermost if model is module or any(True for _ in model.parameters())]

    def named(self, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
        """Models by their names; one needs none, unless the program has another of its class that has parameters."""
        given = {id(model) for model in models}
        kinds = {type(model) for model in models}
        alike = [model for model in self._outermost if type(model) in kinds and id(model) not in given]
        alike = [model for model in alike if any(True for _ in model.parameters())]
        if len(models) == 1 and not alike:
            return {"": models[0]}
        names = names_of((*models, *alike))
        return {names[id(model)]: model for model in models}


def _holds(model: nn.Module, module: nn.Module | None, trained: set[int]) -> bool:
    """True if a model has a module inside, or parameters that an optimizer updates."""
    return any(child is module for child in model.modules()) or any(
        id(parameter) in trained for parameter in model.parameters()
    )


@dataclass(slots=True)
class CountedSteps:
    """Steps of a script that are counted, and nothing more."""

    device: torch.device  # Where what is trained was when its first step began
    num_steps_done: int = 0  # How many have ended
    is_complete: bool = False  # Whether no more are wanted; the script's profile asks its own question
    is_incomplete: bool = False  # Never: it writes nothing

    @classmethod
    def of(cls, models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> CountedSteps:
        """Steps of these objects; without parameters they are on the CPU."""
        parameters = [parameter for model in models.values() for parameter in model.parameters()]
        parameters += [item for optimizer in optimizers for group in optimizer.param_groups for item in group["params"]]
        return cls(parameters[0].device if parameters else torch.device("cpu"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No-op: nothing is switched on."""

    def wait_for_next_step(self) -> None:
        """No-op: nothing is recorded."""

    def abandon(self) -> None:
        """No-op: nothing is switched on."""

    def observe_call(self, module: nn.Module, args: Any) -> None:
        """A call of a model is not looked at."""

    def step(self) -> None:
        """Count a step that has ended."""
        self.num_steps_done += 1


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
