"""`mcp`: an assistant's client asks and commands answer; nothing outside the folder is read or written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import main
from tests.exporters.snapshot_samples import out_of_memory
from tests.null_gpu.started import needs_null_gpu
from tests.processes import run_python
from tests.snapshot.dumps import write
from tracer.sessions.jobs.child_processes import ChildProcesses, Ended

ROOT = Path(main.__file__).parent
DOCUMENT = {"format": "torch-timeline diff", "rows": list(range(30)), "peak": {"rows": [[1] * 12, [2]]}}


class Commands:
    """Keeps the words of every command, and ends each alike."""

    def __init__(self, ended: Ended | None = None) -> None:
        self.ended = ended or Ended(0, json.dumps(DOCUMENT))
        self.words: list[list[str]] = []

    async def __call__(self, words: Sequence[str]) -> Ended:
        self.words.append(list(words))
        return self.ended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "project"
    inside.mkdir()
    for place in (tmp_path, inside):
        (place / "train.py").write_text("")
        write(place / "s.pickle", out_of_memory())
    (inside / "link.py").symlink_to(tmp_path / "train.py")
    (inside / "linked").mkdir()
    (inside / "linked" / "s.pickle").symlink_to(tmp_path / "s.pickle")
    return inside


def asked(folder: Path, tool: str, commands: Commands, **arguments: object) -> Any:
    """The result of a call of a tool, as the package's own client has it."""
    pytest.importorskip("mcp_types")
    import anyio
    from mcp import Client

    from tracer.commands.mcp_tools import server_in

    async def call() -> Any:
        async with Client(server_in(folder, commands)) as client:
            return await client.call_tool(tool, arguments)

    # The browser that tests of the page share has an event loop in this thread for as long as it is open.
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(anyio.run, call).result()


def words_of(folder: Path, tool: str, **arguments: object) -> list[str]:
    commands = Commands()
    result = asked(folder, tool, commands, **arguments)
    assert not result.is_error, result.content
    (words,) = commands.words
    return words


def refusal(folder: Path, tool: str, **arguments: object) -> str:
    commands = Commands()
    result = asked(folder, tool, commands, **arguments)
    assert result.is_error and commands.words == []
    return result.content[0].text


def test_each_tool_is_a_command_of_this_program(folder: Path) -> None:
    assert words_of(folder, "snapshot", file=["s.pickle"]) == ["snapshot", "--json", "--", "s.pickle"]
    script = {"on": "h100", "script": "train.py", "arguments": ["--json", "--save-dir", "/"]}
    behind = ["--", "train.py", "--json", "--save-dir", "/"]
    assert words_of(folder, "predict", **script, answer=["a", "b"]) == [
        *("predict", "--on=h100", "--answer=a", "--answer=b", "--json"), *behind
    ]  # fmt: skip
    assert words_of(folder, "predict", on="h100", model="train.py:build", batch_size=2, inference=True) == [
        *("predict", "--on=h100", "--model=train.py:build", "--batch-size=2", "--inference", "--json"),
    ]
    assert words_of(folder, "diff", before="s.pickle", after=str(folder / "s.pickle"), fail_above="-q") == [
        *("diff", "--fail-above=-q", "--json", "--", "s.pickle", "s.pickle"),
    ]
    assert words_of(folder, "check", **script, update=False) == ["check", "--on=h100", "--json", *behind]


def test_the_tools_are_the_commands_with_a_document() -> None:
    """Their parameters are those of the command line, in the words of --help."""
    pytest.importorskip("mcp_types")
    from tracer.commands.app import COMMANDS
    from tracer.commands.mcp_tools import _commands, _tool

    tools = {name: _tool(name, command) for name, command in _commands().items()}
    assert {"fit", "predict", "check", "snapshot", "diff", "doctor"} <= tools.keys() < {*COMMANDS}
    assert tools["check"].input_schema["required"] == ["script"]
    properties = tools["predict"].input_schema["properties"]
    assert properties["batch_size"] == {"type": ["string", "number"], "description": "Samples in a batch. <number>"}
    assert properties["inference"]["type"] == "boolean" and properties["answer"]["type"] == "array"
    assert not {"as_json", "json", "quiet", "open", "help"} & properties.keys()


def test_words_of_a_command_are_read_as_they_are_meant(folder: Path) -> None:
    """The program's own parser takes what looks like options for the script's, and a value for a value."""
    import typer

    words = words_of(folder, "check", on="--save-dir=/", script="train.py", arguments=["--update", "--", "-q"])
    program: Any = typer.main.get_command(main.app)
    context = program.make_context("torch-timeline", words)
    _, command, rest = program.resolve_command(context, [*context._protected_args, *context.args])
    values = command.make_context("check", list(rest), parent=context).params
    assert values["arguments"] == ["--update", "--", "-q"]
    assert (values["on"], values["update"], values["as_json"]) == ("--save-dir=/", False, True)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("snapshot", {"file": ["../s.pickle"]}),
        ("snapshot", {"file": ["linked"]}),
        ("snapshot", {"file": ["s.pickle"], "html": "../page.html"}),
        ("diff", {"before": "s.pickle", "after": "linked/s.pickle"}),
        ("predict", {"on": "h100", "script": "../train.py"}),
        ("predict", {"on": "h100", "script": "link.py"}),
        ("predict", {"on": "h100", "model": "../train.py:build"}),
        ("predict", {"on": "h100", "hf_config": "/"}),
        ("predict", {"on": "h100", "script": "train.py", "save_dir": "linked/../.."}),
        ("fit", {"on": "h100", "script": "train.py", "save_dir": "/"}),
        ("check", {"on": "h100", "script": "train.py", "baseline": "../peaks.json"}),
    ],
)
def test_nothing_outside_the_folder_is_read_or_written(folder: Path, tool: str, arguments: dict[str, Any]) -> None:
    assert f"is outside the working folder.\nHint: Name a path in {folder}." in refusal(folder, tool, **arguments)


