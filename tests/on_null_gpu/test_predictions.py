"""The two engines of `predict` on the same questions: one answer, or torch's own is right."""

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


def test_both_engines_say_the_same_to_the_byte(elsewhere: Elsewhere) -> None:
    null, rehearsed = elsewhere(jobs_predictions.both, LAYERS)
    assert (null.engine, rehearsed.engine) == ("null GPU", "rehearsal")
    assert null.need.peak_allocated_bytes == rehearsed.need.peak_allocated_bytes == null.rows_bytes
    assert null.fits and rehearsed.fits


def test_what_does_not_fit_is_asked_what_it_would_need(elsewhere: Elsewhere) -> None:
    """The need is that of memory without end, and the place that of the card."""
    null, rehearsed = elsewhere(jobs_predictions.both, LAYERS, 200 * MIB)
    free, _ = elsewhere(jobs_predictions.both, LAYERS)
    assert null.fits is rehearsed.fits is False
    assert null.need == free.need and null.memory.peak_reserved_bytes <= 200 * MIB
    assert null.rows_bytes == null.need.peak_allocated_bytes
    assert null.failed_at is not None and rehearsed.failed_at is not None
    assert null.failed_at.step == rehearsed.failed_at.step


@pytest.mark.slow  # a trial of each engine for each batch: test_largest_batches.py has the search alone
def test_the_largest_batch_is_found_in_one_process(elsewhere: Elsewhere) -> None:
    null, rehearsed = elsewhere(jobs_predictions.largest_of_both, LAYERS, 700 * MIB)
    assert null == rehearsed > 16
    fits, lacks = (
        elsewhere(jobs_predictions.both, PredictedWorkload(**{**vars(LAYERS), "batch_size": size}), 700 * MIB)[0].fits
        for size in (null, null + 1)
    )
    assert fits is True and lacks is False


def test_a_model_on_the_meta_device_has_its_shared_weight_once(elsewhere: Elsewhere) -> None:
    workload = PredictedWorkload(
        model=f"{jobs_predictions.__name__}:tied", model_input=["64:int64:0-4096"], batch_size=2, loss="mean-square"
    )
    null, rehearsed = elsewhere(jobs_predictions.both, workload)
    assert null.need.peak_requested_bytes == pytest.approx(rehearsed.need.peak_requested_bytes, rel=0.02)


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
