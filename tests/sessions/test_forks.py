"""Only the process that began a session ends it: a forked child is silent, writes nothing and ends as it would have."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.processes import run_python
from tracer.sessions.folder import OwnFolder
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import profile_training
from tracer.sessions.training_watch import watch_training

ROOT = Path(__file__).resolve().parents[2]
PLAN = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=2, num_repeats=1)

SCRIPT = """
import os, sys, torch
from torch import nn
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
def step():
    model(torch.randn(4, 8)).sum().backward(); optimizer.step(); optimizer.zero_grad()
for number in range(6):
    step()
    if number == 1 and os.fork() == 0:
        step(); step()
        print("child trained", flush=True)
        sys.exit(7)
    if number == 1:
        print("status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    if number == 2 and os.fork() == 0:
        break  # ends with the script
    if number == 2:
        os.wait()
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--watch",), marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_child_that_exits_ends_itself_alone(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = run_python(ROOT / "main.py", "run", *options, "--save-dir", "out", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("child trained") == 1
    assert "status 7" in done.stdout
    if options:
        columns = json.loads((tmp_path / "out" / "watch.json").read_text())["steps"]
        assert {len(column) for column in columns.values()} == {6}
        assert done.stderr.count("Files in out: ") == 1
    else:
        assert done.stdout.count("Peak: ") == 1
        assert "Traceback" not in done.stderr
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_dir()]


def in_child(work: Callable[[], Any]) -> Any:
    """What a forked child finds, which ends right after."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as file:
        return json.loads(file.read())


@pytest.mark.parametrize("begin", [profile_training, watch_training])
def test_a_child_that_leaves_the_block_leaves_nothing_else(begin: Any, tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    plan = {"schedule": PLAN} if begin is profile_training else {}
    session = begin(model, optimizer, save_dir=tmp_path, screen="none", **plan)

    def train() -> None:
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step()

    def leave() -> Any:
        with torch.no_grad():  # autograd's threads, which other tests have begun, are not in a child
            model(torch.randn(4, 8))
        session.step()
        session.__exit__(SystemExit, SystemExit(3), None)
        return [len(list(model._forward_pre_hooks.items())), sorted(path.name for path in tmp_path.iterdir())]

    with session:
        train()
        train()
        assert in_child(leave) == [0, []]
        train()
        train()
    assert tmp_path.joinpath("peak.json" if plan else "watch.json").exists()


def test_parent_and_child_that_both_train_share_no_folder(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)

    def watch() -> Any:
        with watch_training(model, save_dir=tmp_path, screen="none") as watch:
            watch.step()
        return [str(watch.folder.relative_to(tmp_path)), os.getpid()]

    with watch_training(model, save_dir=tmp_path, screen="none") as session:
        session.step()
        folder, pid = in_child(watch)
        assert folder == f"process{pid}"
        assert (tmp_path / folder / "watch.json").exists() and not (tmp_path / "watch.json").exists()
    assert (session.folder, (tmp_path / "watch.json").exists()) == (tmp_path, True)
    assert in_child(watch)[0] == "."


def test_two_sessions_of_one_process_share_none_either(tmp_path: Path) -> None:
    first, second, third = (OwnFolder(tmp_path / "out") for _ in range(3))
    assert first.take() == tmp_path / "out"
    assert second.take() == tmp_path / "out" / f"process{os.getpid()}"
    assert third.take() == tmp_path / "out" / f"process{os.getpid()}_2"
    for folder in (third, second, first):
        folder.release()
    assert not (tmp_path / "out").exists(), "nothing was written"