def test_what_cannot_be_asked_is_refused_in_a_sentence(folder: Path) -> None:
    assert "gone.py is not there." in refusal(folder, "fit", on="h100", script="gone.py")
    assert "s.pickle is no Python script." in refusal(folder, "fit", on="h100", script="s.pickle")
    assert "no path: embedded null byte" in refusal(folder, "snapshot", file=["a\0b"])
    assert "script is missing" in refusal(folder, "predict", on="h100", arguments=["/etc/passwd"])
    assert "after is missing" in refusal(folder, "diff", before="s.pickle")
    assert "There is no quiet.\nHint: There are before, after" in refusal(folder, "diff", quiet=True)
    assert "There is no tool run." in refusal(folder, "run")


def test_lists_are_cut_and_it_is_said_where(folder: Path) -> None:
    result = asked(folder, "diff", Commands(), before="s.pickle", after="s.pickle", rows=4)
    expected = {
        **DOCUMENT,
        "rows": [0, 1, 2, 3],
        "peak": {"rows": [[1] * 4, [2]]},
        "left_out": {"rows": 26, "peak.rows[]": 8},
    }
    assert result.structured_content == expected == json.loads(result.content[0].text)


def test_a_threshold_that_is_exceeded_is_an_answer(folder: Path) -> None:
    commands = Commands(Ended(3, json.dumps(DOCUMENT), "Peak grew"))
    result = asked(folder, "check", commands, on="h100", script="train.py")
    assert not result.is_error and result.content[1].text.startswith("Exit status 3: ")


def test_an_error_is_the_commands_sentence_and_hint(folder: Path) -> None:
    said = "Error: of the script\nstep 0\nError: There is no card h101.\nHint: Write h100.\n"
    for status, answer in ((1, ""), (2, json.dumps(DOCUMENT)), (3, "")):
        result = asked(folder, "predict", Commands(Ended(status, answer, said)), on="h101", script="train.py")
        assert result.is_error and result.content[0].text.endswith("There is no card h101.\nHint: Write h100.")
    trace = "Traceback (most recent call last):\n  train.py\nKeyError: 1\nError: train.py ended.\nHint: See above."
    for said, shown in ((f"step 0\n{trace}", trace), ("Killed\n", "ended with status 1.\nKilled")):
        result = asked(folder, "check", Commands(Ended(1, "", said)), on="h100", script="train.py")
        assert result.is_error and result.content[0].text.endswith(shown) and "step 0" not in result.content[0].text


def test_without_a_document_it_is_done(folder: Path) -> None:
    """As `check --update` prints none."""
    updated = asked(folder, "check", Commands(Ended(0)), on="h100", script="train.py", update=True)
    assert not updated.is_error and updated.content[0].text == "Done."


def test_stdout_and_stderr_of_a_process_are_kept_apart() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); print(repr(sys.stdin.read()))"
    command = [sys.executable, "-c", program]
    ended = ChildProcesses().run_again(dict(os.environ), command=command, are_errors_apart=True)
    assert ended == Ended(0, "out\n''\n", "err\n")
    assert set(ChildProcesses().run_again(dict(os.environ), command=command).lines) == {"out", "err", "''"}


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tracer.commands.mcp_tools", raising=False)
    for name in ("mcp", "mcp.server"):
        monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(main.app, ["mcp"])
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: The package mcp, 2.0 or newer, is not installed.\nHint: Install the extra `mcp`: pip install mcp\n"
    )


@pytest.mark.slow
@needs_null_gpu
def test_a_client_talks_to_the_program(folder: Path) -> None:
    """Over stdio: the script prints, and the answer is that of the command."""
    pytest.importorskip("mcp_types")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "client.py").write_text(CLIENT)
    done = run_python("client.py", sys.executable, str(ROOT / "main.py"), folder=folder)
    assert done.returncode == 0, done.stderr
    tools, explained, predicted, failed = json.loads(done.stdout)
    assert {"predict", "fit", "check", "snapshot", "diff"} <= set(tools)
    assert explained["format"] == "torch-timeline snapshot"
    words = ("predict", "--on", "h100", "--json", "train.py", "64")
    own = json.loads(run_python(ROOT / "main.py", *words, folder=folder).stdout)
    assert predicted["peak_allocated_bytes"] == own["peak_allocated_bytes"] > 0
    assert "ValueError: no width" in failed


SCRIPT = """
import sys
import torch
print("a line on stdout")
if len(sys.argv) < 2:
    raise ValueError("no width")
model = torch.nn.Linear(int(sys.argv[1]), 8).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    model(torch.randn(4, int(sys.argv[1]), device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CLIENT = """
import json, os, sys
import anyio
from mcp import Client, StdioServerParameters, stdio_client

async def main():
    server = StdioServerParameters(command=sys.argv[1], args=[sys.argv[2], "mcp"], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        explained = await client.call_tool("snapshot", {"file": ["s.pickle"]})
        script = {"on": "h100", "script": "train.py"}
        predicted = await client.call_tool("predict", {**script, "arguments": ["64"]})
        failed = await client.call_tool("predict", script)
    assert failed.is_error
    print(json.dumps([tools, explained.structured_content, predicted.structured_content, failed.content[0].text]))

anyio.run(main)
"""
