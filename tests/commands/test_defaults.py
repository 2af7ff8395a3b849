"""`[tool.torch-timeline]` in pyproject.toml, and what the command line says of names that it does not know."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import main
from tracer import __version__
from tracer.commands.app import COMMANDS, did_you_mean

ROOT = Path(main.__file__).parent


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path / "pyproject.toml"


def called(*arguments: str) -> Result:
    return CliRunner().invoke(main.app, list(arguments), prog_name="main.py")


def error(*arguments: str) -> str:
    ended = called(*arguments)
    assert ended.exit_code == 2 and "Traceback" not in ended.stderr
    return ended.stderr


def test_a_default_of_the_project_takes_the_place_of_ours(project: Path) -> None:
    project.write_text('[tool.torch-timeline]\ngpu-memory = "much"\n')
    assert "Error: much is not a size." in error("snapshot", "nowhere.pickle")
    assert "nowhere.pickle does not exist" in called("snapshot", "nowhere.pickle", "--gpu-memory", "16GiB").stderr


@pytest.mark.parametrize("option", ["html", "markdown", "baseline"])
def test_a_project_names_no_file_outside_of_its_folder(project: Path, option: str) -> None:
    """A checkout of somebody else's writes over nothing of the user's."""
    command = "snapshot" if option == "html" else "check"
    for outside in ("../../elsewhere", str(project.parent.parent / "x")):
        project.write_text(f'[tool.torch-timeline.{command}]\n{option} = "{outside}"\n')
        assert f"{option} of [tool.torch-timeline.{command}] names a file outside of" in error("snapshot", "no.pickle")
    project.write_text(f'[tool.torch-timeline.{command}]\n{option} = "within"\n')
    assert "no.pickle does not exist" in called("snapshot", "no.pickle").stderr


def test_a_commands_own_table_goes_before_the_shared_one(project: Path) -> None:
    project.write_text(
        '[tool.torch-timeline]\ngpu-memory = "16GiB"\n[tool.torch-timeline.snapshot]\ngpu-memory = "x"\n'
    )
    assert "Error: x is not a size." in error("snapshot", "nowhere.pickle")


def test_what_may_be_repeated_is_a_list_or_one(project: Path) -> None:
    for value in ('["nonsense"]', '"nonsense"'):
        project.write_text(f"[tool.torch-timeline.snapshot]\nsettings = {value}\n")
        assert "The setting 'nonsense' is not a name" in error("snapshot", "nowhere.pickle")
    project.write_text("[tool.torch-timeline.snapshot]\nsettings = []\n")
    assert "nowhere.pickle does not exist" in called("snapshot", "nowhere.pickle").stderr


@pytest.mark.parametrize("others", ['input = "3x4"'])
def test_a_shared_default_is_no_mistake_where_a_command_has_no_use_for_it_or_its_name(
    project: Path, others: str
) -> None:
    project.write_text(f'[tool.torch-timeline]\n{others}\ndevice = "tpu!"\n')
    assert "tpu! is not the name of a device" in error()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.torch-timeline]\nsave-dirs = 1\n", "[tool.torch-timeline] names an unknown option, save-dirs."),
        ("[tool.torch-timeline]\nsave-dirs = 1\n", "Hint: Did you mean save-dir?"),
        (
            "[tool.torch-timeline.snapshot]\nbatch-size = 1\n",
            "[tool.torch-timeline.snapshot] names an unknown option, batch-size",
        ),
        ("[tool.torch-timeline.snapshott]\ntop = 1\n", "[tool.torch-timeline.snapshott] names no command."),
        ("[tool.torch-timeline.snapshott]\ntop = 1\n", "Hint: Did you mean snapshot?"),
        ("[tool.torch-timeline]\ndevice = 'many'\n", "many is not a whole number in pyproject.toml."),
        ("[tool.torch-timeline\n", "pyproject.toml cannot be read: "),
    ],
)
def test_what_the_table_has_wrong_is_one_sentence(project: Path, text: str, says: str) -> None:
    project.write_text(text)
    assert says in error("snapshot", "nowhere.pickle")


def test_a_file_of_other_programs_is_nothing_to_us(project: Path) -> None:
    project.write_text("[tool.black]\nnonsense = [\n")
    assert "nowhere.pickle does not exist" in called("snapshot", "nowhere.pickle").stderr


def test_only_what_is_spelled_alike_is_suggested() -> None:
    assert did_you_mean("snapshott", ["snapshot", "diff"]) == "Did you mean snapshot?"
    assert did_you_mean("foo", ["top", "on"]) == ""


def test_the_version_is_told_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    assert called("--version").stdout.startswith(f"torch-timeline {__version__}, no torch, Python 3.")


def test_the_version_is_told_without_loading_torch() -> None:
    program = "import sys, main\ntry: main.app(['--version'])\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    first, loaded = done.stdout.splitlines()
    assert first.startswith(f"torch-timeline {__version__}, torch ") and loaded == "False"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert head.returncode or first.endswith(f", commit {head.stdout[:12]}")


@pytest.mark.parametrize("words", [["main.py"], ["-m", "tracer"]])
def test_help_names_the_program_as_it_was_called(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *words, "run", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"Usage: {' '.join(['python', *words] if words[0] == '-m' else words)} run" in done.stdout


def test_help_is_a_screen_of_40_lines_and_the_rest_is_asked_for() -> None:
    def lines(*words: str, columns: int = 80) -> list[str]:
        variables = {"COLUMNS": str(columns), "TERM": "dumb"}
        return CliRunner().invoke(main.app, words, env=variables, prog_name="torch-timeline").stdout.splitlines()

    assert len(lines("run", "--help", columns=100)) <= 40 and len(lines("--help")) <= 40
    assert not any("--hidden-channels" in line for line in lines("--help"))
    assert any("--hidden-channels" in line for line in lines("--help-all"))
    for command in COMMANDS:
        said = lines(command, "--help", columns=100)
        assert any(line.startswith(f" torch-timeline {command}") for line in said), "an example"
        assert not [line for line in said if line.startswith("\u2502" + " " * 8)], "a line for each option"
