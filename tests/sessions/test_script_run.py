"""Sessions that `run` begins by itself, in somebody else's script, and the models that it finds there."""

from __future__ import annotations

import gc
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from tests.skips import by_default
from tests.truth.isolate import value_in_fresh_process
from tracer.changes.applied import AppliedChanges
from tracer.errors import TracerError
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.script_sessions import Alive, CountedSteps
from tracer.sessions.session import ScriptVoice
from tracer.sessions.training_profile import TrainingProfile

SESSION = partial(TrainingProfile, voice=ScriptVoice(), screen="none")


def num_steps(profile: ScriptProfile) -> int:
    """Of a loop under it."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    done = 0
    with profile:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            done += 1
    return done


def with_a_fault() -> tuple[int, tuple[str, ...]]:
    def make_session(*_: Any) -> Any:
        raise ValueError("no such thing")

    profile = ScriptProfile(make_session)
    return num_steps(profile), profile.notes


def test_a_fault_of_ours_in_the_beginning_does_not_end_the_script() -> None:
    steps, (note,) = value_in_fresh_process(with_a_fault)
    assert steps == 3
    assert note.startswith("The script was not profiled, and went on: an internal fault.\nTraceback")
    assert "ValueError: no such thing" in note


def test_a_users_mistake_ends_it() -> None:
    def make_session(*_: Any) -> Any:
        raise TracerError("The folder is not there.", hint="Name another.")

    with pytest.raises(TracerError, match="The folder is not there"):
        num_steps(ScriptProfile(make_session))


def test_no_recording_begins_in_the_operator_in_which_another_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that torch began to record writes its end into that recording, if any is on: into freed memory."""
    happened: list[str] = []

    def noted(owner: type, name: str, word: str) -> None:
        does = getattr(owner, name)

        def note(*args: Any, **kwargs: Any) -> Any:
            happened.append(word)
            return does(*args, **kwargs)

        monkeypatch.setattr(owner, name, note)

    noted(torch.autograd.profiler.record_function, "__enter__", "(")
    noted(torch.autograd.profiler.record_function, "__exit__", ")")
    noted(torch.profiler.profile, "start_trace", "+")
    noted(torch.profiler.profile, "stop_trace", "-")
    sessions: list[TrainingProfile] = []

    def make_session(models: Any, optimizers: Any) -> TrainingProfile:
        schedule = Schedule(0, 0, 1, 3)
        sessions.append(SESSION(models, optimizers, save_dir=tmp_path, schedule=schedule))
        return sessions[0]

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with ScriptProfile(make_session):
        for _ in range(7):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    (session,) = sessions
    assert session.is_complete
    text = "".join(happened)
    assert text.count("+") == text.count("-") == 3
    # What was open when a recording ended has ended, and another step's has begun, before the next one begins.
    assert all(")(" in between for between in re.findall(r"-([^+-]*)\+", text))
    assert len(re.findall(r"-[^+-]*\+", text)) == 2


def layers_called_while_the_model_is_made(folder: Path) -> tuple[list[str | None], int, bool]:
    """As spectral_norm does, and who wants to know a layer's output size: before the model and the optimizer exist."""
    sessions: list[TrainingProfile] = []

    def make_session(models: Any, optimizers: Any) -> TrainingProfile:
        schedule = Schedule(1, 0, 1, 1)
        sessions.append(SESSION(models, optimizers, save_dir=folder, schedule=schedule))
        return sessions[-1]

    with ScriptProfile(make_session) as profile:
        first = nn.Linear(2, 3)
        width = first(torch.ones(1, 2)).shape[-1]
        model = nn.Sequential(first, nn.ReLU(), nn.Linear(width, 2))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    session = sessions[-1]
    assert session is profile.session and session.fault is None
    names = [row.module for row in session.findings.worst.peak.rows if row.category == "PARAMETER"]
    return names, len(sessions), session.is_complete


def test_the_model_is_the_one_that_is_trained_and_not_what_was_called_while_it_was_made(tmp_path: Path) -> None:
    names, num_sessions, is_complete = value_in_fresh_process(layers_called_while_the_model_is_made, tmp_path)
    assert set(names) == {"0", "2"} and num_sessions == 2 and is_complete


def calls_at_a_step() -> tuple[int, int]:
    """How many calls of C functions a profiler would record where an optimizer is looked for, and how many objects."""
    gc.unfreeze()  # a program's process has all of torch among them
    profile = ScriptProfile(lambda *_: MagicMock(is_complete=False, fault=None))
    num_calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal num_calls
        num_calls += event == "c_call"

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with profile:
        profile._optimizer_stepped(optimizer, (), {})  # the session begins
        sys.setprofile(count)
        try:
            profile._optimizer_stepped(optimizer, (), {})
        finally:
            sys.setprofile(None)
    return num_calls, len(gc.get_objects())


def test_looking_for_optimizers_in_a_recorded_step_is_hardly_in_the_recording() -> None:
    num_calls, num_objects = value_in_fresh_process(calls_at_a_step)
    assert num_calls < 0.05 * num_objects


