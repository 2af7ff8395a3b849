"""`[tool.torch-timeline]` in pyproject.toml: values that options have where the command line does not say otherwise."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tracer.errors import UsageError

FILE_NAME = "pyproject.toml"
TABLE = "torch-timeline"


@dataclass(frozen=True)
class Defaults:
    """Contents of the table."""

    path: Path | None = None  # The file; None where there is none
    # Values of options, by name without dashes, for each command that has them.
    shared: Mapping[str, Any] = field(default_factory=dict)
    of_commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # The same for one command, by its name

    def of(self, command: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Values of a command's options by the names of their parameters.

        Args:
            command: Its name; None for the program without a command.
        """
        named = {**self.shared, **(self.of_commands.get(command, {}) if command is not None else {})}
        return {
            parameters[name].name: _as_given(parameters[name], value)
            for name, value in named.items()
            if name in parameters
        }

    def check(self, options: Mapping[str | None, Collection[str]]) -> None:
        """A name that no command has is a mistake."""
        everywhere = sorted({name for names in options.values() for name in names})
        for name in self.shared:
            self._check(name, everywhere, "")
        for command, values in self.of_commands.items():
            for name in values:
                self._check(name, options[command], f".{command}")

    def _check(self, name: str, known: Collection[str], table: str) -> None:
        if name not in known:
            hint = did_you_mean(name, known) or "Options are named as on the command line, without the dashes."
            raise UsageError(f"{self.path}: [tool.{TABLE}{table}] names an unknown option, {name}.", hint=hint)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`Did you mean snapshot?`, or the empty string if no known name is similar."""
    alike = get_close_matches(name, known, n=2, cutoff=0.7)
    return f"Did you mean {' or '.join(alike)}?" if alike else ""


def read_defaults(folder: Path, commands: Collection[str]) -> Defaults:
    """The table of the nearest pyproject.toml that has one, in a folder or above it."""
    for path in (parent / FILE_NAME for parent in (folder, *folder.parents)):
        table = _table(path)
        if table is not None:
            of_commands = {name: value for name, value in table.items() if isinstance(value, dict)}
            if unknown := sorted(of_commands.keys() - commands):
                hint = did_you_mean(unknown[0], commands) or f"Commands are {', '.join(commands)}."
                raise UsageError(f"{path}: [tool.{TABLE}.{unknown[0]}] names no command.", hint=hint)
            shared = {name: value for name, value in table.items() if name not in of_commands}
            return Defaults(path, shared, of_commands)
    return Defaults()


def _table(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if TABLE not in text:
        return None
    try:
        table = tomllib.loads(text).get("tool", {}).get(TABLE)
    except tomllib.TOMLDecodeError as error:
        hint = f"Defaults of this program are in its table [tool.{TABLE}]."
        raise UsageError(f"{path} cannot be read: {error}.", hint=hint) from None
    return table if isinstance(table, dict) else None


def _as_given(parameter: Any, value: Any) -> Any:
    """The value as the command line would give it: text unless a switch, a list for repeatable options."""
    if isinstance(value, list):
        return [str(part) for part in value]
    if isinstance(value, bool):
        return value
    return [str(value)] if parameter.multiple else str(value)
