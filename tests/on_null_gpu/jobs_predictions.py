"""Predictions in a process on the null GPU, and what of them the tests look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from tracer.commands.predict import OnNullGpu
from tracer.commands.workload_options import PredictedWorkload
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Card, Devices
from tracer.null_gpu.process import limited_to
from tracer.results.prediction import OutOfMemoryAt, Prediction, Sizes
from tracer.sessions.script_run import FirstStepsDone, ScriptProfile
from tracer.sessions.trials.bisections import largest_fitting
from tracer.sessions.trials.null_gpu_prediction import predict_script
from tracer.sessions.trials.script_trial import script_sizes

MIB = 1 << 20


@dataclass(frozen=True)
class Told:
    """A prediction: its sizes, and what stands beside them."""

    need: Sizes
    memory: Sizes
    fits: bool | None
    failed_at: OutOfMemoryAt | None
    rows_bytes: int
    assumptions: tuple[str, ...]
    num_steps: int


def _told(answer: Prediction) -> Told:
    rows = answer.findings.worst.peak.rows if answer.findings is not None else ()
    return Told(
        answer.need,
        answer.memory,
        answer.fits,
        answer.failed_at,
        sum(row.bytes for row in rows),
        answer.assumptions,
        answer.results.num_steps,
    )


def card_with(usable_bytes: int) -> Card:
    """A card whose allocator can reserve so much."""
    return replace(H100, memory_bytes=usable_bytes + CONTEXT_BYTES)


def model(workload: PredictedWorkload, usable_bytes: int | None = None) -> Told:
    """Predict a model on a card."""
    card = card_with(usable_bytes) if usable_bytes is not None else H100
    with limited_to(card.usable_bytes, 1):
        return _told(OnNullGpu(Devices(card)).predict(workload))


def largest_batch(workload: PredictedWorkload, usable_bytes: int) -> int:
    """The largest batch that fits."""
    card = card_with(usable_bytes)
    engine = OnNullGpu(Devices(card))
    with limited_to(card.usable_bytes, 1):
        return largest_fitting(
            lambda size: engine.trial(replace(workload, batch_size=size)), card.usable_bytes, workload.batch_size
        )


def predict_file(file: Path, num_steps: int = 0) -> Told | None:
    """What is said of a script."""
    torch.cuda.reset_peak_memory_stats()
    devices = Devices(card_with(64 << 30))
    answer = predict_script(lambda profile: _ran(file, profile), devices, num_steps=num_steps, settings={})
    return None if answer is None else _told(answer)


def try_file(file: Path, num_steps: int = 0) -> tuple[bool, Sizes | None]:
    """Whether a script came to its end, and its peaks, by counters alone."""
    torch.cuda.reset_peak_memory_stats()
    ran: list[bool] = []

    def run(profile: ScriptProfile) -> bool:
        ran.append(_ran(file, profile))
        return ran[-1]

    counted = script_sizes(run, num_steps=num_steps)
    return (counted is None or counted.has_fit), None if counted is None else counted.sizes


def _ran(file: Path, profile: ScriptProfile) -> bool:
    try:
        with profile:
            exec(compile(file.read_text("utf-8"), str(file), "exec"), {"__name__": "__main__"})
    except FirstStepsDone:
        return True
    except torch.OutOfMemoryError:
        return False
    return True


def tied() -> nn.Module:
    """An embedding and an output layer with one weight, on the meta device."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4096, 256)
            self.output = nn.Linear(256, 4096, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.output(self.embedding(ids))
            return result

    with torch.device("meta"):
        return Tied()


def layers() -> nn.Module:
    """Four layers, whose activations are most of what a large batch needs."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)))
