"""The program and its commands; without a command it runs `profile`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tracer.commands.common import errors_for_people
from tracer.commands.profile import WHOLE_HELP, profile
from tracer.commands.project_defaults import did_you_mean, project_defaults, value_sources_told
from tracer.errors import TracerError
from tracer.working_folder import current_folder

COMMANDS: Final = ("run", "predict", "fit", "check", "snapshot", "diff", "mcp", "report", "doctor")
"""In the order of --help: each is a function of that name in a file of that name, which is read when it is called."""
_DO_NOT_TRAIN: Final = {"snapshot", "diff", "mcp", "report", "--help", "-h", "--help-all", "--version"}
_OPTIONS_FIRST: Final = ("run", "predict", "fit", "check")
"""Commands whose options come before the script's name: what follows it is the script's."""


class Command(TyperCommand):
    """A command of the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        with value_sources_told(ctx):
            return super().parse_args(ctx, args)


class Program(TyperGroup):
    """The commands by name; without one, the program profiles a model."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name; None if there is none."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            settings = {"allow_interspersed_args": cmd_name not in _OPTIONS_FIRST}
            function = getattr(import_module(f"tracer.commands.{cmd_name}"), cmd_name)
            alone.command(cmd_name, cls=Command, context_settings=settings)(function)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the commands; with --help-all also the options of the profile of a model."""
        parameters: Any = self.params
        for parameter in parameters:
            parameter.hidden = WHOLE_HELP not in ctx.meta and parameter.name not in ("version", "help_all")
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the program's own options, and the defaults of all commands in pyproject.toml."""
        with errors_for_people():
            if current_folder() is None and not _DO_NOT_TRAIN.intersection(args[:1]):
                raise TracerError(
                    "The working folder has been deleted, and torch does not run without one.",
                    hint="Change to a folder that exists; if it was created again, `cd .` is enough.",
                )
            ctx.default_map = project_defaults(ctx)
        with value_sources_told(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for a file's name in its place, say which command takes it."""
        if (name := args[0]) in COMMANDS:
            return super().resolve_command(ctx, args)
        hint = did_you_mean(name, COMMANDS)
        if name.endswith(".py"):
            hint = f"To profile a script: {ctx.command_path} run {name}"
        elif Path(name).exists():
            hint = f"For a snapshot: {ctx.command_path} snapshot {name}"
        raise ctx.fail(f"No such command '{name}'. {hint}".strip())


app = typer.Typer(
    cls=Program,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.callback(invoke_without_command=True)(profile)
