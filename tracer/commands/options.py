"""How options are declared: once, as fields of dataclasses that commands take whole; typer sees each field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from tracer.errors import UsageError
from tracer.units import MAX_COUNT, parse_count, parse_memory

_SWITCHES = "switches"
_SIZES = "Write the GPU's memory as 16GiB, 80GiB or 8192MiB."


def option(help: str, panel: str | None = None, *names: str, metavar: str | None = None, **more: Any) -> Any:
    """An option of --help under a heading; by default it is called as its field."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, **more)


def number(
    help: str, panel: str | None, *, least: int | None = None, most: int = MAX_COUNT, metavar: str = "<number>"
) -> Any:
    """An option that is a whole number, of some size at least."""

    def parse(text: str | int) -> int:
        try:
            value = parse_count(str(text), most=most)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if least is not None and value < least:
            raise typer.BadParameter(f"{text} is less than {least}.")
        return value

    return option(help, panel, metavar=metavar, parser=parse)


def checked_size(text: str | None) -> int | None:
    """The bytes of a size that an option names; None without one."""
    try:
        return parse_memory(text) if text is not None else None
    except ValueError as error:
        raise UsageError(str(error), hint=_SIZES) from None


def switched_off(helps: Mapping[str, str], *, panel: str) -> frozenset[str]:
    """A field that holds the names of switches that are off: each is an option of its own, which is on by default.

    Args:
        helps: Help of each switch, by its name without dashes before it.
    """
    switches = {name: Annotated[bool, option(text, panel)] for name, text in helps.items()}
    value: frozenset[str] = field(default=frozenset(), metadata={_SWITCHES: switches})
    return value


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer wants it: in the place of a parameter that is a dataclass, one for each of its fields."""
    own = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if is_dataclass(parameter.annotation)
    }
    flat = [
        option.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in own
        for option in (_options(groups[parameter.name]) if parameter.name in groups else [parameter])
    ]

    @wraps(command)
    def called(**values: Any) -> None:
        whole = {
            name: kind(**{field.name: _value(field, values) for field in fields(kind)}) for name, kind in groups.items()
        }
        command(**values, **whole)

    called.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in flat}
    return called


def _options(kind: type) -> Iterator[Parameter]:
    types = get_type_hints(kind, include_extras=True)
    for option in fields(kind):
        for name, switch in option.metadata.get(_SWITCHES, {}).items():
            yield _parameter(name.replace("-", "_"), True, switch)
        if _SWITCHES not in option.metadata:
            default = option.default if option.default_factory is MISSING else option.default_factory()
            yield _parameter(option.name, Parameter.empty if default is MISSING else default, types[option.name])


def _parameter(name: str, default: object, annotation: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(option: Field[Any], values: dict[str, Any]) -> Any:
    if _SWITCHES in option.metadata:
        return frozenset(name for name in option.metadata[_SWITCHES] if not values.pop(name.replace("-", "_")))
    return values.pop(option.name)
