"""Figures of a peak for TensorBoard, Weights & Biases and MLflow, each by its own library.

Where a library counts steps, its count stays as it is: W&B has the figures in the run's summary, MLflow and TensorBoard
with the number of steps that had ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tracer.analysis.profiles.findings import Findings
from tracer.errors import MissingPackageError, UsageError

Log = Callable[[Mapping[str, int], int, Path | None], None]
"""Takes figures by name, the number of steps, and the page if it was written."""

_PREFIX = "gpu_memory"


def scalars(findings: Findings) -> dict[str, int]:
    """Bytes by name: the largest peak, of it each category, and the most of each phase of its step."""
    peak = findings.worst.peak
    figures = {f"{_PREFIX}/peak_bytes": peak.peak_bytes}
    if peak.reserved_bytes:
        figures[f"{_PREFIX}/reserved_bytes"] = peak.reserved_bytes
    figures |= {f"{_PREFIX}/peak/{name.lower()}_bytes": size for name, size in peak.by_category().items()}
    for phase in findings.worst.step_phases:
        if phase.step == (peak.step or phase.step):
            name = f"{_PREFIX}/phase/{phase.phase}_bytes"
            figures[name] = max(figures.get(name, 0), phase.peak_bytes)
    return figures


def loggers(log_to: object, folder: Path) -> tuple[Log, ...]:
    """Return the loggers that `log_to` names.

    Args:
        log_to: `"tensorboard"`, which writes to the folder, `"wandb"` or `"mlflow"` for the active run, a SummaryWriter
            or a run of `wandb.init()`; several as a list; None for none.

    Raises:
        UsageError: There is no such logger, or no run is active.
        MissingPackageError: Its package is not installed.
    """
    if log_to is None:
        return ()
    if isinstance(log_to, Sequence) and not isinstance(log_to, str):
        return tuple(logger for part in log_to for logger in loggers(part, folder))
    if isinstance(log_to, str):
        if log_to not in _BY_NAME:
            raise UsageError(f"There is no logger {log_to!r}.", hint=f"Use {', '.join(_BY_NAME)}, or a writer or run.")
        return (_BY_NAME[log_to](folder),)
    if hasattr(log_to, "add_scalar"):
        return (partial(_to_tensorboard, log_to),)
    if hasattr(log_to, "log_artifact") and hasattr(log_to, "summary"):
        return (partial(_to_wandb, log_to),)
    raise UsageError(f"Nothing can be logged to a {type(log_to).__name__}.", hint=f"Use {', '.join(_BY_NAME)}.")


def _to_tensorboard(writer: Any, figures: Mapping[str, int], num_steps: int, page: Path | None) -> None:
    for name, value in figures.items():
        writer.add_scalar(name, value, num_steps)
    if page is not None:
        writer.add_text(f"{_PREFIX}/page", str(page), num_steps)
    writer.flush()


def _to_wandb(run: Any, figures: Mapping[str, int], num_steps: int, page: Path | None) -> None:
    run.summary.update(dict(figures))
    if page is not None:
        artifact = import_module("wandb").Artifact(f"memory-timeline-{run.id}", type="memory-timeline")
        artifact.add_file(str(page))
        run.log_artifact(artifact)


def _to_mlflow(mlflow: Any, run_id: str, figures: Mapping[str, int], num_steps: int, page: Path | None) -> None:
    client = mlflow.MlflowClient()
    for name, value in figures.items():
        client.log_metric(run_id, name, float(value), step=num_steps)
    if page is not None:
        client.log_artifact(run_id, str(page), "memory")


def _new_tensorboard(folder: Path) -> Log:
    try:
        writer = import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        raise MissingPackageError(
            'log_to="tensorboard" needs tensorboard.', hint="Install it, or pass a writer."
        ) from None

    def log(figures: Mapping[str, int], num_steps: int, page: Path | None) -> None:
        with writer(str(folder)) as tensorboard:
            _to_tensorboard(tensorboard, figures, num_steps, page)

    return log


def _active_wandb(folder: Path) -> Log:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        raise UsageError("There is no active run of wandb.", hint="Call wandb.init() before, or pass its run.")
    return partial(_to_wandb, run)


def _active_mlflow(folder: Path) -> Log:
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or mlflow.active_run() is None:
        raise UsageError("There is no active run of mlflow.", hint="Begin one before: `with mlflow.start_run(): ...`")
    return partial(_to_mlflow, mlflow, mlflow.active_run().info.run_id)


_BY_NAME: dict[str, Callable[[Path], Log]] = {
    "tensorboard": _new_tensorboard,
    "wandb": _active_wandb,
    "mlflow": _active_mlflow,
}
