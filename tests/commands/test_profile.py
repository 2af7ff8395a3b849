"""The command line as a person meets it: help, answer, files, and every way to get it wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

import main
import tracer.sessions.folder
import tracer.sessions.output_files
import tracer.sessions.workload_run
from tests.exporters.test_text_files import MAX_KEYS, parse_max_mem, parse_total_time
from tests.pieces import Pieces, noise, raising
from tests.processes import run_python
from tracer.answers.run_results import RunResults
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.profile import ProfileOptions, run_and_report
from tracer.commands.workload_options import WorkloadOptions, chosen_device
from tracer.errors import OutputError, TracerError
from tracer.exporters.screen.console import Console
from tracer.sessions.jobs.ranks import Rank, RankMessages
from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile
from tracer.workloads.factory import shipped_model

ROOT = Path(main.__file__).parent
FNO = shipped_model("fno_workload")


def options(save_dir: Path, **more: Any) -> ProfileOptions:
    """Options of a short run whose device is named, with all others at their defaults."""
    run = Run(place=OnOptions(), save_dir=save_dir, console=Console())
    device: Any = {"device": "cpu", "device_named": True, "run": run}
    return ProfileOptions(workload=WorkloadOptions(), schedule=(0, 1, 1, 1), **device, **more)


USUAL = tuple(output for output in OUTPUTS if output.file.switch_help)
TINY = [
    *("--hidden-channels", "4", "--data-size", "8", "--n-modes", "4", "--n-layers", "1"),
    *("--batch-size", "2", "--device", "cpu"),
]
SHORT = ["--n-wait-steps", "0", "--n-warmup-steps", "1", "--n-active-steps", "1", "--n-repeats", "1"]

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")


class Ended(NamedTuple):
    """How a command ended, without its lines on how far it was."""

    code: int
    stdout: str
    stderr: str


def ended_with(code: int, stdout: str, stderr: str) -> Ended:
    lines = stderr.splitlines(keepends=True)
    others = (line for line in lines if not line.rstrip().endswith(" ..."))
    return Ended(code, stdout, "".join(others))


@contextmanager
def own_state() -> Iterator[None]:
    """The command sets the seed of its process; and one thread is quicker where other tests wait for the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def state_kept() -> Iterator[None]:
    with own_state():
        yield


