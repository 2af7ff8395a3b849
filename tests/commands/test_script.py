"""A script as `run` and the others start it: its grammar, launcher, environment and modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import main
from tests.processes import run_python
from tracer.commands.launchers import script_named, set_environment_of
from tracer.commands.on_card import OnOptions
from tracer.commands.script import BEFORE_SCRIPT, Script
from tracer.errors import UsageError

ROOT = Path(main.__file__).parent


# ---------------------------------------------------------------- options of ours before a script and its own behind it


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main.app, [str(argument) for argument in arguments], prog_name="main.py")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Words that the script would be called with: the null GPU is never started."""
    found: list[list[str]] = []

    def note(context: object, place: object, script: Script, workload: object, *, is_law: bool) -> None:
        found.append(list(script.words))
        raise KeyboardInterrupt

    def of_check(baseline: Path, name: str, *, update: bool) -> None:
        found.append(name.removesuffix(" on h100").split())
        raise KeyboardInterrupt

    monkeypatch.setattr("tracer.commands.predict._checked", note)
    monkeypatch.setattr("tracer.commands.check._known", of_check)
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.parametrize("command", ["predict", "check"])
@pytest.mark.parametrize("begin", [(), ("--",)])
def test_what_follows_a_scripts_name_is_the_scripts(
    given: list[list[str]], command: str, begin: tuple[str, ...]
) -> None:
    invoke(command, "--on", "h100", *begin, "x.py", "data", "--epochs", "3", "--on", "7", "-m", "more")
    assert given == [["x.py", "data", "--epochs", "3", "--on", "7", "-m", "more"]]


@pytest.mark.parametrize("command", ["predict", "check", "fit"])
def test_an_option_of_ours_among_the_scripts_is_told(command: str) -> None:
    result = invoke(command, "x.py", "--epochs", "3", "--on", "h100")
    assert result.exit_code == 2 and "--on is missing" in result.stderr and BEFORE_SCRIPT in result.stderr


def test_before_a_script_an_unknown_option_is_a_mistake() -> None:
    result = invoke("predict", "--epochs", "3", "x.py", "--on", "h100")
    assert result.exit_code == 2 and "No such option" in result.stderr and "--epochs" in result.stderr


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


# ----------------------------------------------------------------------------------------------- launchers in its place
@pytest.fixture
def of_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = {"RANK": "1", "LOCAL_RANK": "1"}
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.chdir(tmp_path)
    return found


TRAIN = Script("train.py", ["--lr", "1"], is_module=False)
LOCAL = Script("train.py", ["--local_rank=1", "--lr", "1"], is_module=False)


@pytest.mark.parametrize(
    ("words", "is_module", "expected"),
    [
        ("train.py --lr 1", False, TRAIN),
        ("train.py torchrun", False, Script("train.py", ["torchrun"], is_module=False)),
        ("torchrun --nproc_per_node 2 train.py --lr 1", False, TRAIN),
        ("/bin/torchrun --standalone --nnodes=1 --nproc-per-node=2 train.py --lr 1", False, TRAIN),
        ("torchrun --nproc-per-node=gpu train.py --lr 1", False, TRAIN),
        (
            "torchrun --nproc-per-node 1 --nnodes 2:4 -m pkg.train --lr 1",
            False,
            Script("pkg.train", ["--lr", "1"], True),
        ),
        ("torch.distributed.run --nproc-per-node 2 train.py --lr 1", True, TRAIN),
        ("torch.distributed.launch --use-env --nproc_per_node 2 train.py --lr 1", True, TRAIN),
        ("accelerate launch --multi_gpu --num_processes 2 train.py --lr 1", False, TRAIN),
        ("deepspeed --num_gpus 2 train.py --lr 1", False, LOCAL),
        ("deepspeed --no_local_rank train.py --lr 1", False, TRAIN),
        ("mpirun -np 2 -x PATH python -u train.py --lr 1", False, TRAIN),
        ("mpiexec -n 2 python train.py --lr 1", False, TRAIN),
    ],
)
@pytest.mark.usefixtures("of_rank")
def test_the_script_behind_a_launcher(words: str, is_module: bool, expected: Script) -> None:
    script, *arguments = words.split()
    assert script_named(OnOptions(on="2xh100"), script, arguments, is_module=is_module) == expected


@pytest.mark.parametrize(
    ("on", "words", "says", "hint"),
    [
        (None, "torchrun --nproc-per-node 2 train.py", "does not see", "torchrun ... -m tracer run train.py"),
        (None, "mpirun -np 2 python train.py", "does not see", "mpirun ... python -m tracer run train.py"),
        ("h100:40GiB", "torchrun --nproc-per-node 2 train.py", "starts 2 processes", "--on 2xh100:40GiB"),
        ("8xh100", "torchrun train.py", "starts 1 process, and --on 8xh100 names 8 GPUs", "--on h100,"),
        ("2xh100", "accelerate launch --use_fsdp train.py", "--use-fsdp of accelerate launch is not read", "itself"),
        ("2xh100", "torchrun --nproc-per-node 2 train", "no script of Python's", "train.py"),
    ],
)
@pytest.mark.usefixtures("of_rank")
def test_what_cannot_be_run_is_a_sentence(on: str | None, words: str, says: str, hint: str) -> None:
    script, *arguments = words.split()
    with pytest.raises(UsageError, match=says) as error:
        script_named(OnOptions(on=on), script, arguments, is_module=False)
    assert hint in str(error.value.hint)


