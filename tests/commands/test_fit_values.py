"""`fit --try`: what is tried of a script's own options, and the command that comes of it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import main
from tracer.commands.fit_values import combinations
from tracer.errors import UsageError
from tracer.exporters.screen.fit import command_words, trial_words
from tracer.results.fit import FitReport, FitTrial
from tracer.units import GIB


def test_every_combination_comes_in_the_order_of_its_values() -> None:
    assert combinations([]) == [()]
    assert combinations(["--batch-size 8,4", "--compile", "-l=0.1"]) == [
        ("--batch-size", "8", "-l", "0.1"),
        ("--batch-size", "8", "--compile", "-l", "0.1"),
        ("--batch-size", "4", "-l", "0.1"),
        ("--batch-size", "4", "--compile", "-l", "0.1"),
    ]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["batch 8"], "is no option with its values"),
        ([""], "is no option with its values"),
        (["--batch 8 4"], "is no option with its values"),
        (["--batch 8,,4"], "has a value that is empty"),
        (["--name 'a"], "cannot be read"),
        (["--a 1,2,3,4,5,6,7,8", "--b 1,2,3,4,5,6,7,8,9"], "These are 72 combinations"),
    ],
)
def test_what_is_no_option_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        combinations(texts)


def test_each_and_values_are_two_questions() -> None:
    ended = CliRunner().invoke(main.app, ["fit", "--on", "h100", "--each", "--try", "--compile", "train.py"])
    assert ended.exit_code == 2 and "--each tries changes" in ended.stderr


@pytest.mark.parametrize(
    ("apply", "arguments", "num_ranks", "command"),
    [
        ((), ("--batch-size", "4"), 0, "python train.py --batch-size 4"),
        ((), ("--batch-size", "4"), 8, "torchrun --nproc-per-node 8 train.py --batch-size 4"),
        (("bf16",), (), 0, "main.py run --apply bf16 train.py"),
        (("checkpoint", "bf16"), (), 8, "torchrun --nproc-per-node 8 -m tracer run --apply checkpoint,bf16 train.py"),
    ],
)
def test_the_answer_is_a_command(
    apply: tuple[str, ...], arguments: tuple[str, ...], num_ranks: int, command: str
) -> None:
    report = FitReport("an H100", GIB, ("train.py",), (), apply, arguments)
    assert command_words(report, "main.py", num_ranks) == command


def test_the_worst_rank_is_named() -> None:
    trial = FitTrial((), True, GIB, GIB, arguments=("--batch-size", "4"), worst_rank=3)
    assert trial_words(trial, 2 * GIB) == (
        "--batch-size 4: 1.00 GiB allocated, 1.00 GiB reserved by rank 3, the worst; fits with 1.00 GiB left.",
    )
    full = FitTrial(("bf16",), False, GIB, GIB, worst_rank=1_000)
    assert trial_words(full, 2 * GIB) == ("bf16: rank 1,000 is out of memory, with 1.00 GiB allocated.",)
