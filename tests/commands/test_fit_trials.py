"""Each change alone, as `fit --each` prints it, over made-up trials."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from tracer.changes.script_changes import changes_of
from tracer.commands import fit_trials
from tracer.commands.fit import each_alone
from tracer.commands.fit_trials import ScriptTrials
from tracer.errors import TracerError
from tracer.null_gpu.cards import devices_of
from tracer.results.fit import FitTrial
from tracer.sessions.jobs.child_processes import ChildProcesses
from tracer.units import GIB, MIB

DEVICES = devices_of("h100:8GiB")


def test_each_change_is_told_beside_the_script_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def make(trials: ScriptTrials, changes: Sequence[str] = ()) -> FitTrial:
        names = tuple(changes)
        asked.append(names)
        if names == ("checkpoint",):
            return FitTrial(names, fits=True, allocated_bytes=GIB - 64 * MIB, reserved_bytes=GIB, flops=1333)
        if names == ("bf16",):
            return FitTrial(names, fits=False, notes=("ValueError: no",), has_ended_before=True)
        notes = ("chunked-loss: no large loss over classes was computed.",) if names == ("chunked-loss",) else ()
        return FitTrial(names, fits=True, allocated_bytes=GIB, reserved_bytes=2 * GIB, notes=notes, flops=1000)

    monkeypatch.setattr(ScriptTrials, "make", make)
    with ScriptTrials(DEVICES.card.usable_bytes) as trials:
        made = each_alone(trials)
    alone = [(name,) for name in changes_of(is_job=False)]
    assert asked == [trial.apply for trial in made] == [(), *alone]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "as it is: 1.00 GiB allocated, 2.00 GiB reserved; fits with 5.32 GiB left."
    row = "checkpoint: 960.00 MiB allocated, 1.00 GiB reserved, 64.00 MiB less at the peak"
    assert f"{row}, +33.3 % FLOPs; fits with 6.32 GiB left." in lines
    assert sum("FLOPs" in line for line in lines) == 1
    assert "bf16: the script ended before a step was done on the GPU." in lines and "  ValueError: no" in lines
    assert "  chunked-loss: no large loss over classes was computed." in lines


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
        trials: ScriptTrials, changes: object, more: object, *, is_limited: bool, is_explained: bool = False
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
