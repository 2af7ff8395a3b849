"""action.yml: its shell steps do what they say, with a program in the place of ours, and inputs are no shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

import main

ROOT = Path(main.__file__).parent
TEXT = (ROOT / "action.yml").read_text()
# It writes what it is called with, and ends as a check does that finds growth, if no other check's answer lies there.
_FAKE = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
name = Path(sys.argv[0]).name
with Path(os.environ["RUNNER_TEMP"], "called").open("a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "gh":
    if "FAILING" in os.environ:
        sys.exit(1)
    if "--paginate" in sys.argv:
        print(os.environ.get("FOUND", ""))
if name == "torch-timeline":
    Path(sys.argv[sys.argv.index("--markdown") + 1]).open("x").write("### grew\\n")
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    action = yaml.safe_load(TEXT)
    assert (
        set(action["inputs"]) >= {"script", "on", "baseline", "fail-above"} and action["runs"]["using"] == "composite"
    )
    return {step["name"]: step for step in action["runs"]["steps"]}


PULL_REQUEST = {"NUMBER": "7", "REPOSITORY": "a/b", "SCRIPT": "train.py --epochs 1", "CARD": "h100"}


def ran(step: dict[str, Any], folder: Path, **variables: str) -> tuple[int, list[list[str]]]:
    """The status of a shell step, and what it called of other programs."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("torch-timeline", "gh"):
        (tools / name).write_text(_FAKE)
        (tools / name).chmod(0o755)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    given = {"PATH": f"{tools}:{os.environ['PATH']}", "RUNNER_TEMP": str(folder), **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, env=given, cwd=folder, capture_output=True, text=True, check=False)
    called = folder / "called"
    return done.returncode, [json.loads(line) for line in called.read_text().splitlines()] if called.exists() else []


def test_the_check_gets_the_scripts_words(steps: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Quoted ones whole, what a shell would run as it is, and the command is one that there is."""
    inputs = {
        "SCRIPT": "train.py --name 'two words' '$(touch ran)' `touch ran` --epochs 1",
        "CARD": "8xh100", "BASELINE": "peaks.json", "FAIL_ABOVE": "2%; touch ran",
    }  # fmt: skip
    assert set(inputs) == set(steps["Check"]["env"])
    (tmp_path / "gpu-memory.md").write_text("of the check of another script\n")
    status, ((name, *words),) = ran(steps["Check"], tmp_path, **inputs)
    assert (status, name) == (3, "torch-timeline") and not (tmp_path / "ran").exists()
    behind = words[words.index("--") + 1 :]
    assert behind == ["train.py", "--name", "two words", "$(touch ran)", "`touch", "ran`", "--epochs", "1"]
    program: Any = typer.main.get_command(main.app)
    context = program.make_context("torch-timeline", words)
    command, found, arguments = program.resolve_command(context, [*context._protected_args, *context.args])
    options = found.make_context(command, list(arguments), parent=context).params
    assert (command, options["script"], options["on"], options["fail_above"]) == (
        "check",
        "train.py",
        "8xh100",
        "2%; touch ran",
    )
    assert options["arguments"] == behind[1:]


def test_what_changed_is_said_where_there_is_something(steps: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    summary, comment = steps["Say what changed"], steps["Comment the pull request"]
    variables = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), **PULL_REQUEST}
    assert ran(summary, tmp_path, **variables) == ran(comment, tmp_path, **variables) == (0, [])
    (tmp_path / "gpu-memory.md").write_text("### grew\n")
    assert ran(summary, tmp_path, **variables)[0] == 0 and (tmp_path / "summary").read_text() == "### grew\n"
    status, ((name, *_), (_, *words)) = ran(comment, tmp_path, **variables)
    assert (status, name, words[:3]) == (0, "gh", ["pr", "comment", "7"])
    written = (tmp_path / "comment.md").read_text()
    assert re.fullmatch(r"<!-- torch-timeline [0-9a-f]{16} -->\n### grew\n", written)


def test_the_comment_of_an_earlier_run_is_edited(steps: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "gpu-memory.md").write_text("### grew\n")
    status, ((_, *asked), (_, *words)) = ran(
        steps["Comment the pull request"], tmp_path, FOUND="11\n22", **PULL_REQUEST
    )
    mark = (tmp_path / "comment.md").read_text().partition("\n")[0]
    assert status == 0 and "repos/a/b/issues/7/comments" in asked and mark in asked[-1]
    assert words[:4] == ["api", "--method", "PATCH", "repos/a/b/issues/comments/11"]
    assert words[-1] == f"body=@{tmp_path / 'comment.md'}"


def test_a_comment_that_cannot_be_made_is_a_warning_and_a_fork_has_none(
    steps: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "gpu-memory.md").write_text("### grew\n")
    comment = steps["Comment the pull request"]
    assert ran(comment, tmp_path, FAILING="1", **PULL_REQUEST)[0] == 0
    assert "github.event.pull_request.head.repo.full_name == github.repository" in comment["if"]


def test_torchs_version_is_the_caches(steps: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    assert ran(steps["Find torch's version"], tmp_path, GITHUB_OUTPUT=str(tmp_path / "output"))[0] == 0
    assert (tmp_path / "output").read_text() == f"version={version('torch')}\n"


def test_no_input_is_put_into_a_shell() -> None:
    shells = re.findall(r"^ +run: (?:\|\n((?: {8}.*\n)+)|(.*)\n)", TEXT, re.MULTILINE)
    assert len(shells) == 5 and not any("${{" in text for shell in shells for text in shell)
