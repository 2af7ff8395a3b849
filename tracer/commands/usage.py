"""How the command line explains itself: help in groups, and wrong usage in a sentence and a hint.

Values of `[tool.torch-timeline]` in pyproject.toml are options' values where the command line does not say otherwise.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tracer.errors import TracerError, UsageError
from tracer.exporters.screen.next_commands import from_checkout
from tracer.exporters.screen.terminal import say
from tracer.working_folder import working_folder

FILE_NAME = "pyproject.toml"
TABLE = "torch-timeline"
_WRITTEN = ("html", "sqlite", "markdown", "baseline")
"""Options that name a file to be written: a project that somebody else wrote may not place them anywhere."""


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
        for name, value in self.shared.items():
            self._check(name, value, everywhere, "")
        for command, values in self.of_commands.items():
            for name, value in values.items():
                self._check(name, value, options[command], f".{command}")

    def _check(self, name: str, value: object, known: Collection[str], table: str) -> None:
        if name not in known:
            hint = did_you_mean(name, known) or "Options are named as on the command line, without the dashes."
            raise UsageError(f"{self.path}: [tool.{TABLE}{table}] names an unknown option, {name}.", hint=hint)
        if name in _WRITTEN and self.path is not None:
            folder = self.path.parent.resolve()
            if not (working_folder() / str(value)).resolve().is_relative_to(folder):
                raise UsageError(
                    f"{self.path}: {name} of [tool.{TABLE}{table}] names a file outside of {folder}.",
                    hint=f"Name it on the command line: --{name} {value}.",
                )


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
_SCRIPTS = {"script", "arguments"}
"""Parameters of the commands that run a script."""
_OF_SCRIPTS = {"allow_interspersed_args": False, "ignore_unknown_options": False}
_USAGE_STATUS = 2
WHOLE_HELP = "torch-timeline whole help"
"""In a context's `meta`: every option is asked for."""
_WIDEST_NAME = 30
_OURS = re.compile(r"(?:torch-timeline|python main\.py)(?= )")
"""The program in examples of help texts, which name it as it was called."""


class _HelpFormatting:
    """How help is written, for commands and the program itself."""

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the command as it is called."""
        formatter.write_usage(_program(ctx), " ".join(self.collect_usage_pieces(ctx)))

    def format_help_text(self: Any, ctx: Any, formatter: Any) -> None:
        """Write what the command does; its examples name the program as it was called."""
        program = _program(ctx.find_root())
        with formatter.indentation():
            for paragraph in _OURS.sub(lambda _: program, self.help or "").split("\n\n"):
                formatter.write_paragraph()
                lead, is_example = " " * formatter.current_indent, paragraph.startswith(" ")
                text = paragraph.splitlines() if is_example else _fold(paragraph, formatter.width - len(lead))
                formatter.write("".join(f"{lead}{line}\n" for line in text))

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
                _write_records(groups[heading], formatter)

    def parse_args(self: Any, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; errors are reported as a sentence and a hint."""
        ctx.default_map = _defaults_of(ctx)
        try:
            return list(super().parse_args(ctx, _with_scripts_apart(self, ctx, args)))  # type: ignore[misc]
        except Exception as error:
            if getattr(error, "exit_code", None) != _USAGE_STATUS:  # typer has no public class for all that have it
                raise
            _refuse(ctx, _in_words(error, ctx), _hint(error, ctx))


