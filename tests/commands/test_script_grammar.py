"""Options of ours before a script and its own behind it, in every command that runs one, and hints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import main
from tests.processes import run_python
from tracer.commands.script import BEFORE_SCRIPT, Script

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main.app, [str(argument) for argument in arguments], prog_name="main.py")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What the script would be called with: the null GPU is never started."""
    found: list[list[str]] = []

    def note(context: object, place: object, script: Script, workload: object, *, largest_batch: bool) -> None:
        found.append(list(script.words))
        raise KeyboardInterrupt

    def of_check(baseline: Path, name: str, *, update: bool) -> None:
        found.append(name.removesuffix(" on h100").split())
        raise KeyboardInterrupt

    monkeypatch.setattr("tracer.commands.predict._checked", note)
    monkeypatch.setattr("tracer.commands.check._known", of_check)
    monkeypatch.chdir(tmp_path)
    return found


ARGUMENTS = [
    ("--on", "h100", "x.py", "--epochs", "3"),
    ("x.py", "--on", "h100", "--epochs", "3"),
    ("x.py", "--on=h100", "--epochs", "3"),
    ("x.py", "--on", "h100", "--", "--epochs", "3"),
    ("--json", "--on", "h100", "x.py", "--", "--epochs", "3"),
]


@pytest.mark.parametrize("command", ["predict", "check"])
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_a_scripts_options_need_no_dashes_before_them(
    given: list[list[str]], command: str, arguments: tuple[str, ...]
) -> None:
    invoke(command, *arguments)
    assert given == [["x.py", "--epochs", "3"]]


@pytest.mark.parametrize("command", ["predict", "check"])
def test_from_the_first_of_its_own_on_all_are_the_scripts(given: list[list[str]], command: str) -> None:
    invoke(command, "--on", "h100", "x.py", "data", "--epochs", "3", "--steps", "7", "-m", "more")
    assert given == [["x.py", "data", "--epochs", "3", "--steps", "7", "-m", "more"]]


@pytest.mark.parametrize("command", ["predict", "check", "fit"])
def test_an_option_of_ours_among_the_scripts_is_told(command: str) -> None:
    result = invoke(command, "x.py", "--epochs", "3", "--on", "h100")
    assert result.exit_code == 2 and "--on is missing" in result.stderr and BEFORE_SCRIPT in result.stderr


def test_before_a_script_an_unknown_option_is_a_mistake() -> None:
    result = invoke("predict", "--epochs", "3", "x.py", "--on", "h100")
    assert result.exit_code == 2 and "No such option: --epochs" in result.stderr


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "tracer", "run", *arguments, folder=folder)


def test_a_script_that_python_cannot_read_shows_its_own_line_alone(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import broken\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    for name, lines in (("broken.py", []), ("x.py", ["Traceback (most recent call last):", "x.py"])):
        found = run(tmp_path, name)
        files = [line for line in found.stderr.splitlines() if line.startswith("  File ")]
        assert found.returncode == 1 and "SyntaxError: invalid syntax" in found.stderr
        assert len(files) == 1 + len(lines) // 2
        assert not any("frozen" in line or str(ROOT / "tracer") in line for line in files)


def test_a_folder_with_a_main_is_run(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "helper.py").write_text("VALUE = 5\n")
    (tmp_path / "program" / "__main__.py").write_text("import helper, sys\nprint(helper.VALUE, sys.argv[1:])\n")
    assert run(tmp_path, "program", "--on").stdout == "5 ['--on']\n"
    (tmp_path / "program" / "__main__.py").unlink()
    found = run(tmp_path, "program")
    assert found.returncode == 1 and "is a folder without a __main__.py" in found.stderr


def test_a_file_of_another_kind_names_its_command(tmp_path: Path) -> None:
    snapshot, page = tmp_path / "memory_snapshot.pkl", tmp_path / "memory_timeline.html"
    snapshot.write_bytes(b"\x80\x04N.")
    page.write_text("<!DOCTYPE html><p>")
    assert f"Hint: Name {snapshot}." in invoke("snapshot", page).stderr
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}', encoding="utf-8")
    assert "trace" in invoke("snapshot", trace).stderr
