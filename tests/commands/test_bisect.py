"""`torch-timeline bisect`: the commit or version that is found, and a repository that is as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import main
from tests.null_gpu.started import needs_null_gpu
from tests.processes import run_python
from tracer.analysis.peak_diff import SavedPeak
from tracer.analysis.peak_row import PeakRow
from tracer.commands import bisect
from tracer.exporters.json_documents.peak import write_baseline
from tracer.sessions.jobs.child_processes import Ended
from tracer.sessions.trials.versions import Repository, changes_between, python_with, versions_between

ROOT = Path(main.__file__).parent
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
needs_uv = pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
_SCRIPT = ("--", "--on", "h100", "train.py")


def git(*words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(size: str, subject: str) -> str:
    """A commit at which the script needs so many bytes, is broken, or is full."""
    Path("size").write_text(size)
    git("add", "-A")
    git("commit", "-q", "-m", subject, "--allow-empty")
    return git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q")
    return folder


def _peak(size: int) -> SavedPeak:
    row = PeakRow(bytes=size, count=1, category="ACTIVATION", torch_category=None, evidence="", phase="forward",
                  module="net", op="aten::mm", file="project/train.py", line=7)  # fmt: skip
    return SavedPeak("cuda:0", size, "forward", (row,))


def _check(folder: Path, command: Sequence[str]) -> Ended:
    """What `check --update --baseline FILE` does there."""
    text = (folder / "size").read_text()
    if text == "broken":
        return Ended(1, "Error: of the script\nTraceback\nError: train.py itself ended with ImportError.\nHint: ...")
    if text == "fault":
        return Ended(1, "Traceback\n  in check\nModuleNotFoundError: No module named 'x'\n\n")
    if text == "full":
        return Ended(3, "Error: Out of memory.")
    baseline = Path(command[command.index("--baseline") + 1])
    write_baseline({"train.py on h100": _peak(int(text))}, baseline)
    return Ended(0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of commits that were measured, in the order of it; the script itself does not run."""
    subjects: list[str] = []

    def run(command: Sequence[str], variables: object, folder: Path | None) -> Ended:
        assert folder is not None
        done = subprocess.run(
            ["git", "log", "-1", "--format=%s"], cwd=folder, capture_output=True, text=True, check=True
        )
        subjects.append(done.stdout.strip())
        return _check(folder, command)

    monkeypatch.setattr(bisect, "_run", run)
    return subjects


def called(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["bisect", *words])


def answer(*words: str) -> dict[str, Any]:
    result = called("--json", *words)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@needs_git
def test_the_planted_commit_is_found_and_the_repository_is_as_it_was(repository: Path, measured: list[str]) -> None:
    for number in range(10):
        commit("1000" if number < 6 else "1900", f"change {number}")
    (repository / ".git/hooks").mkdir(exist_ok=True)
    hook = repository / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    (repository / "size").write_text("edited, not committed")
    before = git("status", "--porcelain=v2", "--branch"), git("for-each-ref"), git("worktree", "list")
    found = answer("HEAD~9..HEAD", *_SCRIPT)
    assert str(found["first_bad"]).endswith(" change 6") and str(found["last_good"]).endswith(" change 5")
    assert (found["good_peak_bytes"], found["bad_peak_bytes"], found["num_points"]) == (1000, 1900, 10)
    assert measured[:2] == ["change 0", "change 9"] and len(measured) == found["num_measured"] <= 6
    (device,) = found["devices"]
    (row,) = device["by_line"]
    assert row["name"] == ["ACTIVATION", "net", "aten::mm", "project/train.py:7"] and row["bytes"] == 900
    assert before == (git("status", "--porcelain=v2", "--branch"), git("for-each-ref"), git("worktree", "list"))
    assert (repository / "size").read_text() == "edited, not committed"


@needs_git
def test_the_screen_names_commits_that_do_not_run(repository: Path, measured: list[str]) -> None:
    for number, size in enumerate(("10", "10", "broken", "broken", "20", "20")):
        commit(size, f"change {number}")
    shown = called("HEAD~5..", *_SCRIPT)
    assert shown.exit_code == 0, shown.output
    assert "The first bad commit is one of 3" in shown.stdout and shown.stdout.count("(the script does not run)") == 2
    assert "change 3: does not run. Error: train.py itself ended with ImportError." in shown.stderr.replace("\n", " ")


