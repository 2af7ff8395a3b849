"""Figures of a peak in other people's loggers, read back by their own libraries where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tracer.errors import UsageError
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile, profile_training


def trained(folder: Path, log_to: object) -> TrainingProfile:
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with profile_training(
        model, optimizer, save_dir=folder, schedule=Schedule(0, 0, 1, 1), screen=False, log_to=log_to
    ) as session:
        for _ in range(2):
            model(torch.ones(8, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    return session


def expected(session: TrainingProfile) -> dict[str, int]:
    totals: dict[str, int] = {}
    for row in session.rows:
        name = f"gpu_memory/peak/{row.category.lower()}_bytes"
        totals[name] = totals.get(name, 0) + row.bytes
    return {"gpu_memory/peak_bytes": session.peak_bytes, **totals}


class Writer:
    """A SummaryWriter's methods that are used."""

    def __init__(self, error: Exception | None = None) -> None:
        self.scalars: dict[str, tuple[int, int]] = {}
        self.texts: list[str] = []
        self.error = error

    def add_scalar(self, name: str, value: int, step: int) -> None:
        if self.error is not None:
            raise self.error
        self.scalars[name] = (value, step)

    def add_text(self, name: str, text: str, step: int) -> None:
        self.texts.append(text)

    def flush(self) -> None:
        pass


def test_the_peak_its_categories_and_phases_are_logged_once_to_each(tmp_path: Path) -> None:
    writers = Writer(), Writer()
    session = trained(tmp_path, list(writers))
    for writer in writers:
        values = {name: value for name, (value, _) in writer.scalars.items()}
        assert expected(session).items() <= values.items()
        phases = {name: value for name, value in values.items() if "/phase/" in name}
        assert set(phases) == {f"gpu_memory/phase/{phase}_bytes" for phase in ("forward", "backward", "optimizer")}
        assert max(phases.values()) == session.peak_bytes
        assert {step for _, step in writer.scalars.values()} == {2}
        assert writer.texts == [str(tmp_path / "memory_timeline.html")]


def test_what_a_logger_raises_is_a_warning_and_files_are_there(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not be logged: ValueError: no room"):
        session = trained(tmp_path, Writer(ValueError("no room")))
    assert session.peak_bytes > 0 and (tmp_path / "peak.json").exists()


@pytest.mark.parametrize(
    ("log_to", "says"),
    [
        ("comet", "There is no logger 'comet'"),
        ("wandb", "no active run of wandb"),
        ("mlflow", "no active run of mlflow"),
        (3, "Nothing can be logged to a int"),
    ],
)
def test_what_cannot_be_logged_to_is_said_before_anything_runs(
    log_to: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: None))
    with pytest.raises(UsageError, match=says) as caught:
        trained(tmp_path / "new", log_to)
    assert caught.value.hint


@pytest.mark.slow
def test_tensorboard_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    session = trained(tmp_path, "tensorboard")
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    values = {name: int(read.Scalars(name)[0].value) for name in read.Tags()["scalars"]}
    assert expected(session).items() <= values.items()
    assert "gpu_memory/page/text_summary" in read.Tags()["tensors"]


@pytest.mark.slow
def test_mlflow_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    experiment = mlflow.create_experiment("tests", artifact_location=(tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        session = trained(tmp_path / "profile", "mlflow")
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert expected(session).items() <= metrics.items()
    assert [path.name for path in tmp_path.rglob("artifacts/**/*.html")] == ["memory_timeline.html"]


WANDB = """
import json, sys
from pathlib import Path
import wandb
from tests.exporters.test_loggers import expected, trained
with wandb.init(mode="offline", dir=sys.argv[1], project="tests") as run:
    run.log({"loss": 1.0})
    session = trained(Path(sys.argv[1]) / "profile", "wandb")
    run.log({"loss": 0.5})
    assert run.step == 2, run.step
    assert {name: run.summary[name] for name in expected(session)} == expected(session)
print("read")
"""


@pytest.mark.slow
def test_wandb_has_them_and_its_steps_are_the_loops(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "WANDB_SILENT": "true", "WANDB_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", WANDB, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "read" in done.stdout, done.stderr[-2000:]
