"""Predictions on the null GPU: of models and of scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_null_gpu import jobs_predictions
from tests.on_null_gpu.jobs_predictions import MIB
from tests.truth.isolate import Elsewhere
from tracer.commands.workload_options import PredictedWorkload

LAYERS = PredictedWorkload(
    model=f"{jobs_predictions.__name__}:layers", model_input=["512x1024"], batch_size=16, optimizer="sgd"
)


def test_what_does_not_fit_is_asked_what_it_would_need(elsewhere: Elsewhere) -> None:
    """The need is that of memory without end, and the place that of the card."""
    told = elsewhere(jobs_predictions.model, LAYERS, 200 * MIB)
    free = elsewhere(jobs_predictions.model, LAYERS)
    assert told.fits is False and free.fits and free.rows_bytes == free.need.peak_allocated_bytes
    assert told.need == free.need and told.memory.peak_reserved_bytes <= 200 * MIB
    assert told.rows_bytes == told.need.peak_allocated_bytes
    assert told.failed_at is not None and told.failed_at.step == 0


@pytest.mark.slow  # a trial for each batch: test_changes_search.py has the search alone
def test_the_largest_batch_is_found_in_one_process(elsewhere: Elsewhere) -> None:
    largest = elsewhere(jobs_predictions.largest_batch, LAYERS, 700 * MIB)
    assert largest > 16
    fits, lacks = (
        elsewhere(jobs_predictions.model, PredictedWorkload(**{**vars(LAYERS), "batch_size": size}), 700 * MIB).fits
        for size in (largest, largest + 1)
    )
    assert fits is True and lacks is False


def test_a_model_on_the_meta_device_has_its_shared_weight_once(elsewhere: Elsewhere) -> None:
    workload = PredictedWorkload(
        model=f"{jobs_predictions.__name__}:tied", model_input=["64:int64:0-4096"], batch_size=2, loss="mean-square"
    )
    told = elsewhere(jobs_predictions.model, workload)
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
    ("before", "more", "steps", "num_steps"),
    [
        ("", "", 0, 3),  # the optimizer's state comes in the first step: the second and the third are alike
        ("kept = torch.empty(1 << 20, device='cuda') if number == 2 else None", "", 0, 4),  # not after the third
        ("", "+ number", 0, 10),
        ("", "", 6, 6),
    ],
)
def test_a_script_runs_until_its_memory_repeats(
    elsewhere: Elsewhere, tmp_path: Path, before: str, more: str, steps: int, num_steps: int
) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before=before, more=more), "utf-8")
    told = elsewhere(jobs_predictions.predict_file, file, steps)
    assert told is not None and told.fits
    assert told.num_steps in ((4, 5) if num_steps == 4 else (num_steps,))
    assert any("No two of them" in sentence for sentence in told.assumptions) == (num_steps == 10)
    assert told.rows_bytes == told.need.peak_allocated_bytes


def test_a_script_that_runs_out_of_memory_does_not_fit(elsewhere: Elsewhere, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before="held = torch.empty(40 << 30, dtype=torch.uint8, device='cuda')", more=""))
    told = elsewhere(jobs_predictions.predict_file, file)
    assert told is not None and told.fits is False
    assert told.failed_at is not None and told.failed_at.line is not None and told.failed_at.line.line == 6


def test_a_trial_has_the_peaks_of_the_prediction_and_records_nothing(elsewhere: Elsewhere, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before="", more=""), "utf-8")
    told, tried = elsewhere(jobs_predictions.predict_file, file), elsewhere(jobs_predictions.try_file, file)
    assert told is not None and tried == (True, told.need)


def test_a_trial_counts_what_there_was_as_memory_ran_out_before_the_model_is_called(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\nheld = [torch.empty(20 << 30, dtype=torch.uint8, device='cuda') for _ in range(9)]")
    succeeded, sizes = elsewhere(jobs_predictions.try_file, file)
    assert not succeeded and sizes is not None and sizes.peak_allocated_bytes == 60 << 30
    file.write_text("import torch\ntorch.ones(3, device='cuda')")
    assert elsewhere(jobs_predictions.try_file, file) == (True, None)