def _with_scripts_apart(command: Any, ctx: Any, args: list[str]) -> list[str]:
    """Put `--` in front of the script's options: behind its name, the first that is not ours begins them."""
    parameters = command.get_params(ctx)
    if not {parameter.name for parameter in parameters} >= _SCRIPTS or "--" in args:
        return args
    options = {name: parameter for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    has_script, position = False, 0
    while position < len(args):
        name, _, value = args[position].partition("=")
        if not name.startswith("-"):
            if not ctx.allow_interspersed_args:
                return args
            has_script = True
        elif (option := options.get(name)) is not None:
            position += not value and not option.is_flag
        elif has_script:
            return [*args[:position], "--", *args[position:]]
        position += 1
    return args


class Command(_HelpFormatting, TyperCommand):
    """A command of the program."""


class CommandGroup(_HelpFormatting, TyperGroup):
    """The program, which has commands, and profiles without one. A command's file is loaded when it is called."""

    summaries: ClassVar[Mapping[str, str]] = {}  # What each command does, for --help, by its name
    # Those whose script has arguments of its own: the first of them ends the command's
    with_script: ClassVar[Collection[str]] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands."""
        return list(self.summaries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name not in self.summaries:
            return None
        if cmd_name not in self.commands:
            context = _OF_SCRIPTS if cmd_name in self.with_script else None
            self.commands[cmd_name] = _loaded(cmd_name, self.summaries[cmd_name], context)
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the commands, and the options of a checkout's `main.py` or where they are asked for."""
        self.format_commands(ctx, formatter)
        if WHOLE_HELP in ctx.meta or not _help(ctx).endswith("--help-all"):
            super().format_options(ctx, formatter)
            return
        records = {name: record for one in self.get_params(ctx) if (record := _record(one, ctx)) for name in one.opts}
        with formatter.section(_OTHER):
            _write_records([records[name] for name in ("--help-all", "--version", "--help")], formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for a file's name in its place, say which command takes it.

        Raises:
            typer.Exit: With status 2; there is no such command.
        """
        if self.get_command(ctx, args[0]) is None:
            _refuse(ctx, f"There is no command {args[0]}.", _command_for(ctx, args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def _loaded(name: str, summary: str, context: dict[str, Any] | None) -> Any:
    """The command of a file in this folder, a function of its name."""
    module = import_module(f"tracer.commands.{name}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(cls=Command, short_help=summary, context_settings=context)(getattr(module, name))
    return typer.main.get_command(alone)


def _defaults_of(ctx: Any) -> dict[str, Any]:
    """Defaults of this command's options from pyproject.toml, which is read once and checked."""
    root = ctx.find_root()
    if ctx is root:
        try:
            root.obj = _checked_defaults(ctx)
        except UsageError as error:
            _refuse(ctx, str(error), error.hint)
    defaults: Defaults = root.obj
    return defaults.of(None if ctx is root else ctx.command.name, _options(ctx.command, ctx))


def _checked_defaults(ctx: Any) -> Defaults:
    names = ctx.command.list_commands(ctx)
    defaults = read_defaults(working_folder(), names)
    if defaults.path is not None:
        options = {name: list(_options(ctx.command.get_command(ctx, name), ctx)) for name in names}
        defaults.check({None: list(_options(ctx.command, ctx)), **options})
    return defaults


def _options(command: Any, ctx: Any) -> dict[str, Any]:
    """The options of a command that may have a default, by name without dashes."""
    return {
        max(parameter.opts, key=len).removeprefix("--"): parameter
        for parameter in command.get_params(ctx)
        if parameter.param_type_name == "option" and not parameter.is_eager
    }


def _write_records(records: list[tuple[str, str]], formatter: Any) -> None:
    """Write options and what they do in two columns, broken between words and never in one."""
    width = max((len(name) for name, _ in records if len(name) <= _WIDEST_NAME), default=0)
    lead = " " * formatter.current_indent
    indent = formatter.current_indent + width + 2
    for name, text in records:
        folded = _fold(text, formatter.width - indent)
        if len(name) > _WIDEST_NAME:
            formatter.write(f"{lead}{name}\n")
            first = " " * indent
        else:
            first = f"{lead}{name:{width}}  "
        lines = (first + folded[0], *(" " * indent + line for line in folded[1:]))
        formatter.write("".join(f"{line.rstrip()}\n" for line in lines))


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 10), break_long_words=False, break_on_hyphens=False) or [""]


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


def _in_words(error: Any, ctx: Any) -> str:
    """Return the mistake in words: the parameter's name, its value, and the reason."""
    if (unknown := getattr(error, "option_name", None)) is not None and hasattr(error, "possibilities"):
        return f"There is no option {unknown}."
    if (parameter := getattr(error, "param", None)) is None:
        return str(error.format_message())
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name.upper()
    if not error.message:  # it is missing
        return f"{name} is missing: {parameter.help}" if getattr(parameter, "help", "") else f"{name} is missing."
    message = error.message.removeprefix("Value error, ").removesuffix(".").replace("'", "")
    source = ctx.get_parameter_source(parameter.name)
    where = f" in {FILE_NAME}" if source is not None and source.name == "DEFAULT_MAP" else ""
    return f"{name} {message}{where}."


def _hint(error: Any, ctx: Any) -> str:
    if (unknown := getattr(error, "option_name", None)) is None or not hasattr(error, "possibilities"):
        return ""
    names = [name for parameter in ctx.command.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)]
    return _suggestion(ctx, unknown, [name for name in names if name.startswith("--")])


def _suggestion(ctx: Any, name: str, known: Iterable[str]) -> str:
    meant = did_you_mean(name, list(known))
    return f"{meant} {_help(ctx)} lists what there is." if meant else ""


def _command_for(ctx: Any, name: str, commands: list[str]) -> str:
    """Return the command to type for a file's name in a command's place, or for a misspelt command."""
    if name.endswith(".py"):
        return f"To profile a script: {_program(ctx)} run {name}"
    if Path(name).exists():
        return f"For a snapshot: {_program(ctx)} snapshot {name}"
    return _suggestion(ctx, name, commands)


def _program(ctx: Any) -> str:
    return re.sub(r"^main\.py", from_checkout(), str(ctx.command_path))


def _help(ctx: Any) -> str:
    is_short = ctx is ctx.find_root() and not str(ctx.command_path).startswith("main.py")
    return f"{_program(ctx)} {'--help-all' if is_short else '--help'}"


def _refuse(ctx: Any, message: str, hint: str = "") -> NoReturn:
    error = TracerError(message, hint=hint or f"{_help(ctx)} lists what there is.")
    for line in error.lines:
        say(line)
    raise typer.Exit(_USAGE_STATUS)
