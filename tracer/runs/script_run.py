"""A script that knows nothing of this program, profiled: its models, optimizers and steps are found while it runs."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from tracer.capture.forked_child import in_forked_child
from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.objects.step_hooks import remove_hooks
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.errors import TracerError
from tracer.exporters.screen.terminal import say, say_beside_bars
from tracer.runs.loop_session import fault_text
from tracer.runs.steps_by_hand import StepsByHand
from tracer.runs.steps_of_calls import StepsOfCalls
from tracer.runs.training import TrainingProfile
from tracer.runs.watch import TrainingWatch
from tracer.units import some

Session = TrainingProfile | TrainingWatch
MakeSession = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], Session]

NO_MODEL = "No training was found: no model with parameters to be trained was called, and no optimizer made a step."
NO_CALL = "No model was called."
NO_STEP = (
    "No optimizer of torch's kind made a step, and the end of a step was not found otherwise. Use profile_training in "
    "the script, with a call of session.step()."
)


class ScriptTraining(TrainingProfile):
    """As `run` profiles: its steps are found, and what it has to say is one block behind the script's last line."""

    _steps_end_in_operators = True
    _has_failed: bool | None = None
    """Whether the script raised; None where there is nothing to tell, or all is told."""

    def tell(self) -> None:
        """Print what was found, when the script has ended; once."""
        has_failed, self._has_failed = self._has_failed, None
        if has_failed is not None:
            super()._tell(has_failed=has_failed)

    def tell_meanwhile(self) -> None:
        """One line, while the script goes on: files are there, and the answer comes when it ends."""
        if self._screen == "full" and self._folder.is_of_first_rank and self.results is not None:
            written = some(sum(file.error is None for file in self.written), "file")
            say_beside_bars(f"Recorded: {written} in {self.folder}. The answer follows when the script ends.")

    def _tell(self, *, has_failed: bool) -> None:
        self._has_failed = has_failed

    def _if_too_short(self) -> str:
        """Without any step, `ScriptProfile.notes` says why."""
        longer = "record from the first one with --n-warmup-steps 0, or let the script train for longer"
        return longer if self.num_steps_done else ""

    @property
    def _to_record_the_first(self) -> str:
        is_skipped = self.schedule.num_wait_steps or self.schedule.num_warmup_steps
        return "--n-wait-steps 0 --n-warmup-steps 0 record from the first one" if is_skipped else ""

    def _complain(self, sentence: str) -> None:
        """A line on stderr: nobody looks for the line of the script that a warning would name."""
        say(f"Note: {sentence}")

    def _tell_of_optimizers(self, objects: TrainingObjects) -> None:
        """Nothing: nobody said which optimizer belongs to which model, and latents and prompts are trained so."""


class ScriptWatch(TrainingWatch):
    """As `run --watch` watches."""

    def _tell_of_optimizers(self, objects: TrainingObjects) -> None:
        """Nothing, as in `ScriptTraining`."""


class FirstStepsDone(BaseException):
    """Ends a script of which nobody wants more than its first steps; no `except Exception` of its own stops it."""


