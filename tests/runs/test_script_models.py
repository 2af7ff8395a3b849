"""Models that are alive in a script, and what they are called."""

from __future__ import annotations

import pytest
from torch import nn

from tracer.runs.script_models import named


class Critic(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


def test_one_model_needs_no_name_and_different_classes_name_theirs() -> None:
    layer, critic = nn.Linear(1, 1), Critic()
    assert named([layer]) == {"": layer}
    assert named([layer, critic]) == {"Linear": layer, "Critic": critic}
    assert named([]) == {}


def test_models_of_one_class_are_named_after_variables() -> None:
    def called() -> dict[str, nn.Module]:
        again = online  # of the variables that hold it, the outermost function's counts
        return named([again, target, critic])

    online, target, critic = nn.Linear(1, 1), nn.Linear(1, 1), Critic()
    assert called() == {"online": online, "target": target, "Critic": critic}


def test_a_global_variable_names_a_model_before_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1, 1)
    monkeypatch.setitem(globals(), "of_the_module", model)
    assert list(named([model, nn.Linear(1, 1)])) == ["of_the_module", "Linear"]


def test_a_model_is_not_named_after_its_own_method() -> None:
    class Asking(Critic):
        def asked(self, models: list[nn.Module]) -> list[str]:
            return list(named(models))

    models: list[nn.Module] = [Asking(), Asking()]
    assert models[0].asked(models) == ["Asking", "Asking_2"]  # type: ignore[operator]


def test_models_that_no_variable_holds_are_numbered() -> None:
    pair = [nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)]
    assert dict(zip(named(pair), pair, strict=True)) == {"Linear": pair[0], "Linear_2": pair[1], "Linear_3": pair[2]}
