"""What a script's sessions say beside the answer: more memory at another time, and what comes after the recording."""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from tests.skips import by_default
from tracer.capture.torch_private.torch_history import RAISED
from tracer.commands.script import Script, run_script
from tracer.sessions import script_run
from tracer.sessions.profile_answer import HighestStep
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_run import ScriptProfile, ScriptStage
from tracer.sessions.session import ScriptVoice
from tracer.sessions.training_profile import TrainingProfile
from tracer.sessions.training_watch import TrainingWatch

GIB = 1 << 30


def highest(before_bytes: int, peak_bytes: int, *, step: int, is_recorded: bool) -> HighestStep:
    found = HighestStep(torch.device("cpu"))
    found.before_bytes, found.peak_bytes, found.step, found.is_recorded = before_bytes, peak_bytes, step, is_recorded
    return found


@pytest.mark.parametrize(
    ("before", "until_then", "at_end", "words"),
    [
        (0, GIB, GIB, ""),
        (GIB, GIB, int(1.001 * GIB), ""),
        (GIB, GIB, int(1.006 * GIB), "1.01 GiB, after the recorded steps. Use --n-wait-steps to record later ones."),
        (GIB, GIB, 2 * GIB, "2.00 GiB, after the recorded steps. Use --n-wait-steps to record later ones."),
        (GIB, 2 * GIB, 3 * GIB, "3.00 GiB, after the recorded steps. Use --n-wait-steps to record later ones."),
        (0, 2 * GIB, 2 * GIB, "2.00 GiB, in step 2, which was not recorded. Use --n-wait-steps 1 --n-warmup-steps 0"),
        (2 * GIB, 2 * GIB, 2 * GIB, "2.00 GiB, before its first step."),
    ],
)
def test_what_was_larger_at_another_time_is_said(before: int, until_then: int, at_end: int, words: str) -> None:
    said = highest(before, until_then, step=2, is_recorded=False).sentence(GIB, at_end)
    assert said.removeprefix("The script used more than the peak below: ").startswith(words) and bool(said) == bool(
        words
    )


def test_a_recorded_step_is_not_told_as_one_that_was_not() -> None:
    said = highest(0, 2 * GIB, step=3, is_recorded=True).sentence(GIB, 2 * GIB)
    assert said.endswith("2.00 GiB, in step 3, of which the recording has less.")


