"""The process is as it was: after an import, after a session, after a command."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import main
from tracer.capture.profiler.quiet_profiler import quiet_profiler
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import profile_training

ROOT = Path(main.__file__).parent
LEVEL = "KINETO_LOG_LEVEL"


def state() -> dict[str, Any]:
    """What a program can see of its process and somebody else could have changed."""
    return {
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
        "path": list(sys.path),
        "random": torch.get_rng_state().tolist(),
        "threads": {thread.name for thread in threading.enumerate()},
        "collector": (gc.isenabled(), len(gc.callbacks), gc.get_threshold()),
        "gradients": torch.is_grad_enabled(),
        "hooks": (sys.excepthook, sys.getprofile(), sys.gettrace()),
        "folder": Path.cwd(),
    }


@pytest.fixture(autouse=True)
def no_level_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL, raising=False)


def loop(folder: Path, *, fails: bool = False, inside: list[dict[str, Any]] | None = None) -> object:
    """The session, for whom it must be put back although somebody still holds it."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with profile_training(model, optimizer, save_dir=folder, schedule=Schedule(0, 1, 1, 2)) as session:
        for step in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            session.step()
            if inside is not None:
                inside.append(state())
            if fails and step == 2:
                raise KeyError("bug")
    return session


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what differs; a thread that another test has left may end meanwhile."""
    after = after | {"threads": after["threads"] | before["threads"]}
    return [name for name in before if before[name] != after[name]]


@pytest.fixture
def all_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """torch's profiler imports packages at its first use that have effects of their own."""
    loop(tmp_path_factory.mktemp("first"))


@pytest.mark.usefixtures("all_imported")
@pytest.mark.parametrize("fails", [False, True])
def test_a_session_leaves_the_process_as_it_was(tmp_path: Path, fails: bool) -> None:
    torch.manual_seed(0)
    nn.Linear(4, 4)  # so that the random state is what the loop makes of it anyway
    expected = state()
    torch.manual_seed(0)
    frozen = gc.get_freeze_count()
    inside: list[dict[str, Any]] = []
    try:
        session = loop(tmp_path, fails=fails, inside=inside)
    except KeyError as error:
        session = error.__traceback__
    assert session is not None
    assert differing(expected, state()) == []
    assert gc.get_freeze_count() <= frozen
    assert {"environment", "warnings"} <= set(differing(expected, inside[0])), "or there is nothing to put back"


def test_torchs_remark_is_not_heard_while_a_session_runs(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        loop(tmp_path)
    assert not [each for each in heard if "clears events" in str(each.message)]


def test_what_others_change_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        before = list(warnings.filters)
        with quiet_profiler():
            warnings.filterwarnings("error", message="theirs")
            monkeypatch.setenv(LEVEL, "2")
        assert [item for item in warnings.filters if item not in before] == [warnings.filters[0]]
        assert warnings.filters[0][0] == "error"
    assert os.environ[LEVEL] == "2"


def test_what_the_user_has_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "0")
    with warnings.catch_warnings():
        with quiet_profiler():
            chosen = warnings.filters[0]
        assert chosen not in warnings.filters
        warnings.filters.insert(0, chosen)  # type: ignore[attr-defined]
        with quiet_profiler():
            assert os.environ[LEVEL] == "0"
        assert warnings.filters[0] == chosen
    assert os.environ[LEVEL] == "0"


@pytest.fixture
def seeded_process() -> Iterator[None]:
    """A command sets the seed of its process, and nothing else."""
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.usefixtures("seeded_process", "all_imported")
def test_a_command_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\nbuild = lambda: torch.nn.Linear(4, 4)\n")
    arguments = ["--model", f"{tmp_path / 'net.py'}:build", "--input", "4", "--device", "cpu", "--n-repeats", "1"]
    before = state()
    result = CliRunner().invoke(main.app, [*arguments, "--save-dir", str(tmp_path / "out"), "--no-cuda-timing"])
    assert result.exit_code == 0, result.output
    assert differing(before, state()) == ["random"]


@pytest.mark.slow  # a process that loads torch
def test_an_import_changes_nothing() -> None:
    """torch's own import is done before: it has warnings filtered."""
    program = """
import importlib, os, sys, warnings, numpy, rich, torch, torch.profiler, typer
before = dict(os.environ), list(warnings.filters), list(sys.path)
for module in ("tracer.sessions.timeline_tracer", "tracer.sessions.training_profile", "tracer.commands.app", "main"):
    importlib.import_module(module)
    assert before == (dict(os.environ), list(warnings.filters), list(sys.path)), module
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
