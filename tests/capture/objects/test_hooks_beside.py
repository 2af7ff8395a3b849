"""Hooks that a call sees and nobody else: not pickle, not a copy, and other people's hooks stay where they are."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from tracer.capture.objects.call_hooks import HooksBeside, hook_after_call, hook_call, hook_step


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