def compiled_ahead_of_time() -> tuple[list[float], int]:
    """As vLLM compiles an engine's model, without guards, in a script that trains another: its outputs, and steps.

    A change of the script is chosen with its first call.
    """
    from torch._dynamo.aot_compile_types import SerializableCallable

    class Graph(SerializableCallable):
        def __init__(self, graph: Any) -> None:
            self._graph = graph

        def __call__(self, *inputs: Any) -> Any:
            return self._graph(*inputs)

        @classmethod
        def serialize_compile_artifacts(cls, fn: Any) -> bytes:
            return b""

        @classmethod
        def deserialize_compile_artifacts(cls, data: bytes) -> Any:
            raise NotImplementedError

    engine, inputs = nn.Linear(2, 1), torch.zeros(1, 2)
    nn.init.ones_(engine.bias)
    no_guards: dict[str, Any] = {"guard_filter_fn": lambda guards: [False for _ in guards]}

    def backend(graph: Any, _: Any) -> Any:
        return Graph(graph)

    def call(given: torch.Tensor) -> Any:
        return engine(given)

    compiled: Any = torch.compile(call, fullgraph=True, backend=backend, options=no_guards)
    with AppliedChanges((), choose=lambda: ("checkpoint",)), ScriptProfile(CountedSteps.of) as profile:
        with torch.no_grad():
            generate = compiled.aot_compile(((inputs,), {}))
            outputs = [generate(inputs).item()]
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(inputs).sum().backward()
            optimizer.step()
            with torch.no_grad():
                outputs.append(generate(inputs).item())
        assert isinstance(profile.session, CountedSteps)
        return outputs, profile.session.num_steps_done


def test_code_that_is_compiled_ahead_of_time_has_nothing_of_ours_in_it() -> None:
    assert value_in_fresh_process(compiled_ahead_of_time) == ([1.0, 1.0, 1.0], 2)


def steps_by_hand() -> dict[str, int]:
    """Steps that are told of four, each of two micro-batches, by how a loop without an optimizer clears gradients."""

    def cleared(model: nn.Module) -> None:
        model.zero_grad()

    def filled(model: nn.Module) -> None:
        model.zero_grad(set_to_none=False)

    def told_of(clear: Any, *, optimizer_from: int = 4, other_call: bool = False, is_late: bool = False) -> int:
        session = MagicMock(is_complete=False, fault=None)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        with ScriptProfile(lambda *_: session):
            for number in range(4):
                for batch in range(2):
                    loss = model(torch.ones(1, 2)).sum()
                    if is_late and batch == 0:
                        clear(model)
                    loss.backward()
                if number >= optimizer_from:
                    torch.optim.SGD(model.parameters()).step()
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-0.1)  # type: ignore[arg-type]
                if not is_late:
                    clear(model)
                if other_call:
                    with torch.no_grad():
                        model(torch.ones(1, 2))
        return int(session.step.call_count)

    return {
        "cleared": told_of(cleared),
        "filled with zeros": told_of(filled),
        "never": told_of(lambda model: None),
        "an optimizer later": told_of(cleared, optimizer_from=2),
        "evaluated between": told_of(cleared, other_call=True),
        "cleared before backward": told_of(cleared, is_late=True),
    }


def test_without_an_optimizer_steps_end_where_gradients_were_cleared() -> None:
    returned = value_in_fresh_process(steps_by_hand)
    # The last one ends with the loop. An optimizer's own steps take over: two by hand, two by it.
    told = {"cleared": 3, "filled with zeros": 0, "never": 0, "an optimizer later": 4, "evaluated between": 3}
    # The second one shows that a step has two backward passes; the first that is told of ends with it.
    assert returned == told | {"cleared before backward": 2}


def optimizers_that_step_in_backward(folder: Path) -> tuple[str, bool, int]:
    """One for each parameter, called by hooks as in torch's tutorial, and none behind backward."""

    with ScriptProfile(partial(SESSION, save_dir=folder, schedule=Schedule(1, 1, 2, 1))) as profile:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

        def step(parameter: Any) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(8):
            model(torch.ones(4, 8)).sum().backward()
    session = profile.session
    assert isinstance(session, TrainingProfile) and session.findings is not None
    peak = session.findings.worst.peak
    return str(session.fault), session.is_complete, sum(row.bytes for row in peak.rows) - peak.allocator_peak_bytes


def test_steps_that_end_inside_of_backward_are_recorded_from_call_to_call(tmp_path: Path) -> None:
    assert value_in_fresh_process(optimizers_that_step_in_backward, tmp_path) == ("None", True, 0)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


