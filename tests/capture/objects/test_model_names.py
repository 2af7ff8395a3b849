"""Models of one class go by what holds them in the program, and are told apart whatever that is."""

from __future__ import annotations

import pytest
from torch import nn

from tracer.capture.objects.model_names import names_of


class Encoder(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


class Decoder(Encoder):
    pass


class Branch:
    """A class of the program's that is no module."""

    def __init__(self) -> None:
        self.encoder = Encoder()


def test_a_class_names_its_only_model() -> None:
    encoder, decoder = Encoder(), Decoder()
    assert names_of([encoder, decoder]) == {id(encoder): "Encoder", id(decoder): "Decoder"}


def test_attributes_name_models_of_one_class() -> None:
    class Learner:
        def __init__(self) -> None:
            self.online, self.target = Encoder(), Encoder()

        def names(self) -> dict[int, str]:
            return names_of([self.online, self.target])

    learner = Learner()
    assert learner.names() == {id(learner.online): "online", id(learner.target): "target"}


def test_attributes_of_one_name_have_the_variable_before_them() -> None:
    online, target = Branch(), Branch()
    assert names_of([online.encoder, target.encoder]) == {
        id(online.encoder): "online.encoder",
        id(target.encoder): "target.encoder",
    }


@pytest.mark.parametrize("kind", [list, tuple])
def test_an_item_has_the_name_of_its_container(kind: type) -> None:
    nets = kind([Encoder(), Encoder()])
    by_key = {"actor": Decoder(), "critic": Decoder()}
    names = names_of([*nets, *by_key.values()])
    assert list(names.values()) == ["nets.0", "nets.1", "actor", "critic"]


def test_what_a_named_model_has_in_a_list_begins_with_its_name() -> None:
    """torch does not know them as its children."""

    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [Encoder(), Encoder()]

    hiding = Hiding()
    assert list(names_of(hiding.layers, {"student": hiding}).values())[1:] == ["student.layers.0", "student.layers.1"]


def test_a_name_that_a_model_has_is_no_other_models() -> None:
    first, second = Encoder(), Encoder()
    assert names_of([first, second], {"second": first}) == {id(first): "second", id(second): "second_2"}
    assert list(names_of({Encoder()}, {"": first}).values()) == ["", "Encoder_2"]


def test_nothing_of_the_users_is_called() -> None:
    class Odd:
        def __init__(self) -> None:
            self.inner = {"a": Encoder(), "b": Encoder()}

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        __iter__ = __len__ = __eq__ = __hash__ = __bool__ = None  # type: ignore[assignment]

    odd = Odd()
    models = list(object.__getattribute__(odd, "inner").values())
    assert sorted(names_of(models).values()) == ["models.0", "models.1"]
