"""The program, its commands, and values of options in pyproject.toml; without a command it runs `profile`."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tracer.commands.common import errors_for_people
from tracer.commands.profile import WHOLE_HELP, profile
from tracer.errors import TracerError, UsageError
from tracer.working_folder import current_folder, working_folder

COMMANDS: Final = ("run", "predict", "fit", "check", "snapshot", "diff", "mcp", "report", "doctor")
"""In the order of --help: each is a function of that name in a file of that name, which is read when it is called."""
_DO_NOT_TRAIN: Final = {"snapshot", "diff", "mcp", "report", "--help", "-h", "--help-all", "--version"}
_OPTIONS_FIRST: Final = ("run", "predict", "fit", "check")
"""Commands whose options come before the script's name: what follows it is the script's."""
FILE_NAME: Final = "pyproject.toml"
TABLE: Final = "torch-timeline"
_WRITTEN: Final = ("html", "markdown", "baseline")
"""Options that name a file to be written: a project that somebody else wrote may not place them anywhere."""


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


# ---- values of [tool.torch-timeline] in pyproject.toml, where the command line has none ----
def project_defaults(context: Any) -> dict[str, Any]:
    """Return click's map of defaults: of the program's own options, and in it one for each command.

    The nearest pyproject.toml that has the table counts, in the working folder or above it.
    """
    folder = working_folder()
    tables = ((path, _table(path)) for path in (parent / FILE_NAME for parent in (folder, *folder.parents)))
    path, table = next(((path, table) for path, table in tables if table is not None), (None, {}))
    if path is None:
        return {}
    program, names = context.command, context.command.list_commands(context)
    own = {name: value for name, value in table.items() if isinstance(value, dict)}
    if unknown := sorted(own.keys() - set(names)):
        hint = did_you_mean(unknown[0], names) or f"Commands are {', '.join(names)}."
        raise UsageError(f"{path}: [tool.{TABLE}.{unknown[0]}] names no command.", hint=hint)
    shared = {name: value for name, value in table.items() if name not in own}
    options = {name: options_of(program.get_command(context, name)) for name in names}
    everywhere = options_of(program)
    _check(path, shared, sorted({*everywhere, *(name for each in options.values() for name in each)}), "")
    for command, values in own.items():
        _check(path, values, options[command], f".{command}")
    return _given(shared, everywhere) | {name: _given(shared | own.get(name, {}), options[name]) for name in names}


def options_of(command: Any) -> dict[str, Any]:
    """Return the options of a command that may have a default, by name without dashes."""
    return {
        max(option.opts, key=len).removeprefix("--") if option.opts else option.name.replace("_", "-"): option
        for option in command.params
        if option.param_type_name == "option" and not option.is_eager
    }


@contextmanager
def value_sources_told(context: Any) -> Iterator[None]:
    """Within the block, errors on values of pyproject.toml name that file."""
    try:
        yield
    except typer.BadParameter as error:
        name = getattr(getattr(error, "param", None), "name", None)
        source = context.get_parameter_source(name) if name is not None else None
        if source is not None and source.name == "DEFAULT_MAP":
            error.message = f"{error.message.removesuffix('.')} in {FILE_NAME}."
        raise


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`Did you mean snapshot?`, or the empty string if no known name is similar."""
    alike = get_close_matches(name, known, n=2, cutoff=0.7)
    return f"Did you mean {' or '.join(alike)}?" if alike else ""


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


def _check(path: Path, values: Mapping[str, Any], known: Collection[str], table: str) -> None:
    for name, value in values.items():
        if name not in known:
            hint = did_you_mean(name, known) or "Options are named as on the command line, without the dashes."
            raise UsageError(f"{path}: [tool.{TABLE}{table}] names an unknown option, {name}.", hint=hint)
        folder = path.parent.resolve()
        if name in _WRITTEN and not (working_folder() / str(value)).resolve().is_relative_to(folder):
            raise UsageError(
                f"{path}: {name} of [tool.{TABLE}{table}] names a file outside of {folder}.",
                hint=f"Name it on the command line: --{name} {value}.",
            )


def _given(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by parameter, as the command line gives them: bool for a switch, a list for a repeatable option."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        if (option := options.get(name)) is not None:
            if isinstance(value, list):
                given[option.name] = [str(part) for part in value]
            elif isinstance(value, bool):
                given[option.name] = value
            else:
                given[option.name] = [str(value)] if option.multiple else str(value)
    return given


app = typer.Typer(
    cls=Program,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.callback(invoke_without_command=True)(profile)
