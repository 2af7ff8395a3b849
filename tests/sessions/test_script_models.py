"""Models that are alive in a script, and what they are called."""

from __future__ import annotations

import pytest
from torch import nn

from tracer.sessions.script_models import named


class Critic(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


def test_one_model_needs_no_name_and_different_classes_name_theirs() -> None:
    layer, critic = nn.Linear(1, 1), Critic()
    assert named([critic]) == {"": critic}
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
    assert next(iter(named([model, nn.Linear(1, 1)]))) == "of_the_module"


def test_a_model_is_not_named_after_its_own_method() -> None:
    class Asking(Critic):
        def asked(self) -> list[str]:
            return list(named([self, type(self)()]))

    assert Asking().asked() == ["Asking", "Asking_2"]


def test_models_that_no_variable_holds_are_numbered() -> None:
    assert list(named([Critic(), Critic(), Critic()])) == ["Critic", "Critic_2", "Critic_3"]


def test_one_model_goes_by_its_variable_where_the_program_has_another_of_its_class() -> None:
    """As a network and its copy that no optimizer updates."""
    network, target = Critic(), Critic()
    assert named([network]) == {"network": network}
    assert named([target]) == {"target": target}
