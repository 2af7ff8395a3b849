"""`--on CARD`: which devices a command asks for, and what it says where there is no null GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

import main
from tracer.answers.null_run import values_lines
from tracer.capture.run_facts import LeftOut, ValueRead, ValuesRead
from tracer.errors import NullGpuError
from tracer.exporters.document import Document
from tracer.exporters.recording_file.kept_run_file import RECORDING
from tracer.null_gpu import process
from tracer.null_gpu.cards import Card
from tracer.null_gpu.values import switch
from tracer.null_gpu.values.answers import Answer
from tracer.sessions.on_null_gpu import by_program, values_read

GPT = ("--model", "models.gpt:build")


class StartedError(Exception):
    """In the place of another process."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[Card]]:
    asked: list[list[Card]] = []

    def start(cards: Sequence[Card]) -> None:
        asked.append(list(cards))
        raise StartedError

    monkeypatch.setattr(process, "restart_on", start)
    return asked


@pytest.fixture
def not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(cards: Sequence[Card]) -> None:
        raise NullGpuError("There is no C compiler here.", hint="Install cc.")

    monkeypatch.setattr(process, "restart_on", start)


def called(*arguments: str) -> Result:
    return CliRunner().invoke(main.app, list(arguments))


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text("print('hello')", "utf-8")
    return str(file)


@pytest.mark.parametrize(
    "command",
    [
        lambda script: ("--on", "rtx4090"),
        lambda script: ("run", "--on", "rtx4090", script, "--on", "its own"),
        lambda script: ("run", "--watch", "--on", "rtx4090", script),
        lambda script: ("predict", *GPT, "--on", "rtx4090"),
        lambda script: ("predict", "--on", "rtx4090", script, "--epochs", "1"),
    ],
)
def test_every_command_that_runs_something_starts_on_the_card(
    command: Callable[[str], tuple[str, ...]], started: list[list[Card]], script: str
) -> None:
    result = called(*command(script))
    assert isinstance(result.exception, StartedError)
    assert [[card.label for card in cards] for cards in started] == [["RTX-4090"]]


def test_an_unknown_card_is_one_sentence_with_the_nearest_names(started: list[list[Card]], script: str) -> None:
    for command in (("--on", "rtx 4095"), ("run", "--on", "rtx 4095", script), ("predict", *GPT, "--on", "rtx 4095")):
        result = called(*command)
        assert result.exit_code == 2 and not started
        assert "Error: There is no card rtx 4095" in result.stderr and "RTX-4090" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--on", "h100", "--device", "cpu"), "--device cpu is not one"),
        (("predict", "train.py"), "--on is missing"),
        (("--rank", "1"), "--rank works only for a job"),
        (("run", "--on", "h100", "--rank", "1", "train.py"), "--rank works only for a job"),
        (("run", "--on", "8xh100", "--one-process", "--rank", "1", "train.py"), "--rank works only for a job"),
        (("run", "--on", "8xh100", "--rank", "first", "train.py"), "first is no list of ranks"),
        (("run", "--on", "8xh100", "--rank", "0,8", "train.py"), "A job of 8 ranks has no rank 8"),
        (("run", "--on", "64xh100", "--per-node", "32", "train.py"), "A process sees 16 GPUs at most"),
        (("run", "--on", "17xh100", "--one-process", "train.py"), "a process sees 1 to 16"),
        (("run", "--answer", "train.py:12=0.5", "train.py"), "--answer works only with --on"),
        (("predict", *GPT, "--answer", "train.py:12=0.5"), "--answer works only with --on"),
        (("run", "--on", "h100", "--answer", "train.py=0.5", "train.py"), "'train.py=0.5' is not an answer"),
        (("predict", *GPT, "--on", "h100", "train.py"), "--model works only without a script"),
        (("predict", "--on", "h100", "--batch-size", "3", "train.py"), "An option of train.py stands behind its name."),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], error: str, started: list[list[Card]]) -> None:
    result = called(*arguments)
    assert result.exit_code == 2 and error in result.stderr and not started


