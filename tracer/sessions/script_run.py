"""Profile an unchanged script: its models, optimizers and steps are found while it runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tracer.answers.failure import is_out_of_memory
from tracer.capture.device.allocator_history import recorded_from_start
from tracer.capture.device.devices import is_accelerator
from tracer.capture.forked_child import in_forked_child
from tracer.capture.graph_captures import GRAPH_CAPTURES
from tracer.capture.objects.call_hooks import hook_every_module, remove_hooks
from tracer.capture.objects.live_tensors import FROZEN, objects_of
from tracer.capture.objects.model_names import names_of
from tracer.capture.objects.parameter_origins import ParameterOrigins
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.capture.torch_private.torch_graph import running_node
from tracer.errors import TracerError
from tracer.exporters.screen.terminal import say
from tracer.sessions.program_writes import WRITES
from tracer.sessions.session import fault_text
from tracer.sessions.started_processes import StartedProcesses
from tracer.sessions.step_finders import StepsByHand, StepsOfCalls, StepsOfOptimizers
from tracer.sessions.termination import signals_deferred, uninterrupted
from tracer.sessions.training_profile import TrainingProfile

_NO_MODEL = "no model with parameters to be trained was called, and no optimizer made a step."
NO_MODEL = f"No training was found: {_NO_MODEL}"
NO_MODEL_HERE = f"No training was found in the script's own process: {_NO_MODEL}"
NO_CALL = "No model was called."
NO_STEP = (
    "No optimizer of torch's kind made a step, and the end of a step was not found otherwise. Use profile_training in "
    "the script, with a call of session.step()."
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


if TYPE_CHECKING:
    from tracer.sessions.training_watch import TrainingWatch

    ScriptSession = TrainingProfile | TrainingWatch | CountedSteps
    MakeSession = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], ScriptSession]
    MakeLater = Callable[[dict[str, nn.Module], Sequence[torch.optim.Optimizer]], TrainingWatch]


class ScriptStage(Enum):
    """How far the recording of a script is; it goes from one to the next, in the methods that are named."""

    WAITING = "no session has begun: `_begin`"
    RECORDING = "a session is on: `_close`"
    OVER = "the session has ended, or none may begin any more"


class FirstStepsDone(BaseException):
    """Raised to stop a script early. Derives from BaseException so that the script cannot catch it."""


class ScriptProfile:
    """Starts a session at the first call of a model that is being trained, and ends a step with the optimizers'.

    Where no model is called, as where tensors are trained that are in none, it starts when the first step has ended.

    Where a step ends, `StepsOfOptimizers` says; where none is alive that updates a model, `StepsByHand`. In inference
    the first call of any model begins the session, and `StepsOfCalls` counts. The files are written as soon as all is
    recorded, and the script goes on.
    """

    def __init__(
        self,
        make_session: MakeSession,
        *,
        make_later: MakeLater | None = None,
        is_enough: Callable[[], bool] | None = None,
        at_first_call: Callable[[], None] | None = None,
        is_inference: bool = False,
    ) -> None:
        """Set up; the session begins when the script's model is found.

        Args:
            make_session: Makes the profile of some models by name and some optimizers.
            make_later: Makes what watches them when all is recorded; None for nothing.
            is_enough: Asked after each step whether the script ends, by `FirstStepsDone`; it also does when all is
                recorded. None to let it go on.
            at_first_call: Called before the first call of any module, trained or not; None for nothing.
            is_inference: The script trains nothing.
        """
        self._is_inference = is_inference
        self._of_calls: StepsOfCalls | None = None
        self._has_called = False
        self._is_enough = is_enough
        self.session: ScriptSession | None = None  # The profile; None until a model was called
        # Watches the script from when all is recorded; None until then, and where nobody asked for it
        self.later: TrainingWatch | None = None
        self._make_session, self._make_later = make_session, make_later
        self._at_first_call = at_first_call or _nothing
        self._unhook_modules: Callable[[], None] = _nothing
        self._looking = ExitStack()  # Looks out for parameters, optimizers' steps and compilation
        self._of_optimizers = StepsOfOptimizers(self._step_ended)
        self._by_hand: StepsByHand | None = None
        self._fault: Exception | None = None
        self.stage = ScriptStage.WAITING
        self._has_stepped = self._has_failed = self._ends_at_next_call = False
        self._ended_by = ""  # The class of the exception that ended the script
        self._is_told_by_profile = False  # Whether the failure that ended the script is in the profile's answer
        self.is_in_child = False  # Whether this process was forked by the one that began; it is silent then
        self.has_failed_before = False  # Whether memory ran out before any session had begun
        self._forget_forks: Callable[[], object] = lambda: None
        self._started = StartedProcesses()
        self._lock = threading.Lock()
        self._stop_counting: Callable[[], None] = _nothing
        # How many children by multiprocessing have recorded a training; None where that is not looked for
        self.children_recorded: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what could not be found; none where everything was recorded."""
        if self._fault is not None:
            return (f"The script was not profiled, and went on: {fault_text(self._fault)}",)
        if self.session is None:
            if self._has_failed:  # the error says why
                return ()
            if self._ended_by:
                return (f"The script ended by {self._ended_by} before a training was found.",)
            if self._is_inference:
                return (NO_CALL,)
            if self.children_recorded:
                return ()
            found = NO_MODEL_HERE if len(self._started) else NO_MODEL
            if self._has_called:
                found += " It called a model without training it: with --inference, `run` explains such calls."
            of_children = self._started.sentences(are_recorded=self.children_recorded is not None)
            return (" ".join([found, *of_children]),)
        return () if self.session.is_complete or self._has_stepped or self._has_failed else (NO_STEP,)

    @property
    def is_incomplete(self) -> bool:
        """Whether files or answers are missing by a fault that is not the script's."""
        sessions = (session for session in (self.session, self.later) if session is not None)
        return self._fault is not None or any(session.is_incomplete for session in sessions)

    def __enter__(self) -> Self:
        self._forget_forks = in_forked_child(self._leave_to_parent)
        self._stop_counting = self._started.begin()
        self._unhook_modules = hook_every_module(self._called)
        self._looking.enter_context(ParameterOrigins())
        # It may stay when something is compiled: torch breaks the graph at an optimizer's step, in front of its hooks.
        stepped = torch_compile.never_compiled(self._optimizer_stepped)
        self._looking.callback(remove_hooks, [register_optimizer_step_post_hook(stepped).remove])
        self._looking.callback(torch_compile.on_compile_start(self._compilation_begins))
        GRAPH_CAPTURES.start()
        FROZEN.start()
        return self

    def tell(self) -> tuple[str, ...]:
        """Print what was found, when the script has ended; return lines that say what to do next."""
        if self.is_in_child:
            return ()
        for watch in (self._watch, self.later):
            if watch is not None and not self._is_told_by_profile:
                watch.tell()
        if isinstance(self.session, TrainingProfile):
            return self.session.tell(self.later.explained_in if self.later is not None else None)
        return ()

    @property
    def page(self) -> Path | None:
        """The page of the recorded steps, if it was written."""
        return self.session.page if isinstance(self.session, TrainingProfile) else None

    @property
    def _watch(self) -> TrainingWatch | None:
        """The session where it is a watch, whose class is loaded with it."""
        session = self.session
        return None if session is None or isinstance(session, TrainingProfile | CountedSteps) else session

    def script_ended(self) -> None:
        """The script's last line has run, and its variables are still there: a watch says what they hold."""
        if self._watch is not None and not self.is_in_child:
            if self._of_calls is not None:
                self._step_ended()
            self._look_no_longer()
            self._close(None)

    @uninterrupted
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no longer; write what was recorded, if that was not done yet. A forked child does nothing."""
        with signals_deferred(error):
            self._forget_forks()
            self._stop_counting()
            if self._of_calls is not None and error is None:
                self._end_last_step()
            self._look_no_longer()
            if error is not None:
                self._explain_without_session(error)
            if isinstance(error, Exception):
                self._ended_by = type(error).__name__
            self._has_failed = isinstance(error, TracerError) or (error is not None and self.session is not None)
            self._close(error)
            GRAPH_CAPTURES.stop()
            FROZEN.stop()
            if self.later is not None:
                self.later.__exit__(kind, error, trace)
                if error is not None and self.later.report is not None and isinstance(self.session, TrainingProfile):
                    self._is_told_by_profile = self.session.failed_later(error, self.later.report)

    def _explain_without_session(self, error: BaseException) -> None:
        """Memory that ends before anything was trained: the allocator's history has it from the start."""
        if self.stage is ScriptStage.WAITING and is_out_of_memory(error) and recorded_from_start():
            self.has_failed_before = True
            alive = Alive()
            models = alive.callable(None) or [nn.Module()]
            self.session, self.stage = self._make_session(alive.named(models), alive.optimizers), ScriptStage.RECORDING
            self.session.__enter__()

    def _leave_to_parent(self) -> None:
        self.is_in_child, self.stage = True, ScriptStage.OVER
        self._look_no_longer()

    def _called(self, module: nn.Module, args: Any) -> None:
        """Before any module's call, until a session begins or something is compiled, whose code would contain it."""
        if not self._has_called:
            self._has_called = True
            self._at_first_call()
        if self._by_hand is not None:
            self._by_hand.called(module)
            self._end_endless_step()
        elif self.stage is ScriptStage.WAITING and (
            self._is_inference
            or (torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()))
        ):
            self._begin(module, args)

    def _begin(self, module: nn.Module | None, args: tuple[Any, ...] = (), *, is_within_step: bool = False) -> None:
        """Begin a session; a user's mistake ends the script, and a fault of ours does not.

        Another thread that trains meanwhile begins none.

        Args:
            is_within_step: Whether an earlier session has ended in the step that is under way.
        """
        with signals_deferred(), self._by_one_thread() as is_alone:
            if not is_alone or self.stage is not ScriptStage.WAITING:
                return
            self.stage = ScriptStage.RECORDING
            try:
                self._begin_session(module, args, is_within_step=is_within_step)
            except TracerError:
                self.session, self.stage, self._has_failed = None, ScriptStage.OVER, True
                self._look_no_longer()
                raise
            except Exception as fault:
                self._fault, self.stage = fault, ScriptStage.OVER
                self._look_no_longer()

    def _begin_session(self, module: nn.Module | None, args: tuple[Any, ...], *, is_within_step: bool) -> None:
        WRITES.share_with_ranks()
        alive = Alive()
        if self._is_inference and module is not None:
            models = alive.callable(module)
            self.session = self._make_session(alive.named(models), ())
            self.session.__enter__()
            self._unhook_modules()
            self._of_calls = StepsOfCalls(models, module, self._step_ended)
            return
        trained, models = alive.trained(module)
        given = models or ([] if module is None else [module])
        self.session = self._make_session(alive.named(given), alive.optimizers)
        if is_within_step:
            self.session.wait_for_next_step()
        self.session.__enter__()
        if module in models:  # whose hooks of this call were read before ours were among them
            self.session.observe_call(module, args)
        if module is not None and not any(
            id(parameter) in trained for model in models for parameter in model.parameters()
        ):
            self._by_hand = StepsByHand(models or [module], self._step_ended)
        else:
            self._unhook_modules()

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_inference or (self.stage is ScriptStage.OVER and self.later is None):
            return
        if self.stage is ScriptStage.WAITING:
            self._begin(None)
            return
        self._has_stepped = True
        is_of_others = self._by_hand is not None and not self._by_hand.trains_with(optimizer)
        if is_of_others and self.session is not None and self.session.num_steps_done == 0:
            # It began with a call while the program was still building its model, such as of a layer by itself.
            self.session.abandon()
            self.session, self.stage = None, ScriptStage.WAITING
            self._begin(None, is_within_step=True)
        self._not_by_hand()
        self._of_optimizers.stepped(optimizer)

    def _end_endless_step(self) -> None:
        """Record no whole training where ends of steps are not found."""
        if self._by_hand is None or not self._by_hand.has_passed_on or running_node() is not None:
            return
        if isinstance(self.session, TrainingProfile):
            with signals_deferred():
                self.session.recorder.end_endless_step()

    def _step_ended(self) -> None:
        """End a step; one that ends inside of backward, where optimizers step by hooks, ends at the next call.

        No recording can end or begin within backward: torch puts the profiler's state back behind each of its nodes.
        """
        if running_node() is None:
            with signals_deferred(), self._by_one_thread() as is_alone:
                if is_alone and not self._is_of_another_training():
                    self._end_step()
        elif not self._ends_at_next_call:
            self._ends_at_next_call = True
            self._unhook_modules()
            self._unhook_modules = hook_every_module(self._called_behind_backward)

    @contextmanager
    def _by_one_thread(self) -> Iterator[bool]:
        """Yield whether no other thread is in such a block; none waits for another."""
        is_alone = self._lock.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._lock.release()

    def _is_of_another_training(self) -> bool:
        """Whether a step is another thread's while the thread that is recorded goes on: torch records one thread.

        A loop that has moved to another thread has left its own waiting, in `threading`.
        """
        recorded = self.session.recorder.thread if isinstance(self.session, TrainingProfile) else threading.get_ident()
        if recorded == threading.get_ident():
            return False
        frame = sys._current_frames().get(recorded)
        return frame is not None and frame.f_code.co_filename != threading.__file__

    def _called_behind_backward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if running_node() is None:  # else a checkpoint's
            self._ends_at_next_call = False
            self._unhook_modules()
            self._step_ended()

    def _end_step(self) -> None:
        if self.later is not None:
            self.later.step()
        if self.stage is not ScriptStage.RECORDING or self.session is None:
            return
        self._has_stepped = True
        self.session.step()
        is_enough = self._is_enough is not None and self._is_enough()
        if is_enough or self.session.is_complete:
            self._all_is_recorded()

    def _end_last_step(self) -> None:
        """End the step of the last call, with which the script ends."""
        if isinstance(self.session, TrainingProfile) and self.stage is ScriptStage.RECORDING:
            self._has_stepped = True
            self.session.end_last_step()
        else:
            self._end_step()

    def _all_is_recorded(self) -> None:
        assert self.session is not None
        # A loop without an optimizer has no steps that could be counted on; a CPU's allocator tells nothing.
        can_go_on = self._by_hand is None and is_accelerator(self.session.device)
        make_later = self._make_later if can_go_on else None
        if make_later is None:
            self._look_no_longer()
        self._close(None)
        if self._is_enough is not None:
            raise FirstStepsDone
        if isinstance(self.session, TrainingProfile):
            self.session.tell_meanwhile()
        if make_later is not None:
            self._watch_later(make_later, self.session.num_steps_done)

    def _watch_later(self, make_later: MakeLater, num_steps_done: int) -> None:
        """Watch the rest; what goes wrong in that is a note, and the script goes on."""
        try:
            alive = Alive()
            models = alive.callable(None) if self._is_inference else alive.trained(None)[1]
            self.later = make_later(alive.named(models), alive.optimizers)
            self.later.num_steps_done = num_steps_done
            self.later.__enter__()
        except Exception as fault:
            self.later = None
            self._look_no_longer()
            say(f"Note: What comes now is not watched: {fault_text(fault)}")

    def _not_by_hand(self) -> None:
        by_hand, self._by_hand = self._by_hand, None
        if by_hand is not None:
            by_hand.stop()
            self._unhook_modules()

    def _close(self, error: BaseException | None) -> None:
        if self.session is not None and self.stage is ScriptStage.RECORDING:
            self.stage = ScriptStage.OVER
            self.session.__exit__(type(error) if error is not None else None, error, None)

    def _look_no_longer(self) -> None:
        self._not_by_hand()
        self._looking.close()
        remove_hooks(())  # what could not go within a step
        of_calls, self._of_calls = self._of_calls, None
        if of_calls is not None:
            of_calls.stop()
        self._unhook_modules()

    def _compilation_begins(self) -> None:
        if isinstance(self.session, TrainingProfile):  # a profiler would record all that the compiler does
            with signals_deferred():
                self.session.recorder.end_first_step()
        self._not_by_hand()
        self._unhook_modules()


def _nothing() -> None:
    """No-op."""


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
    """Whether a model has a module inside, or parameters that an optimizer updates."""
    return any(child is module for child in model.modules()) or any(
        id(parameter) in trained for parameter in model.parameters()
    )
