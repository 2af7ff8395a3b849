"""`--on CARD`: which devices a command asks for, and what it says where there is no null GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import main
from tracer.null_gpu import process
from tracer.null_gpu.cards import Card
from tracer.null_gpu.errors import NullGpuError

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
        lambda script: ("predict", script, "--on", "rtx4090", "--", "--epochs", "1"),
    ],
)
def test_every_command_that_runs_something_starts_on_the_card(
    command: Callable[[str], tuple[str, ...]], started: list[list[Card]], script: str
) -> None:
    result = called(*command(script))
    assert isinstance(result.exception, StartedError)
    assert [[card.label for card in cards] for cards in started] == [["RTX-4090"]]


def test_several_devices_with_a_memory_of_their_own(started: list[list[Card]]) -> None:
    called("--on", "2xh100:40GiB")
    assert [(card.label, card.memory_bytes) for card in started[0]] == [("H100", 40 << 30)] * 2


def test_an_unknown_card_is_one_sentence_with_the_nearest_names(started: list[list[Card]], script: str) -> None:
    for command in (("--on", "rtx 4095"), ("run", "--on", "rtx 4095", script), ("predict", *GPT, "--on", "rtx 4095")):
        result = called(*command)
        assert result.exit_code == 1 and not started
        assert "Error: There is no card rtx 4095" in result.stderr and "RTX-4090" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--on", "h100", "--device", "cpu"), "--device cpu is none"),
        (("predict", *GPT, "--on", "h100", "--device", "cpu"), "--device cpu is none"),
        (("predict", *GPT, "--on", "h100", "--gpu-memory", "24GiB"), "--on names the GPU already"),
        (("predict", "train.py"), "--on is missing"),
        (("predict", "train.py", *GPT, "--on", "h100"), "--model has a meaning only without a script"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], error: str, started: list[list[Card]]) -> None:
    result = called(*arguments)
    assert result.exit_code == 1 and error in result.stderr and not started


def test_where_it_cannot_be_a_prediction_is_rehearsed(not_here: None) -> None:
    result = called("predict", *GPT, "--on", "rtx-4090")
    assert result.exit_code == 0 and "Fits in RTX-4090 (23.64 GiB)" in result.stdout
    assert "There is no C compiler here. Install cc." in result.stderr and "by rehearsal" in result.stderr


def test_where_it_cannot_be_everything_else_says_why(not_here: None, script: str) -> None:
    for command in (("--on", "h100"), ("run", "--on", "h100", script), ("predict", script, "--on", "h100")):
        result = called(*command)
        assert result.exit_code == 1 and "Error: There is no C compiler here." in result.stderr


def test_a_device_that_computes_has_no_caveat() -> None:
    import torch

    from tracer.runs.null_run import caveat_of

    assert not process.is_active() and caveat_of(torch.device("cuda", 0)) == ""


def test_on_the_null_gpu_only_its_own_devices_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tracer.runs.null_run import CAVEAT, caveat_of

    monkeypatch.setattr(process, "is_active", lambda: True)
    assert caveat_of(torch.device("cuda", 1)) == CAVEAT
    assert caveat_of(torch.device("cpu")) == ""
