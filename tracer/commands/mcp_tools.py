"""The tools of `torch-timeline mcp`: each runs a command in a process of its own and returns the document it makes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from tracer.command_line import program
from tracer.commands.common import THRESHOLD_EXCEEDED
from tracer.commands.diff import is_trace_file
from tracer.errors import RecordingError, TracerError
from tracer.exporters.document import Source, read_document
from tracer.results.files import FIT_JSON, PEAK, RANKS_JSON, WATCH_JSON
from tracer.sessions.jobs.child_processes import ChildProcesses, Ended

_EXCEEDED: Final = {
    "predict": "It does not fit.",
    "fit": "Nothing that was tried makes it fit.",
    "diff": "The peak grew by more than fail_above.",
    "check": "The peak grew by more than fail_above.",
}
"""The meaning of the exit status THRESHOLD_EXCEEDED."""
_DOCUMENTS: Final = (PEAK.file_name, RANKS_JSON, WATCH_JSON, FIT_JSON)
"""Answers in a folder of results, the one that says most first."""
_MOST_LINES: Final = 40
"""Of stderr, in an error."""

RunCommand = Callable[[Sequence[str]], Awaitable[Ended]]
"""Runs this program with a command and its words."""

_Arguments = Annotated[tuple[str, ...], Field(description="Arguments of the script.")]
_Answers = Annotated[
    tuple[str, ...],
    Field(description="Values that lines of the script read from the GPU, where a run asks for them: train.py:12=0.5."),
]
_Card = Annotated[
    str, Field(description="The GPU, which need not be here: h100, rtx-4090, h100:40GiB, 24GiB, 8xh100 for a job.")
]
_Script = Annotated[str, Field(description="An unchanged Python script, by its path from the working folder.")]
_Rows = Annotated[int, Field(description="Most rows of each list; `left_out` counts the others.", ge=1)]
_Limit = Annotated[str | None, Field(description="Growth to report as too much: 5% or 100MiB.")]
_SaveDir = Annotated[str | None, Field(description="Also write files to this folder, in the working folder.")]


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


def server_in(folder: Path, run: RunCommand = run_command) -> MCPServer[Any]:
    """Return a server whose tools read and write in a folder alone."""
    tools = Tools(folder, run)
    server: MCPServer[Any] = MCPServer(
        "torch-timeline",
        instructions="Says what fills GPU memory in PyTorch programs and what to change, without a GPU.",
        log_level="WARNING",
    )
    for tool, only_reads in (
        (tools.explain, True),
        (tools.predict, False),
        (tools.fit, False),
        (tools.diff, True),
        (tools.check, False),
    ):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=only_reads, open_world_hint=False))
    return server


class Tools:
    """The tools; each raises ToolError with the command's sentence and hint where it fails."""

    def __init__(self, folder: Path, run: RunCommand = run_command) -> None:
        self._folder = folder.resolve()
        self._run = run

    async def explain(
        self,
        path: Annotated[
            str,
            Field(description="An allocator snapshot, a trace of torch.profiler's, or a folder that a run wrote."),
        ],
        rows: _Rows = 5,
    ) -> CallToolResult:
        """Say what filled GPU memory at its peak and, where memory ran out, why and what to change."""
        name = self._existing(path)
        found = self._folder / name
        for document in [found] if found.name in _DOCUMENTS else [found / one for one in _DOCUMENTS]:
            if document.is_file():
                return _result(_read(document), rows)
        command = "trace" if _is_trace(found) else "snapshot"
        return await self._answer([command, "--json", "--", name], rows)

    async def predict(
        self,
        on: _Card,
        script: Annotated[str | None, Field(description="An unchanged Python script, or else name a model.")] = None,
        arguments: _Arguments = (),
        answers: _Answers = (),
        model: Annotated[
            str | None, Field(description="What to train: path/to/file.py:factory or package.module:factory.")
        ] = None,
        model_args: Annotated[tuple[str, ...], Field(description="Arguments of the factory: width=256.")] = (),
        inputs: Annotated[
            tuple[str, ...], Field(description="Inputs of the model, one sample: 3x224x224 or ids=128:int64:0-50257.")
        ] = (),
        hf_config: Annotated[
            str | None, Field(description="config.json of a transformers model, instead of a model.")
        ] = None,
        tokens: Annotated[int | None, Field(description="Tokens in a sample of hf_config.")] = None,
        batch_size: Annotated[int | None, Field(description="Samples in a batch of a model; 8 by default.")] = None,
        optimizer: Annotated[str | None, Field(description="Optimizer of a model: adamw, sgd:lr=0.1, none.")] = None,
        amp: Annotated[str | None, Field(description="Mixed precision of a model: bfloat16 or float16.")] = None,
        inference: Annotated[bool, Field(description="Only run the model forward, without gradients.")] = False,
        largest_batch: Annotated[bool, Field(description="Also find the largest batch of a model that fits.")] = False,
        save_dir: _SaveDir = None,
        rows: _Rows = 10,
    ) -> CallToolResult:
        """Say whether a training step of a script, or of a model, fits on a GPU, and what fills it, without a GPU.

        The script is run: its first steps, on a device that computes nothing.
        """
        if (script is None) == (model is None and hf_config is None):
            raise _refusal("Name either a script or a model.", "A model is `model` or `hf_config`.")
        if model is not None:
            self._check_model(model)
        words = _options(
            on=on,
            answer=answers,
            model=model,
            model_arg=model_args,
            input=inputs,
            hf_config=None if hf_config is None else self._existing(hf_config),
            tokens=tokens,
            batch_size=batch_size,
            optimizer=optimizer,
            amp=amp,
            inference=inference,
            largest_batch=largest_batch,
            save_dir=None if save_dir is None else self._inside(save_dir),
        )
        named = [] if script is None else self._script(script, arguments)
        return await self._answer(["predict", *words, "--json", *named], rows)

    async def fit(
        self,
        on: _Card,
        script: _Script,
        arguments: _Arguments = (),
        answers: _Answers = (),
        values: Annotated[
            tuple[str, ...],
            Field(description="Try values of the script's own options instead of changes: '--batch-size 8,4,2'."),
        ] = (),
        each: Annotated[bool, Field(description="Try each change alone, and say what it saves.")] = False,
        search: Annotated[bool, Field(description="Try all values, as they are and with changes.")] = False,
        save_dir: Annotated[
            str | None, Field(description="Folder for fit.json, which `torch-timeline run --apply` reads.")
        ] = None,
        rows: _Rows = 20,
    ) -> CallToolResult:
        """Say whether a script fits on a GPU, and if not, find the least that has to change so that it does.

        The script is run several times, on a device that computes nothing: this can take minutes.
        """
        kept = None if save_dir is None else self._inside(save_dir)
        named = self._script(script, arguments)
        with tempfile.TemporaryDirectory(prefix="torch-timeline-") as folder:
            answer = self._folder / kept if kept is not None else Path(folder)
            tried = _options(**{"try": values}, each=each, search=search)
            words = [*_options(on=on, answer=answers, save_dir=kept if kept is not None else folder), *tried]
            return await self._answer(["fit", *words, *named], rows, written=answer / FIT_JSON)

    async def diff(
        self,
        before: Annotated[str, Field(description="A snapshot, a trace, or a folder that a run wrote.")],
        after: Annotated[str, Field(description="The one to compare with it.")],
        fail_above: _Limit = None,
        rows: _Rows = 10,
    ) -> CallToolResult:
        """Say what changed between two peaks, to the byte."""
        sides = [self._existing(before), self._existing(after)]
        return await self._answer(["diff", *_options(fail_above=fail_above), "--json", "--", *sides], rows)

    async def check(
        self,
        on: _Card,
        script: _Script,
        arguments: _Arguments = (),
        answers: _Answers = (),
        baseline: Annotated[str, Field(description="File with the peaks to compare with.")] = "peaks.json",
        fail_above: _Limit = None,
        update: Annotated[bool, Field(description="Write the peak to the baseline, and return that.")] = False,
        rows: _Rows = 10,
    ) -> CallToolResult:
        """Compare a script's peak of GPU memory with the one in a baseline, without a GPU.

        The script is run: its first steps, on a device that computes nothing.
        """
        file = self._inside(baseline)
        words = _options(on=on, answer=answers, baseline=file, fail_above=fail_above, update=update)
        named = self._script(script, arguments)
        written = self._folder / file if update else None
        return await self._answer(["check", *words, "--json", *named], rows, written=written)

    async def _answer(self, words: Sequence[str], rows: int, *, written: Path | None = None) -> CallToolResult:
        """Run a command and return its document: the one that it prints, or the file that it has written."""
        ended = await self._run(words)
        is_answered = ended.status == 0 or (ended.status == THRESHOLD_EXCEEDED and words[0] in _EXCEEDED)
        if not is_answered or (not ended.text.strip() if written is None else not written.is_file()):
            raise ToolError(_complaint(words[0], ended))
        document = json.loads(ended.text) if written is None else _read(written)
        return _result(document, rows, _EXCEEDED[words[0]] if ended.status else "")

    def _inside(self, path: str) -> str:
        """Return a path from the working folder; refuse one that leads out of it, also by links."""
        try:
            real = Path(os.path.realpath(self._folder / path))
        except ValueError as error:
            raise _refusal(f"{path!r} is no path: {error}.", "Name a path in the working folder.") from error
        if not real.is_relative_to(self._folder):
            raise _refusal(f"{path} is outside the working folder.", f"Name a path in {self._folder}.")
        return os.path.relpath(real, self._folder) if Path(path).is_absolute() else path

    def _existing(self, path: str) -> str:
        """The same of a file or folder that is there; nothing in the folder is a link that leads out."""
        name = self._inside(path)
        found = self._folder / name
        if not found.exists():
            raise _refusal(f"{path} is not there.", f"Name a path in {self._folder}.")
        for inner in found.rglob("*") if found.is_dir() else ():
            if inner.is_symlink():
                self._inside(str(inner))
        return name

    def _script(self, script: str, arguments: Sequence[str]) -> list[str]:
        """The words that name a script: no option of a command is read behind `--`."""
        name = self._existing(script)
        if not name.endswith(".py") or not (self._folder / name).is_file():
            raise _refusal(f"{script} is no Python script.", "Name a file that ends in .py.")
        return ["--", name, *arguments]

    def _check_model(self, model: str) -> None:
        where = model.rpartition(":")[0]
        if where.endswith(".py") or {"/", os.sep} & set(where):
            self._existing(where)