@needs_git
def test_the_commit_that_fills_the_card_is_found_without_a_peak(repository: Path, measured: list[str]) -> None:
    for size in ("10", "10", "12", "full", "full"):
        commit(size, f"as {size}")
    found = answer("HEAD~4..HEAD", *_SCRIPT)
    assert str(found["first_bad"]).endswith("as full") and str(found["last_good"]).endswith("as 12")
    assert found["bad_peak_bytes"] is None and found["devices"] == []
    assert "-> out of memory" in called("HEAD~4..HEAD", *_SCRIPT).stdout


@needs_git
def test_what_counts_as_growth(repository: Path, measured: list[str]) -> None:
    """10 % and then 60 %: half of the growth is reached with the second, 5 % with the first."""
    for size in ("1000", "1000", "1100", "1100", "1700", "1700"):
        commit(size, f"as {size}")
    assert str(answer("HEAD~5..HEAD", *_SCRIPT)["first_bad"]).endswith("as 1700")
    assert str(answer("--fail-above", "5%", "HEAD~5..HEAD", *_SCRIPT)["first_bad"]).endswith("as 1100")


@needs_git
def test_a_merge_is_one_step_and_the_next_command_looks_into_it(repository: Path, measured: list[str]) -> None:
    commit("10", "base")
    git("checkout", "-q", "-b", "side")
    commit("10", "in the branch")
    tip = commit("30", "the culprit")
    git("checkout", "-q", "main")
    git("commit", "-q", "--allow-empty", "-m", "on main")
    git("merge", "-q", "--no-ff", "-m", "merge the side", "side")
    result = called("HEAD~2..HEAD", *_SCRIPT)
    assert "merge the side" in result.stdout.split("The last good commit")[0]
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Next: it is a merge")]
    inner = line.partition("bisect ")[2].partition(" ")[0]
    assert inner.endswith(tip[:12])
    assert "the culprit" in called(inner, *_SCRIPT).stdout.split("The last good commit")[0]


@needs_git
def test_mistakes_are_a_sentence_and_a_hint(repository: Path, measured: list[str]) -> None:
    commit("10", "first")
    commit("10", "second")
    git("checkout", "-q", "-b", "other", "HEAD~1")
    commit("broken", "third")
    assert "is not an ancestor" in called("main..other", *_SCRIPT).stderr
    assert "needs no more than" in called("main~1..main", *_SCRIPT).stderr
    assert "ended with ImportError" in called("main~1..other", *_SCRIPT).stderr
    commit("fault", "fourth")
    assert "fourth: ModuleNotFoundError: No module named 'x'" in called("main~1..other", *_SCRIPT).stderr
    assert "There is only one commit" in called("HEAD..HEAD", *_SCRIPT).stderr
    assert "Needed a single revision" in called("nonsense..HEAD", *_SCRIPT).stderr
    wrong = (
        ((), "Which commits?"),
        (("a..b",), "Which script"),
        (("--between", "x==1,2"), "Which script"),
        (("--between", "x", *_SCRIPT), "does not name a package"),
        (("--between", "x==1,2", "--requirements", "a", "b", *_SCRIPT), "are two questions"),
    )
    for words, sentence in wrong:
        result = called(*words)
        assert result.exit_code == 2 and sentence in result.stderr and "Hint: " in result.stderr


@needs_git
def test_code_that_is_installed_from_the_repository_comes_from_the_worktree(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "data").mkdir()
    here, tree = Repository.here(), tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    assert here.word_in(tree, str(repository / "train.py")) == str(tree / "train.py")
    assert here.word_in(tree, str(repository / "data")) == str(repository / "data")  # not in git: it stays where it is
    assert here.word_in(tree, "train.py") == "train.py"
    monkeypatch.setattr(sys, "path", [sys.path[0], str(repository / "src"), *sys.path[1:]])
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert here.import_path(tree) == os.pathsep.join([str(tree / "src"), "/somewhere"])


