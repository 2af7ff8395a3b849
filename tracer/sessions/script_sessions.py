"""The sessions of a script: one of its first training, and one that watches what comes behind the recorded steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.objects.model_names import names_of
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.exporters.screen.terminal import say
from tracer.sessions.session import ScriptSession, fault_text

if TYPE_CHECKING:
    from tracer.sessions.recorder import Recorder
    from tracer.sessions.training_watch import TrainingWatch

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

        def takes_part(model: nn.Module) -> bool:
            return any(child is module for child in model.modules()) or any(
                id(parameter) in trained for parameter in model.parameters()
            )

        return trained, [model for model in self._outermost if model is module or takes_part(model)]

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


class CountedSteps(ScriptSession):
    """Steps of a script that are counted, and nothing more."""

    num_steps_done = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device  # Where what is trained was when its first step began

    @classmethod
    def of(cls, models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> CountedSteps:
        """Steps of these objects; without parameters they are on the CPU."""
        parameters = [parameter for model in models.values() for parameter in model.parameters()]
        parameters += [item for optimizer in optimizers for group in optimizer.param_groups for item in group["params"]]
        return cls(parameters[0].device if parameters else torch.device("cpu"))

    def step(self) -> None:
        """Count a step that has ended."""
        self.num_steps_done += 1


class ScriptSessions:
    """Makes both of the models and optimizers that are alive.

    Attributes:
        session: The first one; None until it has begun.
        later: The other one; None until then, and where nobody asked for it.
        can_watch_later: Whether the steps after the recorded ones were asked for, too.
    """

    def __init__(self, make_session: MakeSession, make_later: MakeLater | None, *, is_inference: bool) -> None:
        self.session: ScriptSession | None = None
        self.later: TrainingWatch | None = None
        self.can_watch_later = make_later is not None
        self._make_session, self._make_later, self._is_inference = make_session, make_later, is_inference
        self._is_told_by_profile = False  # Whether the failure that ended the script is in the profile's answer

    @property
    def recorder(self) -> Recorder | None:
        """The session's recorder; None where it has none, or has not begun."""
        return self.session.recorder if self.session is not None else None

    @property
    def is_incomplete(self) -> bool:
        """True if files or answers are missing."""
        return any(session.is_incomplete for session in (self.session, self.later) if session is not None)

    def begin_of_calls(self, module: nn.Module) -> list[nn.Module]:
        """Begin at a call of a model; return the models whose calls are steps."""
        alive = Alive()
        models = alive.callable(module)
        self._begin(alive.named(models), ())
        return models

    def begin_of_training(
        self, module: nn.Module | None, args: tuple[Any, ...], *, is_within_step: bool
    ) -> list[nn.Module]:
        """Begin at a call of a model, or at an optimizer's step; return the called models that no optimizer updates."""
        alive = Alive()
        trained, models = alive.trained(module)
        given = models or ([] if module is None else [module])
        session = self._begin(alive.named(given), alive.optimizers, is_within_step=is_within_step)
        if module in models:  # whose hooks of this call were read before ours were among them
            session.observe_call(module, args)
        parameters = (parameter for model in models for parameter in model.parameters())
        are_updated = module is None or any(id(parameter) in trained for parameter in parameters)
        return [] if are_updated else given

    def begin_without_training(self) -> None:
        """Begin where memory has ended before anything was trained."""
        alive = Alive()
        self._begin(alive.named(alive.callable(None) or [nn.Module()]), alive.optimizers)

    def _begin(
        self, models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer], *, is_within_step: bool = False
    ) -> ScriptSession:
        self.session = session = self._make_session(models, optimizers)
        if is_within_step:
            session.wait_for_next_step()
        session.__enter__()
        return session

    def abandon(self) -> None:
        """Drop the first one without a result."""
        session, self.session = self.session, None
        if session is not None:
            session.abandon()

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
            if error is not None and self.later.report is not None and self.session is not None:
                self._is_told_by_profile = self.session.failed_later(error, self.later.report)

    def tell(self) -> tuple[str, ...]:
        """Print what was found, when the script has ended; return lines that say what to do next."""
        if self.later is not None and not self._is_told_by_profile:
            self.later.tell()
        if self.session is None:
            return ()
        return self.session.tell(self.later.explained_in if self.later is not None else None)

    @property
    def are_elsewhere(self) -> bool:
        """True if this thread's steps are not those that are recorded: torch records one thread.

        A loop that has moved to another thread has left its first thread waiting, in `threading`.
        """
        if self.recorder is None or self.recorder.thread == threading.get_ident():
            return False
        frame = sys._current_frames().get(self.recorder.thread)
        return frame is not None and frame.f_code.co_filename != threading.__file__