def _options(**values: str | int | bool | Sequence[str] | None) -> list[str]:
    """`batch_size=4, inference=True, answer=["a", "b"]`: `--batch-size=4 --inference --answer=a --answer=b`.

    No value begins an option, whatever it is. None and False are left out.
    """
    words = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] * value
        elif isinstance(value, str | int):
            words.append(f"{option}={value}")
        else:
            words += [f"{option}={one}" for one in value or ()]
    return words


def _is_trace(path: Path) -> bool:
    """Whether a file is a trace; of a folder without a pickle its first file of JSON."""
    files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
    if any({".pkl", ".pickle"} & set(file.suffixes) for file in files):
        return False
    try:
        return any(map(is_trace_file, [file for file in files if ".json" in file.suffixes][:1]))
    except TracerError as error:
        raise _refusal(str(error), error.hint) from error


def _read(path: Path) -> Mapping[str, Any]:
    hint = "Let the command write it again."
    try:
        return read_document(path, Source(path.name, RecordingError, hint), hint=hint).unchecked()
    except TracerError as error:
        raise _refusal(str(error), error.hint) from error


def _result(document: Mapping[str, Any], rows: int, remark: str = "") -> CallToolResult:
    """A document with so many rows in each list, as a value and as text, and what the exit status says."""
    left_out: dict[str, int] = {}
    shown = _cut(document, rows, "", left_out)
    if left_out:
        shown["left_out"] = left_out
    texts = [json.dumps(shown), *([remark] if remark else [])]
    return CallToolResult(content=[TextContent(text=text) for text in texts], structured_content=shown)


def _cut(value: Any, rows: int, place: str, left_out: dict[str, int]) -> Any:
    """A value with the first rows of each list; `left_out` takes how many others there are, by place."""
    if isinstance(value, Mapping):
        return {name: _cut(inner, rows, f"{place}.{name}".lstrip("."), left_out) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > rows:
        left_out[place] = left_out.get(place, 0) + len(value) - rows
    return [_cut(inner, rows, f"{place}[]", left_out) for inner in value[:rows]]


def _complaint(command: str, ended: Ended) -> str:
    """The command's own sentence and hint, behind the script's traceback; without them the last lines of stderr."""
    lines = ended.errors.splitlines()
    for begin in ("Traceback (most recent call last)", "Error: "):
        if rows := [row for row, line in enumerate(lines) if line.startswith(begin)]:
            return "\n".join(lines[rows[-1] :][-_MOST_LINES:]).removeprefix("Error: ")
    return "\n".join([f"{command} ended with status {ended.status}.", *lines[-_MOST_LINES:]])


def _refusal(sentence: str, hint: str) -> ToolError:
    return ToolError(f"{sentence}\nHint: {hint}")