def test_a_job_is_not_started_by_each_rank_of_torchruns(
    monkeypatch: pytest.MonkeyPatch, started: list[list[Card]], script: str
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    result = called("run", "--on", "2xh100", script)
    assert result.exit_code == 2 and not started
    assert "torchrun has started this command as 2 ranks, and --on 2xh100 starts ranks itself." in result.stderr
    assert isinstance(called("run", "--on", "2xh100", "--one-process", script).exception, StartedError)


def test_where_it_cannot_be_each_command_says_why(not_here: None, script: str) -> None:
    commands = (
        ("--on", "h100"),
        ("run", "--on", "h100", script),
        ("predict", "--on", "h100", script),
        ("predict", *GPT, "--on", "24GiB"),
        ("predict", *GPT),
    )
    for command in commands:
        result = called(*command)
        assert result.exit_code == 1 and "Error: There is no C compiler here." in result.stderr


def test_a_check_without_a_null_gpu_has_measured_nothing(not_here: None, script: str, tmp_path: Path) -> None:
    """`git bisect run` takes 1 for a bad commit, and skips one at 125."""
    result = called("check", "--on", "h100", "--update", "--baseline", str(tmp_path / "peaks.json"), script)
    assert result.exit_code == 125 and "Error: There is no C compiler here." in result.stderr


class FakeValues:
    """In the place of `HostValues`, which replaces kernels of torch's."""

    made: ClassVar[list[FakeValues]] = []

    def __init__(self, answers: Mapping[tuple[str, int], Answer]) -> None:
        self.answers, self.is_closed = dict(answers), False
        self.made.append(self)

    def report(self) -> ValuesRead:
        ours = str(Path(main.__file__).parent / "tracer" / "runs" / "workload_run.py")
        reads = (
            ValueRead("train.py", 9, "pick", "aten::nonzero", 3, "0", "drawn", False, True, 2),
            ValueRead("train.py", 12, "step", "aten::_local_scalar_dense", 4, "0.56", "drawn", False, False, 0),
            ValueRead(ours, 7, "run_step", "aten::_local_scalar_dense", 5, "0.56", "drawn", False, False, 0),
        )
        return ValuesRead(reads, (LeftOut("aten::mm: too large", 2),), 6, ("train.py:99",))

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("command", [("run",), ("predict",)])
def test_values_are_on_while_a_script_runs(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("from tracer.sessions import on_null_gpu\nprint('read', on_null_gpu.values_read() is not None)")
    monkeypatch.setattr(process, "is_active", lambda: True)
    monkeypatch.setattr("tracer.sessions.program_writes.ProgramWrites.aside", lambda *_, **__: nullcontext())
    monkeypatch.setattr(switch, "HostValues", FakeValues)
    FakeValues.made.clear()
    folder = ("--save-dir", str(tmp_path / "out")) if command == ("run",) else ()
    result = called(*command, "--on", "h100", "--answer", "train.py:12=0.5", *folder, str(script))
    assert "read True" in result.output and values_read() is None
    (values,) = FakeValues.made
    assert values.answers == {("train.py", 12): 0.5} and values.is_closed


def test_what_was_read_is_said_and_no_loss_is() -> None:
    values = by_program(FakeValues({}).report())
    assert list(values_lines(values)) == [
        "The program read 7 values of the device; the sizes at train.py:9 were decided by 3 of them. Set one with "
        "--answer train.py:9=VALUE.",
        "A result whose size was computed was empty 2 times, at train.py:9: work on it has no memory.",
        "Values unknown: what compiled kernels left in 6 buffers.",
        "Not computed, 1 operator: aten::mm: too large (2 times).",
        "Nothing was read at train.py:99: --answer had no effect there.",
        "  train.py:9: nonzero, 3 times, size 0 from drawn numbers",
        "  train.py:12: item, 4 times, a number that is drawn",
    ]


def test_what_was_read_is_kept() -> None:
    values = by_program(FakeValues({}).report())
    assert Document(json.loads(json.dumps(asdict(values))), RECORDING).record(ValuesRead) == values


def test_a_device_that_computes_has_no_caveat() -> None:
    import torch

    from tracer.answers.null_run import caveat_of

    assert not process.is_active() and caveat_of(torch.device("cuda", 0)) == ""


def test_on_the_null_gpu_only_its_own_devices_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tracer.answers.null_run import CAVEAT, caveat_of

    monkeypatch.setattr(process, "is_active", lambda: True)
    assert caveat_of(torch.device("cuda", 1)) == CAVEAT
    assert caveat_of(torch.device("cpu")) == ""
