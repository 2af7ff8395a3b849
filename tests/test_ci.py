"""What README.md promises of the program and of the tests is what the build machine runs."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = [shlex.split(line) for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("uv ")]


def in_force(command: list[str]) -> list[str]:
    """The `uv sync` before a command of the script: the packages that it sees."""
    before = SCRIPT[: SCRIPT.index(command)]
    return [each for each in before if each[:2] == ["uv", "sync"]][-1]


def test_the_readmes_two_commands_run_the_program_and_the_tests() -> None:
    """One under the other, each enough on a fresh machine; the script runs the second, then what it leaves out."""
    first, second = re.findall(r"^pip install uv && (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (first, second) == ("uv run main.py", "uv run pytest")
    assert (ROOT / "main.py").is_file()
    for each in (shlex.split(second), [*shlex.split(second), "-m", "slow"]):
        assert "--all-groups" in in_force(each)


def test_what_a_plain_install_brings_is_enough_to_read_the_tests() -> None:
    (collect,) = [command for command in SCRIPT if "--collect-only" in command]
    assert in_force(collect) == ["uv", "sync", "--locked", "--quiet"]
    (some,) = [
        command for command in SCRIPT if command[:3] == ["uv", "run", "pytest"] and "tests/test_examples.py" in command
    ]
    assert in_force(some) == ["uv", "sync", "--locked", "--quiet"]
    assert all((ROOT / name).exists() for name in some[3:])


def test_slow_tests_wait_until_they_are_asked_for() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "-m 'not slow'" in options["addopts"]
    assert any(marker.startswith("slow:") for marker in options["markers"])


def test_the_oldest_torch_is_the_one_that_is_promised() -> None:
    assert any(command[:2] == ["uv", "pip"] and "lowest-direct" in command for command in SCRIPT)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (oldest,) = [each.removeprefix("torch>=") for each in dependencies if each.startswith("torch>=")]
    assert f"({oldest} or newer)" in (ROOT / "README.md").read_text()
    assert f'"torch {oldest} to' in (ROOT / "tracer/capture/torch_private/torch_profiler.py").read_text()


def test_the_tests_that_run_on_it_are_there() -> None:
    named = re.findall(r"^ +(tests/\S+\.py)(?:::(\w+))?", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert named
    for file, test in named:
        assert f"def {test or 'test_'}" in (ROOT / file).read_text()


def test_what_the_extras_bring_is_there_when_tests_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    assert {*extras["cluster"], *extras["device"]} <= set(groups["cluster"])
    assert set(extras["integrations"]) <= set(groups["integrations"])
