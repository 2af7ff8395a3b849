"""`fit`: its trials, each change alone, and values of the script's own options."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

import main
from tracer.answers.allocator.explained import Explanation
from tracer.answers.answer_of_fit import answer_of_fit, command_words, trial_words
from tracer.answers.prediction import FitReport, FitTrial
from tracer.changes.script_changes import changes_of
from tracer.commands import fit_trials
from tracer.commands.fit import _LeastChange, combinations
from tracer.commands.fit_trials import NoTimeLeftError, ScriptTrials
from tracer.errors import TracerError, UsageError
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.sessions.jobs.child_processes import ChildProcesses
from tracer.units import GIB, MIB

# --------------------------------------------------------------------------------------------------------------- trials
DEVICES = devices_of("h100:8GiB")


def test_each_change_is_told_beside_the_script_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def make(trials: ScriptTrials, changes: Sequence[str], arguments: object) -> FitTrial:
        names = tuple(changes)
        asked.append(names)
        if names == ("checkpoint",):
            return FitTrial(names, fits=True, allocated_bytes=GIB - 64 * MIB, reserved_bytes=GIB, flops=1333)
        if names == ("bf16",):
            return FitTrial(names, fits=False, notes=("ValueError: no",), has_ended_before=True)
        notes = ("chunked-loss: no large loss over classes was computed.",) if names == ("chunked-loss",) else ()
        return FitTrial(names, fits=True, allocated_bytes=GIB, reserved_bytes=2 * GIB, notes=notes, flops=1000)

    monkeypatch.setattr(ScriptTrials, "make", make)
    search = _LeastChange(ScriptTrials(DEVICES.card.usable_bytes))
    best = search.each()
    alone = [(name,) for name in changes_of(is_job=False)]
    assert best is search.made[0] and asked == [trial.apply for trial in search.made] == [(), *alone]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Tried as it is: fits." and "Tried bf16: ends before its first step." in said
    report = FitReport("an H100", DEVICES.card.usable_bytes, ("train.py",), tuple(search.made), best, is_each=True)
    answer = answer_of_fit(report)
    assert answer.happened == ("as it is: 1.00 GiB allocated, 2.00 GiB reserved; fits with 5.32 GiB left.",)
    rows = {row[0]: row[1:] for row in answer.in_use[0].rows}
    left_bytes = DEVICES.card.usable_bytes - GIB
    assert rows["as it is"] == (GIB, 2 * GIB, left_bytes - GIB, "")
    assert rows["checkpoint"] == (GIB - 64 * MIB, GIB, left_bytes, "+33.3 %")
    assert rows["bf16"] == ("ended", None, None, "")
    assert answer.remarks == ("chunked-loss: no large loss over classes was computed.", "bf16: ValueError: no")


def test_a_search_that_takes_too_long_ends_with_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, used_s = ScriptTrials(GIB), iter([10.0, 40.0, 79.5, 80.0])
    monkeypatch.setattr(ScriptTrials, "used_s", lambda self: next(used_s))
    limits: list[int] = []

    def attempt(trials: ScriptTrials, *args: object, is_limited: bool, limit_s: int = 0) -> FitTrial:
        limits.append(limit_s)
        return FitTrial(("checkpoint",), fits=True)

    monkeypatch.setattr(ScriptTrials, "_attempt", attempt)
    trials.limit()
    trials.make(("checkpoint",))
    trials.make(("checkpoint",))
    with pytest.raises(NoTimeLeftError):
        trials.make(("checkpoint",))
    assert limits == [40, 1]  # of 8 times 10 s


def test_of_what_fits_what_gives_up_least_is_the_answer_of_a_search_that_was_ended() -> None:
    search = _LeastChange(ScriptTrials(GIB))
    sets = [("chunked-loss", "checkpoint"), ("bf16",), ("checkpoint",), ("chunked-loss",)]
    search.made += [FitTrial(names, fits=names != ("chunked-loss",)) for names in sets]
    best = search.cheapest()
    assert best is not None and best.apply == ("checkpoint",)
    report = FitReport("an H100", GIB, ("train.py",), tuple(search.made), best, is_whole=False)
    assert answer_of_fit(report).remarks == ("The search was ended before all changes were tried: fewer may do.",)
    none = replace(report, best=None, trials=(FitTrial((), fits=False), *report.trials[3:]))
    assert answer_of_fit(none).happened[0].endswith(" not all were tried.")


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("end", "status"), [(NoTimeLeftError(), 0), (KeyboardInterrupt(), 1)])
def test_what_was_tried_is_the_answer_of_a_search_that_ends_early(
    end: BaseException, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    full = FitTrial((), fits=False, allocated_bytes=9 * GIB, reserved_bytes=9 * GIB, failed_in=0)
    made = iter([full, FitTrial(("checkpoint",), fits=True, allocated_bytes=GIB, reserved_bytes=GIB)])

    def make(trials: ScriptTrials, changes: Sequence[str], arguments: object) -> FitTrial:
        if (trial := next(made, None)) is None:
            raise end
        return trial

    monkeypatch.setattr(ScriptTrials, "make", make)
    ended = CliRunner().invoke(main.app, ["fit", "--on", "h100:8GiB", "train.py"])
    assert ended.exit_code == status and ("Interrupted" in ended.stderr) == bool(status)
    assert "fewer may do." in ended.stdout
    assert ended.stdout.splitlines()[-1].endswith(" run --apply checkpoint train.py")


LONG = """Traceback (most recent call last):
  File "train.py", line 3, in first
