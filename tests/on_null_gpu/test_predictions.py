"""Predictions on the null GPU: of models and of scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.truth.isolate import Elsewhere, runs_elsewhere
from tracer.answers.prediction import Prediction, Sizes
from tracer.commands.predict import predict_workload
from tracer.commands.workload_options import WorkloadOptions
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Card, Devices
from tracer.null_gpu.process import limited_to
from tracer.sessions.script_run import FirstStepsDone, ScriptProfile
from tracer.sessions.trials.null_gpu_prediction import predict_script
from tracer.sessions.trials.script_trial import script_sizes

MIB = 1 << 20


def rows_bytes(answer: Prediction) -> int:
    """What its rows sum to."""
    return sum(row.bytes for row in answer.findings.worst.peak.rows) if answer.findings is not None else 0


def card_with(usable_bytes: int) -> Card:
    """A card whose allocator can reserve so much."""
    return replace(H100, memory_bytes=usable_bytes + CONTEXT_BYTES)


def model(workload: WorkloadOptions, usable_bytes: int | None = None) -> Prediction:
    """Predict a model on a card."""
    card = card_with(usable_bytes) if usable_bytes is not None else H100
    with limited_to(card.usable_bytes, 1):
        return predict_workload(workload, Devices(card))


def predict_file(file: Path) -> Prediction:
    """Predict a script."""
    torch.cuda.reset_peak_memory_stats()
    devices = Devices(card_with(64 << 30))
    answer = predict_script(lambda profile: _ran(file, profile), devices, settings={})
    assert answer is not None
    return answer


def try_file(file: Path) -> tuple[bool, Sizes | None]:
    """Return whether a script came to its end, and its peaks, by counters alone."""
    torch.cuda.reset_peak_memory_stats()
    ran: list[bool] = []

    def run(profile: ScriptProfile) -> bool:
        ran.append(_ran(file, profile))
        return ran[-1]

    counted = script_sizes(run)
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


LAYERS = WorkloadOptions(model=f"{__name__}:layers", inputs=["512x1024"], batch_size=16, optimizer="sgd")


@pytest.mark.slow
@runs_elsewhere
def test_what_does_not_fit_is_asked_what_it_would_need() -> None:
    """The need is that of memory without end, and the place that of the card."""
    told, free = model(LAYERS, 200 * MIB), model(LAYERS)
    assert told.fits is False and free.fits and rows_bytes(free) == free.need.peak_allocated_bytes
    assert told.need == free.need and told.memory.peak_reserved_bytes <= 200 * MIB
    assert rows_bytes(told) == told.need.peak_allocated_bytes
    assert told.failed_at is not None and told.failed_at.step == 0


@runs_elsewhere
def test_a_model_on_the_meta_device_has_its_shared_weight_once() -> None:
    workload = WorkloadOptions(model=f"{__name__}:tied", inputs=["64:int64:0-4096"], batch_size=2, loss="mean-square")
    told = model(workload)
    # The weight, its gradient and two averages are 4 MiB each; logits, their gradient and what is between are 2 MiB.
    assert 4 * (4 << 20) <= told.need.peak_requested_bytes - 3 * (8 << 20) <= 5 * (4 << 20) + (8 << 20)


LOOP = """
import torch
net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for number in range(100):
    {before}
    loss = net(torch.randn(64 {more}, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("before", "more", "num_steps"),
    [
        ("", "", 3),  # the optimizer's state comes in the first step: the second and the third are alike
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("kept = torch.empty(1 << 20, device='cuda') if number == 2 else None", "", 4),  # not after the third
                ("", "+ number", 10),
            )
        ),
    ],
)
@runs_elsewhere
def test_a_script_runs_until_its_memory_repeats(tmp_path: Path, before: str, more: str, num_steps: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before=before, more=more), "utf-8")
    told = predict_file(file)
    assert told.fits and told.results.num_steps in ((4, 5) if num_steps == 4 else (num_steps,))
    assert any("No two of them" in sentence for sentence in told.assumptions) == (num_steps == 10)
    assert rows_bytes(told) == told.need.peak_allocated_bytes


@runs_elsewhere
def test_a_script_that_runs_out_of_memory_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before="held = torch.empty(40 << 30, dtype=torch.uint8, device='cuda')", more=""))
    told = predict_file(file)
    assert (
        told.fits is False
        and told.failed_at is not None
        and told.failed_at.line is not None
        and told.failed_at.line.line == 6
    )


@runs_elsewhere
def test_a_trial_has_the_peaks_of_the_prediction_and_records_nothing(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before="", more=""), "utf-8")
    assert try_file(file) == (True, predict_file(file).need)


def test_a_trial_counts_what_there_was_as_memory_ran_out_before_the_model_is_called(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\nheld = [torch.empty(20 << 30, dtype=torch.uint8, device='cuda') for _ in range(9)]")
    succeeded, sizes = elsewhere(try_file, file)
    assert not succeeded and sizes is not None and sizes.peak_allocated_bytes == 60 << 30
    file.write_text("import torch\ntorch.ones(3, device='cuda')")
    assert elsewhere(try_file, file) == (True, None)
