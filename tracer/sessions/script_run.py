"""Profile an unchanged script: its models, optimizers and steps are found while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
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
from tracer.capture.objects.call_hooks import remove_hooks
from tracer.capture.objects.live_tensors import FROZEN, looked_for_once
from tracer.capture.objects.parameter_origins import ParameterOrigins
from tracer.capture.torch_private import torch_compile
from tracer.capture.torch_private.torch_history import RAISED
from tracer.errors import TracerError
from tracer.sessions.program_writes import WRITES
from tracer.sessions.script_facts import ScriptFacts
from tracer.sessions.script_sessions import ScriptSessions
from tracer.sessions.step_finders import StepFinder
from tracer.sessions.termination import signals_deferred, uninterrupted

if TYPE_CHECKING:
    from tracer.sessions.script_sessions import MakeLater, MakeSession
    from tracer.sessions.session import ScriptSession
    from tracer.sessions.training_watch import TrainingWatch


class ScriptStage(Enum):
    """Progress of a script's recording, which goes from one to the next in the methods that are named."""

    WAITING = "no session has begun: `_begin`"
    RECORDING = "a session is on: `_close`"
    OVER = "the session has ended, or none may begin any more"


class FirstStepsDone(BaseException):
    """Raised to stop a script early. Derives from BaseException so that the script cannot catch it."""


