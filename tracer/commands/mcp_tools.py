"""The tools of `torch-timeline mcp`: the commands that print or write a document, each with its own options.

Each runs its command in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

from tracer.command_line import program
from tracer.commands.app import Program
from tracer.commands.common import THRESHOLD_EXCEEDED
from tracer.errors import UsageError
from tracer.sessions.jobs.child_processes import ChildProcesses, Ended

_LEFT_OUT: Final = {"as_json", "quiet", "open_", "full", "module", "dask"}
"""Parameters of the screen, and those that name what is in no file of the folder."""
_PATHS: Final = ("<path>", "<file>")
_MODEL: Final = "<where:what>"
_ROWS: Final = {"type": "integer", "minimum": 1, "description": "Most rows of each list; `left_out` counts the others."}
_MOST_ROWS: Final = 10
_OVER: Final = "Exit status 3: it does not fit, or has grown by more than was allowed."
_MOST_LINES: Final = 40
"""Lines of stderr in an error."""

RunCommand = Callable[[Sequence[str]], Awaitable[Ended]]
"""Runs this program with a command and its words."""


async def run_command(words: Sequence[str]) -> Ended:
    """Run this program in a process that shares no stream with this one; it ends when the call is cancelled."""
    children = ChildProcesses()
    command = [sys.executable, *program(), *words]
    run = partial(children.run_again, dict(os.environ), command=command, are_errors_apart=True)
    try:
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        children.end()
        raise


def server_in(folder: Path, run: RunCommand = run_command) -> Server[Any]:
    """Return a server whose tools read and write in a folder alone."""
    commands = _commands()

    async def listed(*_: object) -> ListToolsResult:
        return ListToolsResult(tools=[_tool(name, command) for name, command in commands.items()])

    async def called(_: object, asked: Any) -> CallToolResult:
        try:
            if asked.name not in commands:
                raise UsageError(f"There is no tool {asked.name}.", hint=f"Tools are {', '.join(commands)}.")
            words = _Words(folder.resolve(), commands[asked.name], dict(asked.arguments or {}))
            return await _answer(asked.name, words, run)
        except UsageError as error:
            return _failure(f"{error}\nHint: {error.hint}")

    return Server(
        "torch-timeline",
        instructions="Says what fills GPU memory in PyTorch programs and what to change, without a GPU.",
        on_list_tools=listed,
        on_call_tool=called,
    )


async def serve(folder: Path) -> None:
    """Answer over stdin and stdout until the assistant ends."""
    server = server_in(folder)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def _commands() -> dict[str, Any]:
    """Return the commands that have a document, by name."""
    group = Program(name="torch-timeline")
    loaded = {name: group.get_command(None, name) for name in group.list_commands(None)}
    return {name: command for name, command in loaded.items() if any(one.name == "as_json" for one in command.params)}


def _parameters(command: Any) -> dict[str, Any]:
    """Return a command's parameters by the names that a tool gives them: an option's is that of the command line."""
    found = {}
    for one in command.params:
        is_option = one.param_type_name == "option"
        if one.name not in _LEFT_OUT and not (is_option and one.nargs != 1) and not getattr(one, "is_eager", False):
            found[max(one.opts, key=len).lstrip("-").replace("-", "_") if is_option else one.name] = one
    return found


def _tool(name: str, command: Any) -> Tool:
    parameters = _parameters(command)
    schema = {
        "type": "object",
        "properties": {**{name: _schema(one) for name, one in parameters.items()}, "rows": _ROWS},
        "required": [name for name, one in parameters.items() if one.required],
        "additionalProperties": False,
    }
    hints = ToolAnnotations(open_world_hint=False)
    return Tool(name=name, description=command.help, input_schema=schema, annotations=hints)


def _schema(parameter: Any) -> dict[str, Any]:
    about = {"description": " ".join(filter(None, [parameter.help, parameter.metavar]))}
    if getattr(parameter, "is_flag", False):
        return {"type": "boolean", **about}
    if getattr(parameter, "multiple", False) or parameter.nargs != 1:
        return {"type": "array", "items": {"type": "string"}, **about}
    return {"type": ["string", "number"], **about}


class _Words:
    """The words of a command, of what a tool was given; UsageError where they would lead out of the folder."""

    def __init__(self, folder: Path, command: Any, values: dict[str, Any]) -> None:
        self.folder = folder
        rows = values.pop("rows", _MOST_ROWS)
        self.rows = max(1, rows) if isinstance(rows, int) else _MOST_ROWS
        known = _parameters(command)
        if unknown := sorted(values.keys() - known.keys()):
            raise UsageError(f"There is no {unknown[0]}.", hint=f"There are {', '.join(known)}.")
        options = [name for name in values if known[name].param_type_name == "option"]
        self.options = [word for name in options for word in self._of_option(name, known[name], values[name])]
        self.behind = list(self._of_arguments([one for one in command.params if one.name in known], values))

    def all(self) -> list[str]:
        """Return them; no option of a command is read behind `--`."""
        behind = ["--", *self.behind] if self.behind else []
        return [*self.options, "--json", *behind]

    def _of_option(self, name: str, parameter: Any, value: Any) -> Iterator[str]:
        """`--batch-size=4`, `--inference`, `--answer=a --answer=b`: no value begins an option, whatever it is."""
        option = f"--{name.replace('_', '-')}"
        if getattr(parameter, "is_flag", False):
            yield from [option] * bool(value)
            return
        for one in map(str, value if isinstance(value, list) else [value]):
            if parameter.metavar in _PATHS:
                yield f"{option}={self._inside(one)}"
                continue
            where = one.rpartition(":")[0]
            if parameter.metavar == _MODEL and (where.endswith(".py") or {"/", os.sep} & set(where)):
                self._existing(where)
            yield f"{option}={one}"

    def _of_arguments(self, parameters: Sequence[Any], values: Mapping[str, Any]) -> Iterator[str]:
        missing = ""
        for one in (one for one in parameters if one.param_type_name == "argument"):
            if one.name not in values:
                missing = missing or one.name
                if one.required:
                    raise UsageError(f"{one.name} is missing.", hint=one.help)
                continue
            if missing:
                raise UsageError(f"{missing} is missing, which comes before {one.name}.", hint=f"Give {missing}, too.")
            value = values[one.name]
            words = list(map(str, value if isinstance(value, list) else [value]))
            yield from words if one.name == "arguments" else map(self._existing, words)
            if one.name == "script" and (len(words) != 1 or not words[0].endswith(".py")):
                raise UsageError(f"{', '.join(words)} is no Python script.", hint="Name a file that ends in .py.")

    def _inside(self, path: str) -> str:
        """Return a path from the working folder; refuse one that leads out of it, also by links."""
        try:
            real = Path(os.path.realpath(self.folder / path))
        except ValueError as error:
            raise UsageError(f"{path!r} is no path: {error}.", hint="Name a path in the working folder.") from error
        if not real.is_relative_to(self.folder):
            raise UsageError(f"{path} is outside the working folder.", hint=f"Name a path in {self.folder}.")
        return os.path.relpath(real, self.folder) if Path(path).is_absolute() else path

    def _existing(self, path: str) -> str:
        """Return the same of a file or folder that is there; nothing in the folder is a link that leads out."""
        name = self._inside(path)
        found = self.folder / name
        if not found.exists():
            raise UsageError(f"{path} is not there.", hint=f"Name a path in {self.folder}.")
        for inner in found.rglob("*") if found.is_dir() else ():
            if inner.is_symlink():
                self._inside(str(inner))
        return name


async def _answer(name: str, words: _Words, run: RunCommand) -> CallToolResult:
    """Run a command and return the document that it prints."""
    ended = await run([name, *words.all()])
    if ended.status not in (0, THRESHOLD_EXCEEDED) or (ended.status and not ended.text.strip()):
        return _failure(_complaint(name, ended))
    if not ended.text.strip():
        return CallToolResult(content=[TextContent(text="Done.")])
    left_out: dict[str, int] = {}
    shown = _cut(json.loads(ended.text), words.rows, "", left_out)
    if left_out:
        shown["left_out"] = left_out
    texts = [json.dumps(shown), *[_OVER] * (ended.status == THRESHOLD_EXCEEDED)]
    return CallToolResult(content=[TextContent(text=text) for text in texts], structured_content=shown)


def _cut(value: Any, rows: int, place: str, left_out: dict[str, int]) -> Any:
    """Return a value with the first rows of each list; `left_out` takes how many others there are, by place."""
    if isinstance(value, Mapping):
        return {name: _cut(inner, rows, f"{place}.{name}".lstrip("."), left_out) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > rows:
        left_out[place] = left_out.get(place, 0) + len(value) - rows
    return [_cut(inner, rows, f"{place}[]", left_out) for inner in value[:rows]]


def _complaint(command: str, ended: Ended) -> str:
    """Return the command's own sentence and hint, behind the script's traceback; without them the end of stderr."""
    lines = ended.errors.splitlines()
    for begin in ("Traceback (most recent call last)", "Error: "):
        if rows := [row for row, line in enumerate(lines) if line.startswith(begin)]:
            return "\n".join(lines[rows[-1] :][-_MOST_LINES:]).removeprefix("Error: ")
    return "\n".join([f"{command} ended with status {ended.status}.", *lines[-_MOST_LINES:]])


def _failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
