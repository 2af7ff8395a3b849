"""Hooks tell of calls and steps, leave when a compilation begins, and are no part of what pickle or a copy sees."""

from __future__ import annotations

import copy
import doctest
import gc
import io
import json
import pickle
import weakref
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tests.capture.objects.compiled_watching import PROGRAMS
from tests.processes import run_python
from tracer.capture.objects import hooks_beside
from tracer.capture.objects.call_hooks import CallHooks, remove_hooks
from tracer.capture.objects.hooks_beside import HooksBeside, hook_after_call, hook_call, hook_step
from tracer.capture.torch_private import torch_compile

ROOT = Path(__file__).resolve().parents[3]


def hooks_on(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> tuple[CallHooks, list[str]]:
    log: list[str] = []
    hooks = CallHooks(
        models=[model],
        on_call=lambda *_: log.append("call"),
        optimizers=[optimizer] if optimizer is not None else [],
        before_step=lambda *_: log.append("before"),
        after_step=lambda *_: log.append("after"),
    )
    return hooks, log


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def num_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """On the model's calls, and before and after steps: of the optimizer alone and of all optimizers."""
    before = *optimizer._optimizer_step_pre_hooks.values(), *_global_optimizer_pre_hooks
    after = *optimizer._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks
    return len(list(model._forward_pre_hooks.items())), len(before), len(after)


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch.compile made of a callback: nothing is compiled, so that other tests of this process are not changed."""

    class Compilation:
        def __init__(self) -> None:
            self.has_compiled = False
            self.callbacks: list[Any] = []

        def begin(self) -> None:
            self.has_compiled = True
            for callback in list(self.callbacks):
                callback()

    found = Compilation()

    def on_compile_start(callback: Any) -> Any:
        found.callbacks.append(callback)
        return lambda: found.callbacks.remove(callback)

    monkeypatch.setattr(torch_compile, "on_compile_start", on_compile_start)
    monkeypatch.setattr(torch_compile, "has_compiled", lambda: found.has_compiled)
    return found


def test_calls_and_steps_are_told_in_order() -> None:
    model, optimizer = net()
    hooks, log = hooks_on(model, optimizer)
    hooks.start()
    model(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    assert log == ["call", "before", "after"]
    hooks.stop()
    assert num_hooks(model, optimizer) == (0, 0, 0)


def test_a_wrapper_whose_inner_optimizer_steps_is_no_note_and_one_without_is() -> None:
    """As Lightning's, which is made without `Optimizer.__init__` and so takes no hooks."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            """Nothing that hooks hear of."""

    model, optimizer = net()
    notes = []
    for inner in (optimizer, None):
        wrapper = Wrapper(inner)
        hooks, _ = hooks_on(model, wrapper)
        hooks.start()
        notes.append(hooks.refused)
        hooks.stop()
    assert notes[0] == ()
    assert notes[1][0].startswith("The gradients of Wrapper are not observed")


def test_hooks_that_are_stopped_inside_a_step_leave_none_behind() -> None:
    """As a session does that is told of the step's end by a hook: what is left of it comes to no further step."""
    model, optimizer = net()
    hooks, log = hooks_on(model, optimizer)
    hooks.start()
    ends = optimizer.register_step_post_hook(lambda *_: hooks.stop())
    model(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    ends.remove()
    optimizer.step()
    remove_hooks([])
    assert num_hooks(model, optimizer) == (0, 0, 0)
    assert log == ["call", "before"]


def test_all_leave_when_a_compilation_begins_and_only_the_models_comes_back(compilation: Any) -> None:
    model, optimizer = net()
    hooks, _ = hooks_on(model, optimizer)
    hooks.start()
    assert (num_hooks(model, optimizer), hooks.see_steps) == ((1, 1, 0), True)
    optimizer.step()
    assert num_hooks(model, optimizer) == (1, 1, 1)
    compilation.begin()
    assert (num_hooks(model, optimizer), hooks.see_steps) == ((0, 0, 0), False)
    hooks.renew()
    assert num_hooks(model, optimizer) == (1, 0, 0)
    hooks.stop()
    assert num_hooks(model, optimizer) == (0, 0, 0)
    assert compilation.callbacks == []


def test_between_steps_nothing_is_looked_for_unless_something_was_compiled(
    compilation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no hook is on, as of a model whose own call is compiled: a loop may go on for days."""
    searches: list[nn.Module] = []
    monkeypatch.setattr(torch_compile, "compiled_wrappers", lambda model: searches.append(model) or [])
    model, _ = net()
    model._compiled_call_impl = model._call_impl  # type: ignore[assignment]
    hooks, _ = hooks_on(model)
    hooks.start()
    for _ in range(3):
        hooks.renew()
    assert len(searches) == 1
    compilation.begin()
    for _ in range(3):
        hooks.renew()
    assert len(searches) == 2
    hooks.stop()


def test_no_hook_comes_back_on_a_model_whose_own_call_is_compiled(compilation: Any) -> None:
    model, optimizer = net()
    hooks, _ = hooks_on(model, optimizer)
    hooks.start()
    model._compiled_call_impl = model._call_impl  # type: ignore[assignment]
    compilation.begin()
    hooks.renew()
    assert num_hooks(model, optimizer) == (0, 0, 0)
    hooks.stop()


def test_a_compilation_inside_a_step_does_not_take_hooks_from_under_the_optimizer(compilation: Any) -> None:
    """As when a user's own hook, which updates an average of the weights, is compiled."""
    model, optimizer = net()
    hooks, log = hooks_on(model, optimizer)
    hooks.start()
    optimizer.register_step_post_hook(lambda *_: compilation.begin())
    model(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    assert log == ["call", "before", "after"]
    hooks.renew()
    hooks.stop()
    assert num_hooks(model, optimizer) == (0, 0, 1)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_model_is_seen_as_well() -> None:
    scripted = torch.jit.script(nn.Linear(3, 2))
    hooks, log = hooks_on(scripted)
    hooks.start()
    scripted(torch.randn(1, 3))
    assert (log, hooks.refused) == (["call"], ())
    hooks.stop()
    assert type(vars(scripted)["_forward_pre_hooks"]) is OrderedDict


def test_what_takes_no_hook_is_left_alone_and_said() -> None:
    class Foreign:
        step = None

    foreign = Foreign()
    hooks = CallHooks(optimizers=[foreign], before_step=lambda *_: None)  # type: ignore[list-item]
    hooks.start()
    (sentence,) = hooks.refused
    assert sentence.startswith("The gradients of Foreign are not observed: ")
    hooks.stop()


def test_nothing_is_kept_alive_afterwards() -> None:
    model, optimizer = net()
    hooks, _ = hooks_on(model, optimizer)
    hooks.start()
    hooks.stop()
    references = [weakref.ref(model), weakref.ref(optimizer)]
    gc.disable()
    try:
        del model, optimizer
        assert [reference() for reference in references] == [None, None]  # type: ignore[operator]
    finally:
        gc.enable()


# A program, and how many steps come before the session.
QUICK = ("wrapped 0",)
OTHERS = tuple(
    f"{one.__name__} {before}" for one in PROGRAMS for before in (0, 3) if f"{one.__name__} {before}" not in QUICK
)
CASES = [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)]


@cache
def trained(cases: tuple[str, ...]) -> dict[str, Any]:
    """Programs, with and without a session, in a process of their own."""
    done = run_python("-m", "tests.capture.objects.compiled_watching", *cases, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def figures(case: str) -> Any:
    return trained(QUICK if case in QUICK else OTHERS)[case]


@pytest.mark.parametrize("case", CASES)
def test_a_watched_compiled_program_is_compiled_as_an_unwatched_one(case: str) -> None:
    """As often, into as many graphs, with as many breaks, step by step; it trains the same and keeps no batch alive."""
    alone, watched = figures(case)
    assert sum(alone["compiled"][-1]) > 0
    assert watched["compiled"] == alone["compiled"]
    assert watched["losses"] == alone["losses"]
    assert watched["alive"] == alone["alive"]
    if case in ("wrapped 0", "whole_graph 0", "optimizer_alone 0"):
        assert "batch[0]" in watched["names"], "the batch of a compiled model is seen from outside"


def theirs(module: nn.Module, args: Any) -> None:
    """A hook of somebody else's."""
    CALLED.append("theirs")


CALLED: list[str] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()


def watched() -> tuple[nn.Linear, list[Any]]:
    model = nn.Linear(2, 1)
    model.register_forward_pre_hook(theirs)
    ends = [
        hook_call(model, lambda module, args, kwargs: CALLED.append(f"before {len(args)} {len(kwargs)}")),
        hook_after_call(model, lambda module, args, output: CALLED.append("after")),
    ]
    return model, ends


def unpickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def saved_and_loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [unpickled, saved_and_loaded, copy.deepcopy])
def test_a_copy_has_their_hooks_and_none_of_ours(copied: Any) -> None:
    model, ends = watched()
    made = copied(model)
    made(torch.ones(1, 2))
    assert CALLED == ["theirs"]
    assert {type(vars(made)[name]) for name in vars(model) if name.startswith("_forward")} == {OrderedDict}
    model(torch.ones(1, 2))
    assert CALLED[1:] == ["theirs", "before 1 0", "after"]
    model(input=torch.ones(1, 2))
    assert "before 0 1" in CALLED
    for end in ends:
        end()
    assert not any(isinstance(value, HooksBeside) for value in vars(model).values())


def test_the_example_of_the_guarantee_holds() -> None:
    done = doctest.testmod(hooks_beside, extraglobs={"copy": copy, "pickle": pickle})
    assert (done.failed, done.attempted) == (0, 9)


def test_a_file_is_the_same_to_the_byte() -> None:
    model, ends = watched()
    during = pickle.dumps(model)
    for end in ends:
        end()
    assert during == pickle.dumps(model)
    assert b"tracer.capture" not in during


def test_a_handle_in_the_state_removes_from_the_copy() -> None:
    model: Any = nn.Linear(2, 1)
    model.handle = model.register_forward_pre_hook(theirs)
    hook_call(model, lambda *_: None)
    for made in (copy.deepcopy(model), unpickled(model)):
        made.handle.remove()
        assert len(made._forward_pre_hooks) == 0
    assert len(model._forward_pre_hooks) == 1


def test_hooks_registered_meanwhile_and_before_can_be_removed_at_any_time() -> None:
    model = nn.Linear(2, 1)
    early, late = model.register_forward_pre_hook(theirs), model.register_forward_pre_hook(theirs)
    end = hook_call(model, lambda *_: None)
    early.remove()
    inside = model.register_forward_pre_hook(theirs, prepend=True, with_kwargs=True)
    outliving = model.register_forward_pre_hook(theirs, with_kwargs=True)
    assert list(model._forward_pre_hooks) == [inside.id, late.id, outliving.id]
    inside.remove()
    end()
    outliving.remove()
    assert list(model._forward_pre_hooks) == [late.id]
    assert len(model._forward_pre_hooks_with_kwargs) == 0


def test_who_lists_the_hooks_of_a_module_sees_their_own() -> None:
    """As torch.jit.script and quantization do, by the values."""
    model, _ = watched()
    assert list(model._forward_pre_hooks.values()) == [theirs]
    assert (len(model._forward_hooks), dict(model._forward_hooks), list(model._forward_hooks)) == (0, {}, [])
    assert model._forward_hooks == OrderedDict() and model._forward_hooks.copy() == {}
    model._forward_pre_hooks.clear()
    model(torch.ones(1, 2))
    assert CALLED == ["before 1 0", "after"]


def test_two_watch_one_model_and_the_first_goes_first() -> None:
    model = nn.Linear(2, 1)
    below = model._forward_hooks
    first, second = (hook_after_call(model, lambda *_, name=name: CALLED.append(name)) for name in "ab")
    model(torch.ones(1, 2))
    first()
    model(torch.ones(1, 2))
    second()
    model(torch.ones(1, 2))
    assert CALLED == ["a", "b", "b"]
    assert model._forward_hooks is below


def test_a_dictionary_that_was_replaced_is_left_as_it_is() -> None:
    model, ends = watched()
    replaced = model._forward_hooks = OrderedDict()
    for end in ends:
        end()
    assert model._forward_hooks is replaced


class Stepping:
    """An optimizer of somebody's own, with torch's dictionaries of hooks and a state of all it has."""

    def __init__(self) -> None:
        self._optimizer_step_pre_hooks: OrderedDict[int, Any] = OrderedDict()
        self._optimizer_step_post_hooks: OrderedDict[int, Any] = OrderedDict()

    def step(self) -> None:
        for hooks in (self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks):
            for hook in hooks.values():
                hook(self, (), {})


def test_an_optimizers_copy_has_none_of_ours() -> None:
    optimizer: Any = Stepping()
    before = pickle.dumps(optimizer)
    end = hook_step(optimizer, lambda *_: CALLED.append("before"), lambda *_: CALLED.append("after"))
    assert pickle.dumps(optimizer) == before
    for stepping in (copy.deepcopy(optimizer), pickle.loads(before), optimizer):
        stepping.step()
    assert CALLED == ["before", "after"]
    end()
    optimizer.step()
    assert CALLED == ["before", "after"]