ValueError: the first of two

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 18, in <module>
    loss.backward()
torch.utils.checkpoint.CheckpointError: A different number of tensors was saved.
Number of tensors saved during forward: 5
See the issue and
workaround examples.
"""


@pytest.mark.parametrize(
    ("printed", "reasons"),
    [
        (LONG, ["torch.utils.checkpoint.CheckpointError: A different number of tensors was saved."]),
        (
            f"{LONG}Error: It ended.\n",
            ["torch.utils.checkpoint.CheckpointError: A different number of tensors was saved."],
        ),
        ("loading\nno data here\n", ["no data here"]),
        ("loading\nno data here\nError: It ended with status 1.\n", ["no data here", "It ended with status 1."]),
        ("Error: The script trained on cpu.\n", ["The script trained on cpu."]),
        ("", ["It printed nothing."]),
    ],
)
def test_why_a_trial_ended_is_the_line_with_the_exception(
    printed: str, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(command: Sequence[str], *, stderr: IO[bytes], **options: object) -> int:
        return stderr.write(f"{printed}Hint: ours.\n".encode())

    monkeypatch.setattr(subprocess, "Popen", failed)
    monkeypatch.setattr(ChildProcesses, "run", lambda _, start, may_wait: min(start(), 1))
    trial = ScriptTrials(GIB).make(("checkpoint",))
    assert trial.has_ended_before and list(trial.notes) == reasons


def test_a_script_that_trains_on_the_cpu_is_told_so_and_not_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(command: Sequence[str], *, stderr: IO[bytes], **options: object) -> int:
        return stderr.write(b"Error: The script trained on cpu.\nHint: Make it use cuda.\n")

    monkeypatch.setattr(subprocess, "Popen", ended)
    monkeypatch.setattr(ChildProcesses, "run", lambda _, start, may_wait: min(start(), 1))
    with pytest.raises(TracerError, match=r"^The script trained on cpu\.") as caught:
        ScriptTrials(GIB).make()
    assert caught.value.hint == "Make it use cuda."


WHOLE = FitTrial((), fits=True, allocated_bytes=3 * GIB, reserved_bytes=4 * GIB, growth_bytes=5)
FULL = FitTrial((), fits=False, allocated_bytes=GIB, reserved_bytes=GIB, failed_in=2, failed_at_bytes=GIB)


@pytest.mark.parametrize(
    ("usable_bytes", "changes", "asked", "expected"),
    [
        # As it is: on the card, and where it ran out of memory without an end too.
        (8 * GIB, (), ["card"], WHOLE),
        (2 * GIB, (), ["card", "without end"], replace(WHOLE, fits=False, failed_in=2, failed_at_bytes=GIB)),
        # With changes: without an end; on the card where giving back the cache may do.
        (4 * GIB, ("checkpoint",), ["without end"], WHOLE),
        (3 * GIB, ("checkpoint",), ["without end", "card"], replace(WHOLE, fits=True)),
        (2 * GIB, ("checkpoint",), ["without end"], replace(WHOLE, fits=False)),
    ],
)
def test_what_a_trial_asks_of_the_null_gpu(
    usable_bytes: int, changes: tuple[str, ...], asked: list[str], expected: FitTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def attempt(
        trials: ScriptTrials, *_: object, is_limited: bool, is_explained: bool = False, limit_s: int = 0
    ) -> FitTrial:
        ran.append("card" if is_limited else "without end")
        return WHOLE if not is_limited or trials.usable_bytes >= 3 * GIB else FULL

    monkeypatch.setattr(ScriptTrials, "_attempt", attempt)
    assert ScriptTrials(usable_bytes).make(changes) == expected and ran == asked


def test_where_a_run_without_an_end_fails_too_what_is_known_is_until_memory_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attempt(trials: ScriptTrials, *args: object, is_limited: bool, is_explained: bool = False) -> FitTrial:
        return FULL if is_limited else FitTrial((), fits=False, has_ended_before=True, notes=("KeyError: 7",))

    monkeypatch.setattr(ScriptTrials, "_attempt", attempt)
    note = "How much it needs is not known, for with enough memory it ended: KeyError: 7"
    assert ScriptTrials(GIB).make() == replace(FULL, is_whole=False, notes=(note,))


def test_a_recording_that_cannot_be_read_costs_the_explanation_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory_snapshot.pkl").write_bytes(b"damaged")
    assert fit_trials._explanation(tmp_path / "memory_snapshot.pkl") is None
    assert capsys.readouterr().err.startswith("Note: Why memory ran out is not known: ")
    assert fit_trials._explanation(tmp_path / "none.pkl") is None


# ---------------------------------------------------------------------------------------------------- values of options
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
    assert trial_words(full, 2 * GIB) == (
        "as it is: rank 1,000 is out of memory in step 5; it had 1.00 GiB at the most until then.",
    )


def test_what_fits_with_a_fiftieth_left_fits_narrowly() -> None:
    trial = FitTrial(("bf16",), True, GIB, 98 * GIB)
    assert trial_words(trial, 100 * GIB)[0].endswith("; fits with 2.00 GiB left.")
    assert trial_words(trial, 99 * GIB)[0].endswith("; fits narrowly, with 1.00 GiB left.")


def test_what_does_not_fit_says_how_much_more_it_needs() -> None:
    base = FitTrial(
        (), False, 5 * GIB, 6 * GIB, failed_in=0, failed_at_bytes=GIB, explanation=Explanation("", "", "a.py", 3)
    )
    assert trial_words(base, 2 * GIB) == (
        "as it is: out of memory in step 1 (a.py:3); it had 1.00 GiB at the most until then.",
        "With enough memory it needs 5.00 GiB allocated, 6.00 GiB reserved: 3.00 GiB more than there is.",
    )
    changed = FitTrial(("bf16",), False, 3 * GIB, 3 * GIB, flops=1)
    assert trial_words(changed, 2 * GIB, base) == (
        "bf16: needs 3.00 GiB allocated, 3.00 GiB reserved, 2.00 GiB less at the peak; 1.00 GiB more than there is.",
    )
    in_pieces = replace(changed, allocated_bytes=GIB)
    assert trial_words(in_pieces, 2 * GIB, base)[0].endswith("; the reserved bytes are 1.00 GiB more than there is.")
    built = replace(base, failed_in=-1, is_whole=False, explanation=None)
    assert trial_words(built, 2 * GIB) == (
        "as it is: out of memory before the first step; it had 1.00 GiB at the most until then.",
    )


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
    # It is the need of the steps that ran, and not of the program.
    assert " reserved in its first 10 steps: " in trial_words(full, 4 * GIB)[1]


@pytest.mark.parametrize(
    ("fits", "growth_bytes", "is_answered", "are_more_tried"),
    [
        (True, 512, True, False),  # a list of losses: 2 GiB are left for 4 million steps
        (True, 128 * MIB, False, False),  # a graph kept in each step
        (False, 512, False, True),  # 2 GiB are missing, of which the list is 5 KiB
        (False, 256 * MIB, False, False),
    ],
)
def test_growth_is_what_to_change_where_it_fills_the_card(
    fits: bool, growth_bytes: int, is_answered: bool, are_more_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved_bytes = 6 * GIB if fits else 10 * GIB
    base = FitTrial((), fits, 4 * GIB, reserved_bytes, num_steps=10, growth_bytes=growth_bytes)
    monkeypatch.setattr(ScriptTrials, "make", lambda trials, changes, arguments: replace(base, apply=tuple(changes)))
    search = _LeastChange(ScriptTrials(8 * GIB))
    assert (search.least() is not None) == is_answered
    assert (len(search.made) > 1) == are_more_tried


def test_what_nccl_and_other_ranks_take_is_no_room() -> None:
    tight = FitTrial(("bf16",), True, GIB, 7 * GIB // 2, worst_rank=0, nccl=NcclBuffers(1))
    said = trial_words(tight, 4 * GIB)[0]
    assert said.endswith("3.50 GiB reserved by rank 0, the worst; fits if NCCL takes no more than 512.00 MiB.")
    assert trial_words(replace(tight, beside_bytes=GIB), 8 * GIB)[0].endswith("; fits with 2.83 GiB to 3.47 GiB left.")
    assert trial_words(replace(tight, beside_bytes=GIB), 4 * GIB)[0].endswith(
        "fits, after the allocator released its cache."
    )
