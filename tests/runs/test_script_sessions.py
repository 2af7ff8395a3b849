"""What a script's sessions say beside the answer: more memory at another time, and what comes after the recording."""

from __future__ import annotations

import gc
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from tracer.runs import script_run
from tracer.runs.script_run import ScriptProfile
from tracer.runs.script_sessions import LaterWatch, ScriptTraining, larger_elsewhere
from tracer.runs.session import Schedule

GIB = 1 << 30


@pytest.mark.parametrize(
    ("before", "until_then", "at_end", "words"),
    [
        (0, GIB, GIB, ""),
        (GIB, GIB, int(1.009 * GIB), ""),
        (GIB, GIB, 2 * GIB, "2.00 GiB, after the recorded steps. Use --n-wait-steps to record later ones."),
        (GIB, 2 * GIB, 3 * GIB, "3.00 GiB, after the recorded steps. Use --n-wait-steps to record later ones."),
        (0, 2 * GIB, 2 * GIB, "2.00 GiB, in a step that was not recorded. Use --n-wait-steps 0"),
        (2 * GIB, 2 * GIB, 2 * GIB, "2.00 GiB, before its first step."),
    ],
)
def test_what_was_larger_at_another_time_is_said(before: int, until_then: int, at_end: int, words: str) -> None:
    said = larger_elsewhere(GIB, before, until_then, at_end)
    assert said.removeprefix("The script used more than the peak below: ").startswith(words) and bool(said) == bool(
        words
    )


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


def profiled(folder: Path, later: MagicMock | Exception) -> ScriptProfile:
    return ScriptProfile(
        lambda models, optimizers: ScriptTraining(
            models, optimizers, save_dir=folder, schedule=Schedule(0, 0, 2, 1), screen=False
        ),
        make_later=MagicMock(side_effect=[later]),
    )


@pytest.fixture
def cpu_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_run, "is_accelerator", lambda device: True)


@pytest.mark.usefixtures("cpu_tells")
@pytest.mark.parametrize("fails", [False, True])
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
        assert profile.later is None
        assert profile._unhook_optimizers is script_run._nothing, "nobody listens any more"


def test_what_an_earlier_run_has_said_goes(tmp_path: Path) -> None:
    (tmp_path / "watch.txt").write_text("out of memory")
    (tmp_path / "other.txt").touch()
    with LaterWatch(nn.Linear(2, 2), save_dir=tmp_path, on_signal=None, screen=False) as watch:
        watch.step()
    assert watch.explained_in is None, "that the script has ended is nothing to say"
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]