class ScriptProfile:
    """Starts a session at the first call of a model that is being trained, and ends a step with the optimizers'.

    Where no model is called, as where tensors are trained that are in none, it starts when the first step has ended.

    A step ends when every optimizer that takes part has stepped: those that are alive at the first one's step, but for
    those that let another step twice meanwhile. Where none is alive that updates a model, see `StepsByHand`. In
    inference the first call of any model begins the session, and each call is a step. The files are written as soon as
    all is recorded, and the script goes on.

    Attributes:
        session: The profile; None until a model was called.
        is_in_child: Whether this process was forked by the one that began; it is silent then.
    """

    def __init__(
        self,
        make_session: MakeSession,
        *,
        is_enough: Callable[[], bool] | None = None,
        is_inference: bool = False,
    ) -> None:
        """Prepare.

        Args:
            make_session: Makes the profile of some models by name and some optimizers.
            is_enough: Asked after each step whether the script ends, by `FirstStepsDone`; it also does when all is
                recorded. None to let it go on.
            is_inference: The script trains nothing.
        """
        self._is_inference = is_inference
        self._of_calls: StepsOfCalls | None = None
        self._has_called = False
        self._is_enough = is_enough
        self.session: Session | None = None
        self._make_session = make_session
        self._unhook_modules: Callable[[], None] = _nothing
        self._unhook_optimizers: Callable[[], None] = _nothing
        self._stop_watching: Callable[[], None] | None = None
        # Weak: what a program has replaced is neither kept nor waited for.
        self._waits_for: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._by_hand: StepsByHand | None = None
        self._fault: Exception | None = None
        self._is_over = self._has_stepped = self._has_failed = False
        self.is_in_child = False
        self._forget_forks: Callable[[], object] = lambda: None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what could not be found; none where everything was recorded."""
        if self._fault is not None:
            return (f"The script was not profiled, and went on: {fault_text(self._fault)}",)
        if self.session is None:
            return (NO_CALL if self._is_inference else f"{NO_MODEL}{self._of_inference}",)
        return () if self.session.is_complete or self._has_stepped or self._has_failed else (NO_STEP,)

    @property
    def _of_inference(self) -> str:
        """What to do where models were called all the same."""
        return " It called a model without training it: --inference explains such calls." if self._has_called else ""

    def __enter__(self) -> Self:
        """Look out for models and steps."""
        self._forget_forks = in_forked_child(self._leave_to_parent)
        self._unhook_modules = _hook_modules(self._called)
        # It may stay when something is compiled: torch breaks the graph at an optimizer's step, in front of its hooks.
        stepped = torch.compiler.disable(self._optimizer_stepped)  # type: ignore[no-untyped-call]
        self._unhook_optimizers = register_optimizer_step_post_hook(stepped).remove
        self._stop_watching = torch_compile.on_compile_start(self._compilation_begins)
        return self

    def tell(self) -> None:
        """Print what was found; the script has ended."""
        if isinstance(self.session, ScriptTraining) and not self.is_in_child:
            self.session.tell()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no longer; write what was recorded, if that was not done yet. A forked child does nothing."""
        self._forget_forks()
        if self._of_calls is not None and error is None:
            self._step_ended()
        self._look_no_longer()
        self._has_failed = error is not None
        self._close(error)

    def _leave_to_parent(self) -> None:
        self.is_in_child = self._is_over = True
        self._look_no_longer()

    def _called(self, module: nn.Module, args: Any) -> None:
        """Before any module's call, until a session begins or something is compiled, whose code would contain it."""
        self._has_called = True
        if self._by_hand is not None:
            self._by_hand.called(module)
        elif self.session is None and (
            self._is_inference
            or (torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()))
        ):
            self._begin(module)

    def _begin(self, module: nn.Module | None) -> None:
        """Begin a session; a user's mistake ends the script, and a fault of ours does not."""
        try:
            self._begin_session(module)
        except TracerError:
            raise
        except Exception as fault:
            self._fault, self._is_over = fault, True
            self._look_no_longer()

    def _begin_session(self, module: nn.Module | None) -> None:
        if self._is_inference and module is not None:
            self._begin_inference(module)
            return
        optimizers = objects_of((torch.optim.Optimizer,))
        trained = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        alive = [model for model in objects_of((nn.Module,)) if not torch_compile.is_graph_of_compiler(model)]
        models = [model for model in outermost(alive) if model is module or _holds(model, module, trained)]
        self.session = self._make_session(named(models or ([] if module is None else [module])), optimizers)
        self.session.__enter__()
        if module is not None and not any(
            id(parameter) in trained for model in models for parameter in model.parameters()
        ):
            self._by_hand = StepsByHand(models or [module], self._step_ended)
        else:
            self._unhook_modules()

    def _begin_inference(self, module: nn.Module) -> None:
        alive = [model for model in objects_of((nn.Module,)) if not torch_compile.is_graph_of_compiler(model)]
        # A loss or a layer of its own is no model; what is called is one in any case.
        models = [model for model in outermost(alive) if model is module or any(True for _ in model.parameters())]
        self.session = self._make_session(named(models), ())
        self.session.__enter__()
        self._unhook_modules()
        self._of_calls = StepsOfCalls(models, module, self._step_ended)

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_over or self._is_inference:
            return
        if self.session is None:
            self._begin(None)
            return
        self._has_stepped = True
        self._not_by_hand()
        if optimizer in self._stepped:  # again, before others did: those take no part
            self._waits_for = self._stepped.copy()
        elif optimizer not in self._waits_for:
            self._waits_for.update(objects_of((torch.optim.Optimizer,)))
        self._stepped.add(optimizer)
        if self._waits_for <= self._stepped:
            self._stepped.clear()
            self._step_ended()

    def _step_ended(self) -> None:
        if self._is_over or self.session is None:
            return
        self._has_stepped = True
        self.session.step()
        is_enough = self._is_enough is not None and self._is_enough()
        if is_enough or self.session.is_complete:
            self._look_no_longer()
            self._close(None)
            if self._is_enough is not None:
                raise FirstStepsDone
            if isinstance(self.session, ScriptTraining):
                self.session.tell_meanwhile()

    def _not_by_hand(self) -> None:
        by_hand, self._by_hand = self._by_hand, None
        if by_hand is not None:
            by_hand.stop()
            self._unhook_modules()

    def _close(self, error: BaseException | None) -> None:
        if self.session is not None and not self._is_over:
            self._is_over = True
            self.session.__exit__(type(error) if error is not None else None, error, None)

    def _look_no_longer(self) -> None:
        self._not_by_hand()
        of_calls, self._of_calls = self._of_calls, None
        if of_calls is not None:
            of_calls.stop()
        self._unhook_modules()
        unhook_optimizers, self._unhook_optimizers = self._unhook_optimizers, _nothing
        remove_hooks([unhook_optimizers])
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    def _compilation_begins(self) -> None:
        self._not_by_hand()
        self._unhook_modules()


def _nothing() -> None:
    """There is no hook to remove."""


def _hook_modules(called: Callable[[nn.Module, Any], None]) -> Callable[[], None]:
    """Have it called before any module's call; torch warns of that where a model is compiled, and it is not the user's.

    Returns:
        What removes it; more than once does no harm.
    """
    # At the end: a script's own filters come before, and are left as they are.
    text = r"Using `torch\.compile\(module\)` when there are global hooks"
    warnings.filterwarnings("ignore", message=text, append=True)
    ignored = warnings.filters[-1]
    handle = register_module_forward_pre_hook(called)

    def remove() -> None:
        handle.remove()
        with suppress(ValueError):
            warnings.filters.remove(ignored)  # type: ignore[attr-defined]

    return remove


def outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that are in no other."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in torch_modules.child_modules(module).values()}
    return [module for module in modules if id(module) not in inner]


def _holds(model: nn.Module, module: nn.Module | None, trained: set[int]) -> bool:
    """Whether a model has a module inside, or parameters that an optimizer updates."""
    return any(child is module for child in model.modules()) or any(
        id(parameter) in trained for parameter in model.parameters()
    )


def named(models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """Models by their class's name, with a number where several have it; one alone needs no name."""
    if len(models) == 1:
        return {"": models[0]}
    names: dict[str, nn.Module] = {}
    for model in models:
        name = kind = type(model).__name__
        number = 1
        while name in names:
            number += 1
            name = f"{kind}_{number}"
        names[name] = model
    return names
