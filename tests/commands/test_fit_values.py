"""`fit --try`: what is tried of a script's own options, and the command that comes of it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import main
from tracer.analysis.snapshots.allocator_finding import Explanation
from tracer.commands.fit import combinations
from tracer.errors import UsageError
from tracer.exporters.screen.prediction import command_words, print_search, trial_words
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results.fit import FitTrial, RankTrial
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
    ("apply", "arguments", "num_ranks", "num_nodes", "command"),
    [
        ((), ("--batch-size", "4"), 0, 1, "python train.py --batch-size 4"),
        ((), ("--batch-size", "4"), 8, 1, "torchrun --nproc-per-node 8 train.py --batch-size 4"),
        (("bf16",), (), 0, 1, "main.py run --apply bf16 train.py"),
        (("bf16",), (), 8, 1, "torchrun --nproc-per-node 8 -m tracer run --apply bf16 train.py"),
        (
            (),
            (),
            8,
            16,
            "torchrun --nnodes 16 --rdzv-backend c10d --rdzv-endpoint $HOST_NODE_ADDR --nproc-per-node 8 train.py",
        ),
    ],
)
def test_the_answer_is_a_command(
    apply: tuple[str, ...], arguments: tuple[str, ...], num_ranks: int, num_nodes: int, command: str
) -> None:
    words = command_words(("train.py", *arguments), apply, "main.py", num_ranks=num_ranks, num_nodes=num_nodes)
    assert words == command


def test_the_worst_rank_is_named() -> None:
    trial = FitTrial((), True, GIB, GIB, arguments=("--batch-size", "4"), worst_rank=3)
    assert trial_words(trial, 2 * GIB) == (
        "--batch-size 4: 1.00 GiB allocated, 1.00 GiB reserved by rank 3, the worst; fits with 1.00 GiB left.",
    )
    full = FitTrial((), False, GIB, GIB, worst_rank=1_000, is_whole=False, failed_in=4, failed_at_bytes=GIB)
    assert trial_words(full, 2 * GIB) == ("as it is: rank 1,000 is out of memory in step 5, with 1.00 GiB allocated.",)


def test_what_fits_with_a_fiftieth_left_fits_narrowly() -> None:
    trial = FitTrial(("bf16",), True, GIB, 98 * GIB)
    assert trial_words(trial, 100 * GIB)[0].endswith("; fits with 2.00 GiB left.")
    assert trial_words(trial, 99 * GIB)[0].endswith("; fits narrowly, with 1.00 GiB left.")


def test_what_does_not_fit_says_how_much_more_it_needs() -> None:
    base = FitTrial(
        (), False, 5 * GIB, 6 * GIB, failed_in=0, failed_at_bytes=GIB, explanation=Explanation("", "", "a.py", 3)
    )
    assert trial_words(base, 2 * GIB) == (
        "as it is: out of memory in step 1 (a.py:3), with 1.00 GiB allocated.",
        "With enough memory it needs 5.00 GiB allocated, 6.00 GiB reserved: 3.00 GiB more than there is.",
    )
    changed = FitTrial(("bf16",), False, 3 * GIB, 3 * GIB, ("bf16: a note.",), flops=1)
    assert trial_words(changed, 2 * GIB, base) == (
        "bf16: needs 3.00 GiB allocated, 3.00 GiB reserved, 2.00 GiB less at the peak; 1.00 GiB more than there is.",
        "  bf16: a note.",
    )
    in_pieces = replace(changed, allocated_bytes=GIB, notes=())
    assert trial_words(in_pieces, 2 * GIB, base)[0].endswith("; the reserved bytes are 1.00 GiB more than there is.")
    built = replace(base, failed_in=-1, is_whole=False, explanation=None)
    assert trial_words(built, 2 * GIB) == ("as it is: out of memory before the first step, with 1.00 GiB allocated.",)


def test_growth_says_when_memory_ends() -> None:
    # 2 GiB are left behind step 10, four times what a step leaves.
    grows = FitTrial((), True, 4 * GIB, 6 * GIB, num_steps=10, growth_bytes=GIB // 2)
    left, growth = trial_words(grows, 8 * GIB)
    assert left.endswith("fits with 2.00 GiB left.")
    assert growth == (
        "Memory grows: each of the last steps left 512.00 MiB more in use; if that goes on, it ends in step 15 or so."
    )
    full = replace(grows, fits=False, failed_in=8)
    assert trial_words(full, 4 * GIB)[2] == "Memory grows: each of the last steps left 512.00 MiB more in use."


def of_ranks(*ranks: RankTrial, apply: tuple[str, ...] = (), fits: bool = True, note: str = "") -> FitTrial:
    worst = max(ranks, key=lambda rank: (not rank.fits, rank.allocated_bytes))
    sizes = worst.allocated_bytes, worst.reserved_bytes
    notes = (note,) if note else ()
    return FitTrial(apply, fits, *sizes, notes, arguments=("-b", "4"), worst_rank=worst.rank, ranks=ranks)


def test_a_search_is_a_table_by_rank_with_commands_below() -> None:
    fitting = of_ranks(RankTrial(0, True, GIB, GIB), RankTrial(1, True, GIB, GIB), RankTrial(3, True, 2 * GIB, 3 * GIB))
    full = of_ranks(RankTrial(0, True, GIB, GIB), RankTrial(3, False, GIB, GIB), apply=("compile",), fits=False)
    # What is left is left by what torch reserves, beside NCCL's buffers and other ranks.
    tight = replace(of_ranks(RankTrial(0, True, GIB, 7 * GIB // 2), apply=("bf16",)), nccl=NcclBuffers(1))
    in_vain = of_ranks(RankTrial(0, True, GIB, GIB), apply=("checkpoint",), note="checkpoint: none.")
    broken = FitTrial((), fits=False, has_ended_before=True, arguments=("-b", "0"))
    console = Console(file=(file := io.StringIO()), width=200)
    ordered = [fitting, in_vain, full, tight, broken]
    print_search("4 x H100", 4 * GIB, ordered, ["torchrun train.py -b 4"], console)
    rows = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert rows[1:] == [
        "Tried on 4 x H100, the cheapest that fits first",
        "peak reserved left with peak by rank",
        "2.00 GiB 3.00 GiB 1.00 GiB -b 4 3: 2.00 GiB; 0, 1: 1.00 GiB",
        "1.00 GiB 1.00 GiB does not fit -b 4, compile 3: out of memory; 0: 1.00 GiB",
        "1.00 GiB 3.50 GiB if NCCL takes no more than 512.00 MiB -b 4, bf16 0: 1.00 GiB",
        "no step -b 0",
        "",
        "Commands for those that fit, in that order:",
        "torchrun train.py -b 4",
    ]
    said = trial_words(tight, 4 * GIB)[0]
    assert said.endswith("3.50 GiB reserved by rank 0, the worst; fits if NCCL takes no more than 512.00 MiB.")
    assert trial_words(replace(tight, beside_bytes=GIB), 8 * GIB)[0].endswith("; fits with 2.83 GiB to 3.47 GiB left.")
    assert trial_words(replace(tight, beside_bytes=GIB), 4 * GIB)[0].endswith(
        "fits, after the allocator released its cache."
    )