def _wheel(folder: Path, version: str, name: str = "grows", needs: Sequence[str] = ()) -> None:
    """A package of one module."""
    about = "".join(f"Requires-Dist: {needed}\n" for needed in needs)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{about}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.9", "1.10", "1.11", "1.12rc1", "2.0"):
        _wheel(tmp_path, version)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@needs_uv
def test_versions_between_two_are_those_that_were_released(wheels: None) -> None:
    assert versions_between("grows==1.9,2.0") == ("grows==1.9", "grows==1.10", "grows==1.11", "grows==2.0")
    assert versions_between("grows == 1.9, 1.11, 2.0") == ("grows==1.9", "grows==1.11", "grows==2.0")


@needs_uv
def test_an_environment_has_the_version_and_all_else_of_this_one(wheels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "import sys, torch, grows; print(grows.VERSION, torch.__file__)"
    python = python_with(["grows==1.10"])
    shown = subprocess.run([python, "-c", asked.replace("torch,", "numpy as torch,")], capture_output=True, text=True)
    import numpy

    assert shown.stdout.split() == ["1.10", numpy.__file__], shown.stderr
    monkeypatch.setattr("tracer.sessions.trials.versions._make", None)  # it is kept
    assert python_with(["grows==1.10"]) == python


@needs_uv
def test_needed_packages_keep_their_version_where_they_can(
    wheels: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tracer.sessions.trials.versions._installed", lambda: ["grows==1.9", "same==1.0"])
    for name, version in (("same", "1.0"), ("same", "2.0"), ("torch", "0.1")):
        _wheel(tmp_path, version, name)
    _wheel(tmp_path, "3.0", needs=("same", "torch"))
    _wheel(tmp_path, "4.0", needs=("same>=2",))

    def packages(requirement: str) -> list[str]:
        folder = python_with([requirement]).parent.parent
        return sorted(path.stem for path in folder.glob("lib/python*/site-packages/*.dist-info"))

    assert packages("grows==3.0") == ["grows-3.0", "same-1.0"]
    assert packages("grows==4.0") == ["grows-4.0", "same-2.0"]
    assert packages("torch==0.1") == ["torch-0.1"]


@needs_uv
def test_the_planted_version_is_found(wheels: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: Sequence[str], variables: object, folder: object) -> Ended:
        done = subprocess.run([command[0], "-c", "import grows; print(grows.VERSION)"], capture_output=True, text=True)
        (tmp_path / "size").write_text("500" if done.stdout.strip() in ("1.11", "2.0") else "100")
        return _check(tmp_path, command)

    monkeypatch.setattr(bisect, "_run", run)
    found = answer("--between", "grows==1.9,2.0", *_SCRIPT)
    assert (found["point"], found["first_bad"], found["last_good"]) == ("version", "grows==1.11", "grows==1.10")
    assert (found["good_peak_bytes"], found["bad_peak_bytes"]) == (100, 500)
    shown = called("--between", "grows==1.9,1.9.5,2.0", *_SCRIPT).stderr.replace("\n", " ")
    assert "grows==1.9.5: does not run. Error: uv: " in shown
    assert "Error: grows==0.1: uv: " in called("--between", "grows==0.1,1.9,2.0", *_SCRIPT).stderr


@needs_uv
def test_the_package_that_made_the_difference_between_two_files(
    wheels: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("before", "later", "same"):
        _wheel(tmp_path, "1.0", name)
        _wheel(tmp_path, "2.0", name)
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("# made by hand\nbefore==1.0\ngrows==1.9 \\\n  --hash=sha256:00  # pinned\nlater==1.0\nsame==1.0\n")
    new.write_text("same==1.0\nlater>=2.0\nGrows==1.11\nbefore==2.0\n")
    asked: list[list[str]] = []

    def run(command: Sequence[str], variables: object, folder: object) -> Ended:
        code = "import before, grows, later; print(before.VERSION, grows.VERSION, later.VERSION)"
        done = subprocess.run([command[0], "-c", code], capture_output=True, text=True, check=True)
        asked.append(done.stdout.split())
        (tmp_path / "size").write_text("500" if asked[-1][1] == "1.11" else "100")
        return _check(tmp_path, command)

    monkeypatch.setattr(bisect, "_run", run)
    found = answer("--requirements", str(old), str(new), *_SCRIPT)
    assert (found["point"], found["first_bad"]) == ("change", "Grows==1.11 (was grows==1.9)")
    assert (found["last_good"], found["num_points"]) == ("before==2.0 (was before==1.0)", 4)
    assert asked == [["1.0", "1.9", "1.0"], ["2.0", "1.11", "2.0"], ["2.0", "1.11", "1.0"], ["2.0", "1.9", "1.0"]]


def test_requirements_change_after_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"a": ["Z_z>=1", "m; extra == 'dev'"], "z-z": ["b"], "b": ["a"]}  # a circle, too
    monkeypatch.setattr("tracer.sessions.trials.versions.requires", needs.get)
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("--index-url https://example.org/simple\na==1\nb==1\nm==1\nZ.Z==1\n")
    new.write_text("--index-url https://example.org/simple\na==2\nb==2\nm==2\nn==1\n")
    changes = changes_between(old, new)
    index = "--index-url https://example.org/simple"
    assert changes == {
        str(old): (index, "b==1", "Z.Z==1", "a==1", "m==1"),
        "b==2 (was b==1)": (index, "b==2", "Z.Z==1", "a==1", "m==1"),
        "no z-z (was Z.Z==1)": (index, "b==2", "a==1", "m==1"),
        "a==2 (was a==1)": (index, "b==2", "a==2", "m==1"),
        "m==2 (was m==1)": (index, "b==2", "a==2", "m==2"),
        "n==1 (was not named)": (index, "b==2", "a==2", "m==2", "n==1"),
    }


def test_files_that_a_file_of_requirements_includes_are_read(tmp_path: Path) -> None:
    """Their names are relative to the folder of the file that names them."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "more.txt").write_text("b==1\n--requirement=../most.txt  # and others\n")
    (tmp_path / "most.txt").write_text("c==1\n")
    (tmp_path / "old.txt").write_text("-r more/more.txt\na==1\n-rmost.txt\n")
    (tmp_path / "new.txt").write_text("a==1\nb==1\nc==2\n")
    first, changed = changes_between(tmp_path / "old.txt", tmp_path / "new.txt").items()
    assert first == (str(tmp_path / "old.txt"), ("c==1",))
    assert changed == ("c==2 (was c==1)", ("c==2",))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("a==1", "a==1", "name the same packages"),
        ("a==1\n-r more.txt", "a==2", "more.txt cannot be read"),
        ("a==1\n-r old.txt", "a==2", "'-r old.txt', which leads back to that file"),
        ("a==1\n-c more.txt", "a==2\n-c more.txt", "'-c more.txt', which names no package"),
        ("a==1", "./folder", "'./folder', which names no package"),
        ("a==1", "https://example.org/a.whl", "a.whl', which names no package"),
        ("a==1", None, "cannot be read"),
    ],
)
def test_requirements_that_are_not_understood(tmp_path: Path, old: str, new: str | None, sentence: str) -> None:
    for name, text in (("old.txt", old), ("new.txt", new)):
        if text is not None:
            (tmp_path / name).write_text(text)
    result = called("--requirements", str(tmp_path / "old.txt"), str(tmp_path / "new.txt"), *_SCRIPT)
    assert result.exit_code == 1 and sentence in result.stderr.replace("\n", " ") and "Hint: Name two" in result.stderr


_TRAIN = """
import torch
from lib import WIDTH
net = torch.nn.Linear(256, WIDTH).cuda()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(4):
    net(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@needs_git
@needs_null_gpu
def test_a_training_in_a_repository(repository: Path, started_bisect: Callable[..., str]) -> None:
    (repository / "train.py").write_text(_TRAIN)
    for number in range(4):
        (repository / "lib.py").write_text(f"WIDTH = {4096 if number >= 2 else 1024}\n")
        commit("", f"change {number}")
    shown = started_bisect("HEAD~3..HEAD", *_SCRIPT)
    assert "change 2" in shown.split("The last good commit")[0]
    assert "project/train.py:4" in shown  # the line of the layer that grew


@pytest.fixture
def started_bisect() -> Callable[..., str]:
    def run(*words: str) -> str:
        done = run_python(ROOT / "main.py", "bisect", *words, folder=Path.cwd())
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