@pytest.mark.parametrize(
    ("counts", "sentence"),  # Before the first step, at the end of each, and at the script's
    [
        ((2, 2, 2, 2), ""),
        ((2, 2, 3, 3), "Memory ran out 1 time from step 2 on, and the script went on."),
        ((2, 2, 2, 4), "Memory ran out 2 times after the recorded steps."),
    ],
)
def test_errors_out_of_memory_that_the_script_caught_are_said(
    counts: tuple[int, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, *of_steps, at_end = counts
    monkeypatch.setattr(RAISED, "number", before)
    found = highest(0, GIB, step=1, is_recorded=True)
    for step, RAISED.number in enumerate(of_steps, 1):
        found.look(torch.device("cpu"), step, is_recorded=True)
    RAISED.number = at_end
    assert found.of_caught_errors() == sentence


def train(profile: ScriptProfile, num_steps: int, *, fails: bool = False) -> None:
    gc.collect()  # an optimizer of another test is one that takes part
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with profile:
        for _ in range(num_steps):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        if fails:
            raise ValueError("the data ran out")


def a_profile(folder: Path, *schedule: int, later: object = None, screen: Any = "full") -> ScriptProfile:
    given = {"voice": ScriptVoice(), "save_dir": folder, "schedule": Schedule(*schedule), "screen": screen, "top": 0}
    make_later = {} if later is None else {"make_later": MagicMock(side_effect=[later])}
    return ScriptProfile(partial(TrainingProfile, **given), **make_later)


def profiled(folder: Path, later: MagicMock | Exception) -> ScriptProfile:
    return a_profile(folder, 0, 0, 2, 1, later=later, screen=False)


@pytest.fixture
def cpu_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_run, "is_accelerator", lambda device: True)


@pytest.mark.usefixtures("cpu_tells")
@pytest.mark.parametrize("fails", by_default([False, True], {True}))
def test_what_comes_later_is_watched_to_the_end(fails: bool, tmp_path: Path) -> None:
    later = MagicMock()
    profile = profiled(tmp_path, later)
    try:
        train(profile, 7, fails=fails)
    except ValueError as error:
        assert later.__exit__.call_args.args[:2] == (ValueError, error)
    else:
        assert later.__exit__.call_args.args == (None, None, None)
    assert later.num_steps_done == 3, "its steps are numbered on"
    assert later.step.call_count == 4
    assert later.__enter__.call_count == later.__exit__.call_count == 1


@pytest.mark.usefixtures("cpu_tells")
def test_that_it_cannot_be_watched_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(profiled(tmp_path, ValueError("no such thing")), 7)
    assert "Note: What comes now is not watched: an internal fault." in capsys.readouterr().err


def test_on_the_cpu_nobody_tells_what_comes_later(tmp_path: Path) -> None:
    profile = profiled(tmp_path, MagicMock())
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with profile:
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert profile.later is None and profile.stage is ScriptStage.OVER
    assert not _global_optimizer_post_hooks, "nobody listens any more"


def test_what_an_earlier_run_has_said_goes(tmp_path: Path) -> None:
    (tmp_path / "watch.txt").write_text("out of memory")
    (tmp_path / "other.txt").touch()
    with TrainingWatch(
        nn.Linear(2, 2), voice=ScriptVoice(), is_later=True, save_dir=tmp_path, on_signal=None, screen=False
    ) as watch:
        watch.step()
    assert watch.explained_in is None, "that the script has ended is nothing to say"
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


LEAKS = """
import torch
history = []
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
for step in range(40):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    history.append(torch.empty(1 << 18))
    if step == last:
        raise ValueError("the data ran out")
print("the last line")
"""


@pytest.mark.parametrize("last", [-1, 35])
def test_the_report_of_a_watched_script_comes_once_and_last_and_knows_its_variables(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Resident memory is given: how much of a process is resident is not in a test's hands."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    seen = iter(range(100, 10_000))
    monkeypatch.setattr("tracer.capture.device.memory_counters.resident_bytes", lambda: next(seen) << 23)
    gc.collect()
    (tmp_path / "train.py").write_text(f"last = {last}\n{LEAKS}")
    profile = ScriptProfile(partial(TrainingWatch, voice=ScriptVoice(), save_dir=tmp_path / "out"))
    assert run_script(profile, Script(str(tmp_path / "train.py"), [])) == (last < 0)
    captured = capfd.readouterr()
    lines = captured.err.splitlines()
    assert "the last line" in captured.out or last >= 0
    (first,) = (at for at, line in enumerate(lines) if line.startswith("After step 32: Resident memory grows by"))
    assert lines[first + 1].endswith("The report follows when the script ends.")
    begins = "Step 37, ended by ValueError" if last >= 0 else "After step 40, the end of the run"
    told = captured.out.partition("the last line\n")[2] if last < 0 else captured.out
    assert told.startswith(begins) and captured.out.count(begins) == 1
    assert " ".join(told.split()).count("held by history[...] (global variable of") == 1
    assert "Traceback (most recent call last)" in captured.err or last < 0
    assert lines[-1].startswith("Files in ")


def test_a_script_that_runs_another_one_has_not_ended_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "train.py").write_text(
        f"import runpy\nrunpy.run_path({str(tmp_path / 'other.py')!r})\nstill_there = True\n"
    )
    profile = ScriptProfile(MagicMock())
    told = []
    profile.script_ended = lambda: told.append(hasattr(sys.modules["__main__"], "still_there"))  # type: ignore[method-assign]
    assert run_script(profile, Script(str(tmp_path / "train.py"), []))
    assert told == [True]


class Wrapping(torch.optim.Optimizer):
    """As accelerate's: an optimizer by its class, which torch has not set up, around another one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.optimizer.step()


@pytest.mark.parametrize("loop", by_default(["wrapped", "two", "twice", "no module", "by hand"], {"wrapped"}))
def test_the_peak_is_in_the_same_step_whatever_ends_a_step(
    loop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gc.collect()
    profile = a_profile(tmp_path, 0, 2, 7, 1)
    model, other = nn.Linear(64, 64), nn.Linear(64, 64)
    weight = nn.Parameter(torch.ones(64, 64))
    with profile:
        own = torch.optim.SGD([weight] if loop == "no module" else model.parameters()) if loop != "by hand" else None
        second = torch.optim.SGD(other.parameters()) if loop in ("two", "twice") else None
        wrapping = Wrapping(own) if loop == "wrapped" and own is not None else own
        for step in range(8):
            x = torch.ones(4096 if step == 2 else 8, 64)
            out = x @ weight if loop == "no module" else model(x)
            (other(out) if second is not None else out).square().sum().backward()
            if second is not None and (loop == "two" or step % 2):
                second.step()
            if wrapping is not None:
                wrapping.step()
            model.zero_grad()
    profile.tell()
    (said,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Peak: "))
    assert " of step 3;" in said, said