class ScriptProfile:
    """Starts a session at the first call of a model that is being trained, and ends a step where one is found.

    Where no model is called, as where tensors are trained that are in none, it starts when the first step has ended.

    Where a step ends, `StepFinder` says: by optimizers; where none is alive that updates a model, by gradients. In
    inference the first call of any model begins the session, and calls are steps. The files are written as soon as all
    is recorded, and the script goes on.

    Attributes:
        sessions: The sessions of the script's training.
        facts: How far the script got.
        is_in_child: Whether this process was forked by the one that began; it is silent then.
        has_failed_before: Whether memory ran out before any session had begun.
    """

    def __init__(
        self,
        make_session: MakeSession,
        *,
        make_later: MakeLater | None = None,
        is_enough: Callable[[], bool] | None = None,
        at_first_call: Callable[[], None] = lambda: None,
        is_inference: bool = False,
    ) -> None:
        """Set up; the session begins when the script's model is found.

        Args:
            make_session: Makes the profile of some models by name and some optimizers.
            make_later: Makes what watches them when all is recorded; None for nothing.
            is_enough: Asked after each step whether the script ends, by `FirstStepsDone`; it also does when all is
                recorded. None to let it go on.
        """
        self.stage, self.facts = ScriptStage.WAITING, ScriptFacts(is_inference=is_inference)
        self.is_in_child = self.has_failed_before = False
        self._is_inference, self._is_enough, self._at_first_call = is_inference, is_enough, at_first_call
        self.sessions = ScriptSessions(make_session, make_later, is_inference=is_inference)
        self._steps = StepFinder(self._step_ended)
        self._looking = ExitStack()  # Looks out for parameters, optimizers' steps and compilation
        self._on = ExitStack()  # Follows forks and started processes
        self._lock = threading.Lock()

    @property
    def session(self) -> ScriptSession | None:
        """The profile, or watch; None until a model was called."""
        return self.sessions.session

    @property
    def later(self) -> TrainingWatch | None:
        """Watches the script from when all is recorded; None until then, and where nobody asked for it."""
        return self.sessions.later

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what could not be found; none where everything was recorded."""
        if self.session is None or self.facts.fault is not None:
            return self.facts.without_session
        return () if self.session.is_complete else self.facts.without_steps

    @property
    def is_incomplete(self) -> bool:
        """True if files or answers are missing by a fault that is not the script's."""
        return self.facts.fault is not None or self.sessions.is_incomplete

    # ------------------------------------------------------------------------------------------------- the life cycle
    def __enter__(self) -> Self:
        self._on.callback(in_forked_child(self._leave_to_parent))
        self._on.callback(self.facts.count_started())
        self._steps.hook_calls(self._called)
        self._looking.enter_context(ParameterOrigins())
        # It may stay when something is compiled: torch breaks the graph at an optimizer's step, in front of its hooks.
        stepped = torch_compile.never_compiled(self._optimizer_stepped)
        self._looking.callback(remove_hooks, [register_optimizer_step_post_hook(stepped).remove])
        self._looking.callback(torch_compile.on_compile_start(self._compilation_begins))
        GRAPH_CAPTURES.start()
        FROZEN.start()
        RAISED.start()
        return self

    def tell(self) -> tuple[str, ...]:
        """Print what was found, when the script has ended; return lines that say what to do next."""
        return () if self.is_in_child else self.sessions.tell()

    def script_ended(self) -> None:
        """The script's last line has run, and its variables are still there: a watch says what they hold."""
        if self.session is not None and self.session.explains_variables and not self.is_in_child:
            if self._steps.are_of_calls:
                self._steps.step_ended()
            self._look_no_longer()
            self._close(None)

    @uninterrupted
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no longer; write what was recorded, if that was not done yet. A forked child does nothing."""
        with signals_deferred(error):
            self._on.close()
            if self._steps.are_of_calls and error is None:
                # The last call's step ends with the script.
                is_recorded = self.stage is ScriptStage.RECORDING and self.sessions.recorder is not None
                if self.session is not None and is_recorded:
                    self.facts.has_stepped = True
                    self.session.end_last_step()
                else:
                    self._end_step()
            self._look_no_longer()
            if error is not None:
                # Memory that ends before anything was trained: the allocator's history has it from the start.
                if self.stage is ScriptStage.WAITING and is_out_of_memory(error) and recorded_from_start():
                    self.has_failed_before, self.stage = True, ScriptStage.RECORDING
                    self.sessions.begin_without_training()
                self.facts.ended_by = type(error)
            self._close(error)
            GRAPH_CAPTURES.stop()
            FROZEN.stop()
            RAISED.stop()
            self.sessions.end_later(kind, error, trace)

    def _leave_to_parent(self) -> None:
        self.is_in_child, self.stage = True, ScriptStage.OVER
        self._look_no_longer()

    def _close(self, error: BaseException | None) -> None:
        if self.session is not None and self.stage is ScriptStage.RECORDING:
            self.stage = ScriptStage.OVER
            self.session.__exit__(type(error) if error is not None else None, error, None)

    def _look_no_longer(self) -> None:
        self._steps.end_by_hand()
        self._looking.close()
        remove_hooks(())  # what could not go within a step
        self._steps.stop()

    def _compilation_begins(self) -> None:
        if (recorder := self.sessions.recorder) is not None:  # which would record all that the compiler does
            with signals_deferred():
                recorder.end_first_step()
        self._steps.end_by_hand()
        self._steps.unhook_calls()

    # ------------------------------------------------------------------------------------------- where a session begins
    def _called(self, module: nn.Module, args: Any) -> None:
        """Before any module's call, until a session begins or something is compiled, whose code would contain it."""
        if not self.facts.has_called:
            self.facts.has_called = True
            self._at_first_call()
        if self._steps.are_by_hand:
            self._steps.called(module)
            if self._steps.are_endless and (recorder := self.sessions.recorder) is not None:  # record no whole training
                with signals_deferred():
                    recorder.end_endless_step()
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
        with signals_deferred(), self._by_one_thread() as is_alone, looked_for_once():
            if not is_alone or self.stage is not ScriptStage.WAITING:
                return
            self.stage = ScriptStage.RECORDING
            try:
                WRITES.share_with_ranks()
                if self._is_inference and module is not None:
                    self._steps.of_calls(self.sessions.begin_of_calls(module), module)
                elif by_hand := self.sessions.begin_of_training(module, args, is_within_step=is_within_step):
                    self._steps.by_hand(by_hand)
                else:
                    self._steps.unhook_calls()
            except TracerError:
                self.sessions.session, self.stage = None, ScriptStage.OVER
                self._look_no_longer()
                raise
            except Exception as fault:
                self.facts.fault, self.stage = fault, ScriptStage.OVER
                self._look_no_longer()

    # ---------------------------------------------------------------------------------------------- where a step ends
    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_inference or (self.stage is ScriptStage.OVER and self.later is None):
            return
        if self.stage is ScriptStage.WAITING:
            self._begin(None)
            return
        self.facts.has_stepped = True
        is_of_others = not self._steps.trains_with(optimizer)
        if is_of_others and self.session is not None and self.session.num_steps_done == 0:
            # It began with a call while the program was still building its model, such as of a layer by itself.
            self.sessions.abandon()
            self.stage = ScriptStage.WAITING
            self._begin(None, is_within_step=True)
        self._steps.stepped(optimizer)

    def _step_ended(self) -> None:
        with signals_deferred(), self._by_one_thread() as is_alone:
            if is_alone and not self.sessions.are_elsewhere:
                self._end_step()

    @contextmanager
    def _by_one_thread(self) -> Iterator[bool]:
        """Yield whether no other thread is in such a block; none waits for another."""
        is_alone = self._lock.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._lock.release()

    def _end_step(self) -> None:
        if self.later is not None:
            self.later.step()
        if self.stage is not ScriptStage.RECORDING or self.session is None:
            return
        self.facts.has_stepped = True
        self.session.step()
        is_enough = self._is_enough is not None and self._is_enough()
        if is_enough or self.session.is_complete:
            # A loop without an optimizer has no steps that could be counted on; a CPU's allocator tells nothing.
            can_go_on = not self._steps.are_by_hand and is_accelerator(self.session.device)
            is_watched = can_go_on and self.sessions.can_watch_later
            if is_watched:
                self.session.goes_on_later()
            else:
                self._look_no_longer()
            self._close(None)
            if self._is_enough is not None:
                raise FirstStepsDone
            self.session.tell_meanwhile()
            if is_watched and not self.sessions.watch_later(self.session.num_steps_done):
                self._look_no_longer()
