"""Predictions in a process on the null GPU, and what of them the tests look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from tracer.commands.predict_engines import Engine, OnNullGpu, Rehearsed
from tracer.commands.workload_options import PredictedWorkload
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Card, Devices
from tracer.null_gpu.limit import limited_to
from tracer.results.prediction import OutOfMemoryAt, Prediction, Sizes
from tracer.runs.largest import largest_fitting
from tracer.runs.null_prediction import predict_script
from tracer.runs.null_trial import script_sizes
from tracer.runs.script_run import FirstStepsDone, ScriptProfile

MIB = 1 << 20


@dataclass(frozen=True)
class Told:
    """A prediction: its sizes, and what stands beside them."""

    engine: str
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
        answer.engine,
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


def both(workload: PredictedWorkload, usable_bytes: int | None = None) -> tuple[Told, Told]:
    """What the null GPU says, and a rehearsal for the same card."""
    card = card_with(usable_bytes) if usable_bytes is not None else H100
    with limited_to(card.usable_bytes, 1):
        null = OnNullGpu(Devices(card)).predict(workload)
    return _told(null), _told(Rehearsed(card, None, "cuda").predict(workload))


def largest_of_both(workload: PredictedWorkload, usable_bytes: int) -> tuple[int, int]:
    """The largest batch that fits, by either engine."""
    card = card_with(usable_bytes)

    def largest(engine: Engine) -> int:
        return largest_fitting(
            lambda size: engine.trial(replace(workload, batch_size=size)), card.usable_bytes, workload.batch_size
        )

    with limited_to(card.usable_bytes, 1):
        null = largest(OnNullGpu(Devices(card)))
    return null, largest(Rehearsed(card, None, "cuda"))


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

    sizes = script_sizes(run, num_steps=num_steps)
    return ran[-1], sizes


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