def run(*arguments: object, columns: int = 80) -> Ended:
    """The command in this process, on a terminal of so many columns."""
    given, variables = [str(one) for one in arguments], {"COLUMNS": str(columns)}
    result = CliRunner().invoke(main.app, given, env=variables, prog_name="main.py")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return ended_with(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """One run from start to finish."""
    folder = tmp_path_factory.mktemp("run") / "results"
    with own_state():
        return run(*TINY, *SHORT, "--n-repeats", 2, "--keep-recording", "--full", "--save-dir", folder), folder


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """The command with a workload of a test's in the place of its own."""

    def run_it(workload: Pieces, *options: object) -> Ended:
        monkeypatch.setattr(FNO, "build_fno_workload", lambda *_, **__: workload)
        return run(*TINY, *SHORT, "--save-dir", tmp_path, *options)

    return run_it


@cache
def results() -> RunResults:
    return run_profile(Pieces(), schedule=Schedule(0, 1, 1, 1))


@pytest.fixture
def already_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the run by a recorded one, for tests of the steps before and after it."""
    monkeypatch.setattr(tracer.sessions.workload_run, "run_profile", lambda *_, **__: results())


# ---- help ------------------------------------------------------------------------------------------------------------


def test_help_has_the_guides_options_and_a_switch_for_each_file() -> None:
    text = re.sub(r"\s+", " ", run("--help-all", columns=150).stdout)
    for option, default in {
        "batch-size": "8", "in-channels": "3", "out-channels": "1", "hidden-channels": "64", "data-size": "64",
        "device": "cuda:0", "save-dir": "profiler_outputs", "n-modes": "32", "n-layers": "4", "n-wait-steps": "1",
        "n-warmup-steps": "1", "n-active-steps": "3", "n-repeats": "2", "seed": "0",
    }.items():  # fmt: skip
        assert re.search(rf"--{option} <[\w-]+> [^\[]*\[default: {default}\]", text), option
    for output in OUTPUTS:
        assert (f"--no-{output.name} " if output.file.switch_help else f"--{output.name} ") in text


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_ends_well_and_leaves_its_files(done: tuple[Ended, Path]) -> None:
    ended, folder = done
    assert ended.code == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(output.file_name for output in OUTPUTS)
    assert list(parse_max_mem((folder / "max_mem.txt").read_text())) == [*MAX_KEYS, "Peak_Total"]
    assert parse_total_time((folder / "cuda_timing.txt").read_text()) is not None


def test_stdout_has_the_answer_in_80_columns(done: tuple[Ended, Path]) -> None:
    ended, _ = done
    for part in ("Peak: ", "on cpu", "parameter", "optimizer state", "forward and loss", "no profiler"):
        assert part in ended.stdout
    assert "Every parameter received a gradient." in ended.stdout
    assert "Wrote" not in ended.stdout
    assert "\x1b" not in ended.stdout, "no colours in a log"


def test_the_rows_on_the_screen_sum_to_the_peak(done: tuple[Ended, Path]) -> None:
    ended, _ = done
    rows, allocator = re.search(
        r"sum to\s+([\d,]+)\s+bytes.\s+An\s+independent\s+count\s+gives\s+(the same|[\d,]+)", ended.stdout
    ).groups()  # type: ignore[union-attr]
    assert allocator == "the same"
    table = ended.stdout.split("What filled it")[1].split("\n\n")[0]
    numbers = [int(n.replace(",", "")) for n in re.findall(r"^\S+(?: \S+)* +([\d,]+) ", table, re.MULTILINE)]
    *parts, total = numbers
    assert sum(parts) == total == int(rows.replace(",", ""))


def test_stderr_names_each_file_in_one_line(done: tuple[Ended, Path]) -> None:
    ended, folder = done
    files, after = ended.stderr.splitlines()
    assert files == f"Files in {folder}: {', '.join(output.file_name for output in OUTPUTS)}."
    assert after.startswith(f"Next: open {folder / 'memory_timeline.html'} in a browser, or compare with another run ")


@pytest.mark.slow  # a process that loads torch; the files and lines are those of the run above
def test_the_program_as_a_process(tmp_path: Path) -> None:
    """It prints no messages of torch's, and writes only the files that are asked for."""
    command = [sys.executable, str(ROOT / "main.py"), *TINY, *SHORT, "--save-dir", "results", "--no-cuda-timing"]
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    environment.pop("KINETO_LOG_LEVEL", None)
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    *progress, rest = ended.stderr.split("\n", 4)
    assert progress == [
        "Loading torch ...",
        "Building the model ...",
        "Training 3 steps, of which 1 is recorded ...",
        "Writing the files ...",
    ]
    assert [line.split()[0] for line in rest.splitlines()] == ["Files", "Next:"]
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) + len(rest.splitlines()) <= 24
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


# ---- streams that take nothing, and Ctrl-C while files are written ---------------------------------------------------