def test_one_process_has_the_variables_that_launchers_set(of_rank: dict[str, str]) -> None:
    of_rank.clear()
    script_named(OnOptions(on="h100"), "torchrun", ["train.py"], is_module=False)
    assert {name: of_rank[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")} == {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip


def test_ranks_of_mpi_have_its_variables(of_rank: dict[str, str]) -> None:
    script_named(OnOptions(on="2xh100"), "mpirun", ["-np", "2", "python", "train.py"], is_module=False)
    assert (of_rank["OMPI_COMM_WORLD_RANK"], of_rank["PMI_RANK"]) == ("1", "1")


def test_precision_of_accelerate_is_told_to_its_processes(of_rank: dict[str, str]) -> None:
    words = ["launch", "--mixed_precision=bf16", "train.py"]
    script_named(OnOptions(on="2xh100"), "accelerate", words, is_module=False)
    assert of_rank["ACCELERATE_MIXED_PRECISION"] == "bf16"


# ------------------------------------------------- what it sets before it imports torch is set before this program does


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "6"}
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.delitem(sys.modules, "torch")
    return found


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text, "utf-8")
    return str(folder / "train.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os; os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        ("from os import environ\nenviron['OMP_NUM_THREADS'] = '2'", {"OMP_NUM_THREADS": "2"}),
        ("os.environ.setdefault('OMP_NUM_THREADS', '1')\nos.environ.setdefault('KMP_X', '1')", {"KMP_X": "1"}),
        ("del os.environ['MKL_NUM_THREADS']\nos.environ.pop('OMP_NUM_THREADS', None)", {}),
        ("number = 3\nos.environ['OMP_NUM_THREADS'] = str(number)\nos.environ['MKL_X'] = 3", {}),
        (
            "import numpy as np\nimport argparse\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
            {"CUDA_VISIBLE_DEVICES": "1"},
        ),
        # Too late in Python, too.
        ("import torch\nos.environ['OMP_NUM_THREADS'] = '1'", {}),
        ("from torch import nn\nos.environ['OMP_NUM_THREADS'] = '1'", {}),
        ("def main():\n    os.environ['OMP_NUM_THREADS'] = '1'", {}),
        # Not read by torch, or meant for those who start processes.
        ("os.environ['RANK'] = '1'\nos.environ['PYTHONPATH'] = '/'\nos.environ['LD_PRELOAD'] = 'x'", {}),
        ("os.environ['OMP_NUM_THREADS'] = '1'\nthis is no Python", {}),
    ],
)
def test_constants_that_are_set_before_torch_is_imported(
    text: str, expected: dict[str, str], tmp_path: Path, environment: dict[str, str]
) -> None:
    before = {"OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "6"}
    set_environment_of(script(tmp_path, text), is_module=False)
    environment.pop("PYTEST_CURRENT_TEST", None)
    assert environment == before | expected


def test_of_a_package_its_first_file_is_read(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '3'", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    set_environment_of("own_package.train", is_module=True)
    environment.pop("PYTEST_CURRENT_TEST", None)
    assert environment == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "6"}


@pytest.mark.slow  # a process that has not loaded torch; what is set, and when, is tested above
def test_torch_reads_what_the_script_sets(tmp_path: Path) -> None:
    text = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint('threads', torch.get_num_threads())"
    ended = subprocess.run(
        [sys.executable, str(ROOT / "main.py"), "run", script(tmp_path, text)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "2"},
        check=False,
    )  # fmt: skip
    assert "threads 1" in ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("command", "given", "is_short"),
    [
        ("run", {}, True),
        ("run", {"OMP_WAIT_POLICY": "ACTIVE"}, False),
        ("profile", {}, True),
    ],
)
@pytest.mark.slow  # processes that load torch
def test_threads_spin_shortly_unless_the_user_says_for_how_long(
    command: str, given: dict[str, str], is_short: bool, tmp_path: Path
) -> None:
    """The library prints what it has read as it was loaded; the script sees the environment as it was."""
    text = "import os, torch\nprint([os.environ.get(name) for name in ('GOMP_SPINCOUNT', 'KMP_BLOCKTIME')])"
    words = ["run", script(tmp_path, text)] if command == "run" else ["--device", "none"]
    taken = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
    variables = {name: value for name, value in os.environ.items() if name not in taken}
    ended = subprocess.run(
        [sys.executable, ROOT / "main.py", *words],
        env={**variables, **given, "OMP_DISPLAY_ENV": "VERBOSE"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    read = ended.stderr.replace(" ", "").replace("[host]", "")
    if "GOMP_SPINCOUNT" not in read:
        pytest.skip("torch is loaded with another OpenMP than libgomp")
    assert ("GOMP_SPINCOUNT='1000'" in read) == is_short
    if command == "run":
        assert "[None, None]" in ended.stdout


@pytest.mark.parametrize("name", ["tracer.py", "tracer/__init__.py"])
def test_a_module_named_like_this_program_is_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine = 1\n")
    (tmp_path / "train.py").write_text("import tracer\nprint(tracer.mine)\n")
    for words in (("train.py",), ("-m", "train")):
        found = run_python("-m", "tracer", "run", *words, folder=tmp_path)
        assert found.returncode == 1 and not found.stdout
        assert found.stderr.startswith("Error: The folder of train") and "Hint: Rename it" in found.stderr
