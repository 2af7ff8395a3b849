"""Names of models: by class, and models of one class by the variables and attributes that hold them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from tracer.capture.objects.holder_links import attributes_of, is_ours, variables_of


def names_of(models: Iterable[nn.Module], given: Mapping[str, nn.Module] | None = None) -> dict[int, str]:
    """Name models that lie in no other.

    A model goes by its class, and where several have one class, each by the global variable that holds it, by the local
    one of the outermost function, or by an attribute: `learner.online` is `online`. A number tells apart those that
    still have one name.

    Args:
        given: Names that models already have; "" for a single model, which shows as its class.
    """
    given = given or {}
    names = {id(model): name for name, model in given.items()}
    others = list({id(model): model for model in models if id(model) not in names}.values())
    kinds = Counter(type(model).__name__ for model in (*given.values(), *others))
    alike = [model for model in others if kinds[type(model).__name__] > 1]
    variables = _by_variable(alike) if alike else {}
    taken = {name or type(model).__name__ for name, model in given.items()}
    for model in others:
        name = kind = variables.get(id(model), type(model).__name__)
        number = 1
        while name in taken:
            number += 1
            name = f"{kind}_{number}"
        taken.add(name)
        names[id(model)] = name
    return names


def _by_variable(models: Sequence[nn.Module]) -> dict[int, str]:
    of_locals, _, modules = variables_of(None)
    wanted = {id(model) for model in models}
    names: dict[int, str] = {}
    for _, variables in modules.values():
        names = {id(value): name for name, value in list(variables.items()) if id(value) in wanted} | names
    for number in wanted - names.keys():
        of_users = (root.name for root in of_locals.get(number, ()) if root.is_users)
        name = next((name for name in of_users if name.isidentifier() and name != "self"), None)
        if name is not None:
            names[number] = name
    for model in models:
        if id(model) not in names and (name := _attribute(model)) is not None:
            names[id(model)] = name
    return names


def _attribute(model: nn.Module) -> str | None:
    """The name of the attribute, or key, by which an object or a dictionary holds a model."""
    for holder in gc.get_referrers(model):
        held = holder if type(holder) is dict else {} if is_ours(type(holder)) else attributes_of(holder) or {}
        for name, value in list(held.items()):
            if value is model and type(name) is str and name.isidentifier() and not name.startswith("_"):
                return name
    return None