def process(program: list[str], *arguments: object, **options: Any) -> Ended:
    """The command as a process of its own, without the timing pass."""
    command = [*program, "--device", "cpu", *SHORT, "--no-cuda-timing", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **options.pop("env", {})}
    ended = run_python(*command, folder=ROOT, variables=variables, **options)
    return ended_with(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.usefixtures("already_run")
def test_a_reader_who_has_seen_enough_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`main.py | head` closes the pipe while the answer is printed, and that is no failure."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "__stdout__", pipe)  # the process's own, so that its buffer is passed by
        assert run_and_report(Pieces(), options(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {output.file_name for output in USUAL}


SIGNALLED = """
import dataclasses, os, signal
import main
from tracer.sessions import output_files as outputs

def write(material, path):
    os.kill(os.getpid(), signal.SIGINT)
    third.write(material, path)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` would have ignored
first, second, third, *others = outputs.OUTPUTS
outputs.OUTPUTS = (first, second, dataclasses.replace(third, write=write), *others)
main.app()
"""


def test_ctrl_c_while_files_are_written_leaves_all(tmp_path: Path) -> None:
    ended = process(["-c", SIGNALLED], *TINY, "--save-dir", tmp_path)
    assert (ended.code, ended.stdout, ended.stderr) == (1, "", "Error: Interrupted.\n")
    assert {path.name for path in tmp_path.iterdir()} == {output.file_name for output in USUAL} - {"cuda_timing.txt"}


def test_a_summary_of_ranks_that_cannot_be_written_is_said_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OutputError("The disk is full.")

    monkeypatch.setattr(tracer.sessions.folder, "this_rank", lambda: Rank(0, 2, 0, "a run"))
    monkeypatch.setattr(RankMessages, "finish", full)
    assert not run_and_report(Pieces(), options(tmp_path, leave_out=["cuda-timing"]))
    printed = capsys.readouterr()
    assert "Error: The disk is full." in printed.err.splitlines()
    assert printed.out.lstrip().startswith("Peak: ")


# ---- the switches ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("already_run")
@pytest.mark.parametrize("output", USUAL, ids=[output.name for output in USUAL])
def test_each_switch_leaves_its_file_out(output: Any, tmp_path: Path) -> None:
    assert run(*TINY, *SHORT, "--save-dir", tmp_path, f"--no-{output.name}").code == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {one.file_name for one in USUAL} - {output.file_name}


def test_without_timing_the_phases_are_not_timed(trained: Callable[..., Ended]) -> None:
    ended = trained(Pieces(before=raising(AssertionError("copied"), piece="copy", step=2)), "--no-cuda-timing")
    assert ended.code == 0
    assert "no profiler" not in ended.stdout


# ---- the device ------------------------------------------------------------------------------------------------------


def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("already_run")
def test_the_default_device_falls_back_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cuda(monkeypatch)
    ended = run(*[one for one in TINY if one not in ("--device", "cpu")], *SHORT, "--save-dir", tmp_path)
    assert ended.code == 0
    first = ended.stderr.splitlines()[0]
    assert "running on the CPU" in first
    assert "on cpu" in ended.stdout


def test_devices_that_are_there_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert chosen_device("cuda:0", named=False) == torch.device("cuda:0")
    assert chosen_device("cuda:1", named=True) == torch.device("cuda:1")
    assert chosen_device("cuda", named=True) == torch.device("cuda:0")
    assert chosen_device("cpu", named=True) == torch.device("cpu")
    with pytest.raises(TracerError, match=r"no device cuda:2; torch sees cuda:0 to cuda:1"):
        chosen_device("cuda:2", named=True)


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    (["--device", "cuda:0"], "There is no device cuda:0"),
    (["--device", "cuda:7"], "There is no device cuda:7"),
    (["--device", "mps"], "mps"),
    (["--device", "tpu!"], "not the name of a device"),
    (["--n-modes", "9"], "modes of axis 1 is 9, and a data size of 8 allows 8"),
    (["--data-size", "8x8", "--n-modes", "4x4x4"], "data size has 2 axes and the number of modes has 3"),
    (["--batch-size", "0"], "batch size must be at least 1, not 0"),
    (["--hidden-channels", "-3"], "hidden channels"),
    (["--data-size", "0"], "data size"),
    (["--data-size", "64y64"], "--data-size 64y64 is not a size"),
    (["--data-size", ""], "not a size"),
    (["--n-modes", "many"], "--n-modes many is not a size"),
    (["--n-active-steps", "0"], "at least 1 active step"),
    (["--n-repeats", "0"], "1 repeat"),
    (["--n-wait-steps", "-1"], "cannot be negative"),
    (["--seed", "-1"], "seed"),
]


def assert_two_lines(ended: Ended, says: str = "", *, code: int = 1) -> None:
    """One sentence on what is wrong, one hint on what to do, and nothing else."""
    assert ended.code == code
    assert ended.stdout == ""
    error, hint = ended.stderr.splitlines()
    assert error.startswith("Error: ")
    assert error.endswith(".")
    assert says in error
    assert hint.startswith("Hint: ")
    assert len(hint) > len("Hint: ")


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[" ".join(one) for one, _ in MISTAKES])
def test_a_mistake_is_two_lines_and_nothing_is_written(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cuda(monkeypatch)
    # What is wrong on any machine is wrong usage; that a device is not here is not.
    code = 1 if re.match("cuda|mps", arguments[-1]) else 2
    assert_two_lines(run(*TINY, *SHORT, "--save-dir", tmp_path / "new", *arguments), says, code=code)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_before_anything_runs(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(FNO, "build_fno_workload", None)
    assert_two_lines(run(*TINY, "--save-dir", tmp_path / folder), "is a file, not a folder")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--batch-size", "many"], "'--batch-size': many is not a whole number"),
        (["--n-mode", "3"], "No such option"),
        (["snapshott"], "No such command 'snapshott'. Did you mean snapshot?"),
        (["run", "--save-dirs", "x", "a.py"], "--save-dir"),
        (["train.py"], "To profile a script: main.py run train.py"),
        (["tests"], "For a snapshot: main.py snapshot tests"),
        (["snapshot"], "Missing argument"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_so_in_words(
    arguments: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ended = run("--save-dir", tmp_path / "new", *arguments, columns=200)
    assert (ended.code, ended.stdout) == (2, "")
    assert error in ended.stderr and "--help' for help." in ended.stderr and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


# ---- what happens on the way -----------------------------------------------------------------------------------------


def failing(error: BaseException, *, step: int) -> Pieces:
    return Pieces(before=raising(error, piece="backward", step=step))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyError("bug"), "Error: Step 2 raised KeyError: 'bug'"),
        (KeyError(), "Error: Step 2 raised KeyError: KeyError"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried\nto"),
            "Step 2 ran out of memory: CUDA out of memory. Tried",
        ),
        (KeyboardInterrupt(), "Error: Interrupted in step 2."),
        (SystemExit(0), "Error: Step 2 ended the program (tests/pieces.py:"),
    ],
)
def test_a_step_that_fails_is_named_and_what_was_recorded_is_written(
    error: BaseException, says: str, tmp_path: Path, trained: Callable[..., Ended]
) -> None:
    ended = trained(failing(error, step=1))
    assert ended.code == 1
    first, hint, *wrote, after = ended.stderr.splitlines()
    assert says in first
    assert hint == "Hint: What was recorded until then is explained and written below."
    assert after.startswith("Next: ")
    assert "Peak: " in ended.stdout
    assert {path.name for path in tmp_path.iterdir()} == {output.file_name for output in USUAL} - {"cuda_timing.txt"}
    assert len(wrote) == 1 and wrote[0].startswith("Files in ")


def test_a_failure_in_the_timing_pass_is_in_no_step(tmp_path: Path, trained: Callable[..., Ended]) -> None:
    ended = trained(Pieces(before_in_copy=raising(KeyError("bug"), piece="forward", step=0)))
    assert ended.code == 1
    assert ended.stderr.startswith("Error: The timing pass raised KeyError: 'bug'")
    assert (tmp_path / "peak.json").exists()


def test_a_first_step_that_fails_writes_nothing(tmp_path: Path, trained: Callable[..., Ended]) -> None:
    ended = trained(failing(KeyError("bug"), step=0), "--save-dir", tmp_path / "new")
    assert ended.code == 1
    assert ended.stderr.splitlines()[0].startswith("Error: Step 1 raised KeyError: 'bug'")
    assert "written below" not in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_first_step_without_memory_says_how_to_have_it_recorded(trained: Callable[..., Ended]) -> None:
    ended = trained(failing(torch.OutOfMemoryError("CUDA out of memory."), step=0), "--n-wait-steps", "1")
    assert ended.code == 1
    assert ended.stderr.splitlines()[1].endswith(
        "With --n-wait-steps 0 --n-warmup-steps 0 the first step is recorded too, and explained."
    )


@pytest.mark.usefixtures("already_run")
def test_files_of_an_earlier_run_are_named(tmp_path: Path) -> None:
    assert "earlier run" not in run(*TINY, *SHORT, "--save-dir", tmp_path).stderr
    again = run(*TINY, *SHORT, "--no-peak-json", "--save-dir", tmp_path)
    assert again.code == 0
    assert f"Note: peak.json in {tmp_path} is from an earlier run, not of this one." in again.stderr.splitlines()


def test_data_that_end_are_said_to_have_ended(tmp_path: Path, trained: Callable[..., Ended]) -> None:
    batches = iter([noise(), noise()])
    ended = trained(Pieces(batch=lambda: next(batches)))
    assert ended.code == 1
    first, hint, *_ = ended.stderr.splitlines()
    line = next(
        number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "next(batches)" in text
    )
    assert first == f"Error: The data iterator was exhausted in step 3 (tests/commands/test_profile.py:{line})."
    assert hint.startswith("Hint: Restart the data iterator, or ask for fewer steps")
    assert (tmp_path / "peak.json").exists()


def test_unused_parameters_are_named(trained: Callable[..., Ended]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(12, 3))
    model.spare = torch.nn.Identity()  # type: ignore[assignment]
    model.spare.weight = torch.nn.Parameter(torch.zeros(3))
    model.forward = lambda x: model[0](x)  # type: ignore[method-assign]
    ended = trained(Pieces(model))
    assert "1 parameter received no gradient: spare.weight." in ended.stdout