class Learner:
    """As self-supervised learners and agents are: no module, with networks of one class as attributes."""

    def __init__(self) -> None:
        self.online, self.target = Branch(), Branch()
        self.optimizer = torch.optim.SGD(self.online.parameters(), 0.1)

    def update(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            wanted = self.target(x)
        self.optimizer.zero_grad()
        (self.online(x) - wanted).square().sum().backward()
        self.optimizer.step()


def modules_of_a_learner(folder: Path) -> tuple[dict[str | None, int], int]:
    with ScriptProfile(partial(SESSION, save_dir=folder, schedule=Schedule(1, 1, 2, 1))) as profile:
        learner = Learner()
        for _ in range(8):
            learner.update(torch.ones(4096, 64))
    assert isinstance(profile.session, TrainingProfile) and profile.session.findings is not None
    peak = profile.session.findings.worst.peak
    bytes_of: dict[str | None, int] = {}
    for row in peak.rows:
        bytes_of[row.module] = bytes_of.get(row.module, 0) + row.bytes
    return bytes_of, sum(bytes_of.values()) - peak.allocator_peak_bytes


def test_networks_of_one_class_are_rows_of_their_own_by_their_attributes(tmp_path: Path) -> None:
    bytes_of, rest = value_in_fresh_process(modules_of_a_learner, tmp_path)
    weights, batch = (64 * 64 + 64) * 4, 4096 * 64 * 4
    assert bytes_of["target.net.0"] == weights and bytes_of["target.net.1"] == batch
    assert bytes_of["online.net.0"] >= weights and bytes_of["online.net.1"] >= batch
    assert {name for name in bytes_of if name is not None} <= {
        "(training loop)",
        *(f"{net}.net.{layer}" for net in ("online", "target") for layer in (0, 1)),
    }
    assert rest == 0


def modules_made_late(folder: Path) -> set[str | None]:
    """A network that a wrapper makes at its first call, as libraries of self-supervised learning do."""

    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = Branch()
            self.target: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.target is None:
                self.target = Branch().requires_grad_(False)
            return self.online(x) * self.target(x)  # type: ignore[no-any-return]

    with ScriptProfile(partial(SESSION, save_dir=folder, schedule=Schedule(1, 1, 2, 1))) as profile:
        model = Lazy()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(8):
            model(torch.ones(4096, 64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert isinstance(profile.session, TrainingProfile) and profile.session.findings is not None
    return {row.module for row in profile.session.findings.worst.peak.rows if row.module is not None}


@pytest.mark.slow
def test_a_module_that_a_model_gets_in_its_first_call_has_its_dotted_name(tmp_path: Path) -> None:
    returned = value_in_fresh_process(modules_made_late, tmp_path)
    assert "target.net.0" in returned and not [name for name in returned if name is not None and "_" in name]


def training_without_ends_of_steps(folder: Path, may_end_early: bool) -> tuple[bool, int, str, int]:
    """On a clock that goes on by a second a step, as a fit of SciPy's that sets gradients to zero."""
    now_s = 0.0
    time.process_time = lambda: now_s  # type: ignore[assignment]

    steps = Schedule(0, 1, 2, 1, may_end_early=may_end_early)
    with ScriptProfile(partial(SESSION, save_dir=folder, schedule=steps)) as profile:
        model = nn.Linear(64, 64)
        for _ in range(20):
            model(torch.ones(64, 64)).sum().backward()
            model.zero_grad(set_to_none=False)
            now_s += 1
    session = profile.session
    assert isinstance(session, TrainingProfile) and session.findings is not None
    calls = session.findings.worst.source.recording.ops.name.tolist()
    strings = session.findings.worst.source.recording.strings
    num_calls = sum(strings[name] == "aten::linear" for name in calls)
    peak = session.findings.worst.peak
    rest = sum(row.bytes for row in peak.rows) - peak.allocator_peak_bytes
    return session.fault is None, num_calls, " ".join(session.notes), rest


@pytest.mark.parametrize("may_end_early", by_default([True, False], {True}))
def test_a_training_whose_steps_are_not_found_is_not_recorded_as_one_step(may_end_early: bool, tmp_path: Path) -> None:
    """A schedule that was asked for is recorded for a minute: a step of it may take long."""
    is_well, num_calls, notes, rest = value_in_fresh_process(training_without_ends_of_steps, tmp_path, may_end_early)
    assert is_well and rest == 0
    assert num_calls == (6 if may_end_early else 20), "the seventh call comes after more than five seconds"
    said = "No end of a step was found within 5 s of a processor. Recording ended there" in notes
    assert said == may_end_early


class Critic(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


def test_models_of_one_class_are_named_after_variables() -> None:
    def called() -> dict[str, nn.Module]:
        again = online  # of the variables that hold it, the outermost function's counts
        return Alive().named([again, target, critic])

    online, target, critic = nn.Linear(1, 1), nn.Linear(1, 1), Critic()
    assert called() == {"online": online, "target": target, "Critic": critic}


def test_a_global_variable_names_a_model_before_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1, 1)
    monkeypatch.setitem(globals(), "of_the_module", model)
    assert next(iter(Alive().named([model, nn.Linear(1, 1)]))) == "of_the_module"


def test_a_model_is_not_named_after_its_own_method() -> None:
    class Asking(Critic):
        def asked(self) -> list[str]:
            return list(Alive().named([self, type(self)()]))

    assert Asking().asked() == ["Asking", "Asking_2"]


def test_one_model_goes_by_its_variable_where_the_program_has_another_of_its_class() -> None:
    """As a network and its copy that no optimizer updates."""
    network, target = Critic(), Critic()
    assert Alive().named([network]) == {"network": network}
    assert Alive().named([target]) == {"target": target}
