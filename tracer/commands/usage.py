"""How the command line explains itself: help in groups, and wrong usage in a sentence and a hint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tracer.errors import TracerError
from tracer.exporters.screen.next_commands import from_checkout
from tracer.exporters.screen.terminal import say

# Headings of --help, for `rich_help_panel`; those that a command has come in this order.
MODEL = "Model"
STEP = "How a model of your own is trained"
FNO = "The built-in model, an FNO, where --model names no other"
DEVICE = "Device"
SCHEDULE = "Schedule"
QUESTIONS = "Further questions"
ALLOCATOR = "Other allocator settings, another GPU"
OUTPUTS = "Outputs"
SCREEN = "Screen"
_ARGUMENTS, _OTHER = "Arguments", "Options"
_ORDER = (_ARGUMENTS, MODEL, STEP, FNO, DEVICE, SCHEDULE, QUESTIONS, ALLOCATOR, OUTPUTS, SCREEN, _OTHER)
_USAGE_STATUS = 2


class _Explained:
    """What commands and the program itself have in common."""

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the command as it is called."""
        formatter.write_usage(_program(ctx), " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the options under their headings, for a terminal of 80 columns, where boxes leave the words no room."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := _record(parameter, ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                heading = _ARGUMENTS if is_argument else getattr(parameter, "rich_help_panel", None) or _OTHER
                groups.setdefault(heading, []).append(record)
        for heading in sorted(groups, key=_ORDER.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])

    def parse_args(self: Any, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what is wrong with them is said in words.

        Raises:
            typer.Exit: With status 2.
        """
        try:
            return list(super().parse_args(ctx, args))  # type: ignore[misc]
        except Exception as error:
            if getattr(error, "exit_code", None) != _USAGE_STATUS:  # typer has no public class for all that have it
                raise
            _refuse(ctx, _in_words(error))


class Command(_Explained, TyperCommand):
    """One command."""


class Program(_Explained, TyperGroup):
    """The program, which has commands, and profiles without one."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the commands first: they are fewer."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for a file's name in its place, say which command takes it.

        Raises:
            typer.Exit: With status 2; there is no such command.
        """
        if self.get_command(ctx, args[0]) is None:
            _refuse(ctx, f"There is no command {args[0]}.", _command_for(ctx, args[0]))
        return super().resolve_command(ctx, args)


def _record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """Name and help; of a switch only the half that changes something."""
    record: tuple[str, str] | None = parameter.get_help_record(ctx)
    if record is None:
        return None
    if parameter.param_type_name == "argument":
        return record[0].partition(" ")[0], record[1]
    if not parameter.secondary_opts:
        return record
    names = parameter.secondary_opts if parameter.default else parameter.opts
    return ", ".join(names), parameter.help or ""


def _in_words(error: Any) -> str:
    """What is wrong: with a parameter, its name, its value and why."""
    if (parameter := getattr(error, "param", None)) is None:
        return str(error.format_message())
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name.upper()
    if not error.message:  # it is missing
        return f"{name} is missing: {parameter.help}" if getattr(parameter, "help", "") else f"{name} is missing."
    message = error.message.removeprefix("Value error, ").removesuffix(".").replace("'", "")
    return f"{name} {message}."


def _command_for(ctx: Any, name: str) -> str:
    """What was meant, where a file's name stands in the place of a command's."""
    if name.endswith(".py"):
        return f"To profile a script: {_program(ctx)} run {name}"
    if Path(name).exists() and ".json" in name:
        return f"For a trace: {_program(ctx)} trace {name}"
    if Path(name).exists():
        return f"For a snapshot: {_program(ctx)} snapshot {name}"
    return ""


def _program(ctx: Any) -> str:
    """The command as it was called, to be called again."""
    return re.sub(r"^main\.py", from_checkout(), str(ctx.command_path))


def _refuse(ctx: Any, message: str, hint: str = "") -> NoReturn:
    error = TracerError(message, hint=hint or f"{_program(ctx)} --help lists what there is.")
    for line in error.lines:
        say(line)
    raise typer.Exit(2)
