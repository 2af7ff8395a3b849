"""What README.md promises of the program and of the tests is what the build machine runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

from tests.processes import run_python
from tests.skips import ONLY_GPU_SKIPS
from tracer.commands.doctor import NEWEST_TRIED_TORCH, OLDEST_TORCH
from tracer.null_gpu.build import OLDEST_TORCH as OLDEST_WITH_NULL_GPU

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = (ROOT / ".ci/run").read_text()
STAGES = ("tests", "lint", "slow", "edges")


def commands(stage: str) -> list[list[str]]:
    """What a stage runs with uv or with an environment's Python, in its order."""
    (body,) = re.findall(rf"^{stage}\(\) {{$(.*?)^}}$", SCRIPT, re.MULTILINE | re.DOTALL)
    lines = (line.strip() for line in body.replace("\\\n", "").splitlines())
    return [shlex.split(line) for line in lines if line.startswith(("uv ", '"$beside'))]


def test_the_readmes_two_commands_run_the_program_and_the_tests() -> None:
    """One under the other, each enough on a fresh machine; the script runs the second, then what it leaves out."""
    first, second = re.findall(r"^pip install uv && (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (first, second) == ("uv run main.py", "uv run pytest")
    assert (ROOT / "main.py").is_file()
    every_group = ["uv", "sync", "--locked", "--all-groups", "--quiet"]
    assert commands("tests") == [every_group, shlex.split(second)]
    assert commands("slow") == [every_group, [*shlex.split(second), "-m", "slow"]]


def test_each_stage_can_be_called_apart_and_all_run_without_an_argument() -> None:
    assert "    " + " | ".join(STAGES) + ")" in SCRIPT
    (every,) = re.findall(r"^every_stage\(\) {$(.*?)^}$", SCRIPT, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\.ci/run\" (\w+)", every)) == set(STAGES)
    asked = subprocess.run([ROOT / ".ci/run", "nonsense"], capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (2, f"usage: .ci/run [{'|'.join(STAGES)}]\n")


def test_what_a_plain_install_brings_is_enough_to_read_the_tests() -> None:
    sync, collect, some = commands("edges")[:3]
    assert sync == ["uv", "sync", "--locked", "--quiet"]
    assert collect[:4] == some[:4] == ["uv", "run", "--no-sync", "pytest"] and "--collect-only" in collect
    assert "tests/test_examples.py" in some and all((ROOT / name).exists() for name in some[4:])


_SKIPS = """
import pytest

@pytest.mark.gpu
def test_gpu(): pass

def test_browser():
    pytest.skip("needs Debian's package chromium")

def test_package():
    pytest.importorskip("no_such_package")

@pytest.mark.xfail(strict=True)
def test_known(): assert False
"""


@pytest.mark.parametrize(
    ("variables", "outcome"),
    [({}, "4 skipped, 1 xfailed"), ({ONLY_GPU_SKIPS: "1"}, "2 failed, 1 skipped, 1 xfailed, 1 error")],
)
@pytest.mark.slow  # pytest in a process of its own
def test_where_everything_is_installed_only_what_needs_a_gpu_may_skip(
    tmp_path: Path, variables: dict[str, str], outcome: str
) -> None:
    if torch.cuda.is_available():
        variables = {**variables, "CUDA_VISIBLE_DEVICES": ""}
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_skips.py").write_text(_SKIPS)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    options = ["-n", "0", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != ONLY_GPU_SKIPS} | variables
    ended = run_python(
        "-m", "pytest", *options, "--continue-on-collection-errors", folder=tmp_path, variables=environment
    )
    assert outcome in ended.stdout.replace("1 warning, ", ""), ended.stdout + ended.stderr


def test_the_stages_with_every_package_refuse_other_skips() -> None:
    bodies = dict(re.findall(r"^(\w+)\(\) {$(.*?)^}$", SCRIPT, re.MULTILINE | re.DOTALL))
    assert {stage for stage in STAGES if f"export {ONLY_GPU_SKIPS}=1" in bodies[stage]} == {"tests", "slow"}


def test_slow_tests_wait_until_they_are_asked_for() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "-m 'not slow'" in options["addopts"]
    assert any(marker.startswith("slow:") for marker in options["markers"])


_HANGS = """
import time

def test_hangs():
    time.sleep(600)

def test_well(): pass
"""


@pytest.mark.slow  # waits for the limit in a run of its own
def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["faulthandler_timeout"] >= 600
    (tmp_path / "test_hangs.py").write_text(_HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 0.1\nfaulthandler_exit_on_timeout = true\n")
    ended = run_python("-m", "pytest", "-n", "1", "-p", "no:cacheprovider", folder=tmp_path)
    assert "1 failed, 1 passed" in ended.stdout and "test_hangs" in ended.stdout, ended.stdout + ended.stderr


def test_the_oldest_torch_is_the_one_that_is_promised() -> None:
    assert any(command[:2] == ["uv", "pip"] and "lowest-direct" in command for command in commands("edges"))
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (oldest,) = [each.removeprefix("torch>=") for each in dependencies if each.startswith("torch>=")]
    assert f"({oldest} or newer)" in (ROOT / "README.md").read_text()
    assert f'"torch {oldest} to' in (ROOT / "tracer/capture/torch_private/torch_profiler.py").read_text()
    if (weekly := ROOT / ".github/workflows/torch.yml").is_file():
        tried = [".".join(map(str, numbers)) for numbers in (OLDEST_TORCH, NEWEST_TRIED_TORCH)]
        (versions,) = re.findall(r"^ +torch: (.+)$", weekly.read_text(), re.MULTILINE)
        oldest_with_null_gpu = ".".join(map(str, OLDEST_WITH_NULL_GPU))
        assert re.findall(r"torch==([\d.]+)\.\*", versions) == [tried[0], oldest_with_null_gpu, tried[1]]
        assert f'"torch=={oldest_with_null_gpu}.*"' in SCRIPT


def test_every_package_of_the_oldest_is_locked_at_its_oldest() -> None:
    locked = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / ".ci/oldest.txt").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for wanted in (*project["project"]["dependencies"], *project["dependency-groups"]["dev"]):
        name, oldest = re.split("[>=]=", wanted)
        assert f"{locked[name]}.".startswith(f"{oldest}."), wanted
    (install,) = [command for command in commands("edges") if "lowest-direct" in command]
    assert install[-2:] == ["--constraint", ".ci/oldest.txt"]
    assert "http" not in (ROOT / ".ci/oldest.txt").read_text()


def test_the_tests_that_run_on_it_are_there() -> None:
    named = [part.partition("::") for words in commands("edges") for part in words if part.startswith("tests/")]
    assert named
    for file, _, test in named:
        assert f"def {test or 'test_'}" in (ROOT / file).read_text()


def test_what_the_extras_bring_is_there_when_tests_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    assert set(extras["cluster"]) <= set(groups["cluster"])
    assert set(extras["integrations"]) <= set(groups["integrations"])
