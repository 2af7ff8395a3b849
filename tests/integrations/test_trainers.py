"""The callbacks, with the real trainers of other people, on tiny models built from configs: nothing is downloaded."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.processes import run_python
from tests.skips import by_default
from tracer.exporters.recording_file.kept_run_file import load_kept_run
from tracer.sessions.schedule import Schedule

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SHORT = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
ROOT = Path(__file__).resolve().parents[2]


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def check(callback: Any, folder: Path, num_steps: int) -> None:
    peak = json.loads((folder / "peak.json").read_text())
    assert sum(row["bytes"] for row in peak["rows"]) == peak["peak_bytes"] == peak["allocator_peak_bytes"]
    assert callback.session.num_steps_done == num_steps
    assert callback.session.results.unused_parameters == ()
    assert {"PARAMETER", "OPTIMIZER_STATE"} <= {row["category"] for row in peak["rows"]}


# ---- transformers ----------------------------------------------------------------------------------------------------


def hf_trainer(tmp_path: Path, *callbacks: Any, **arguments: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0)
    settings = TrainingArguments(
        str(tmp_path / "checkpoints"),
        max_steps=5,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **arguments,
    )
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(32, (32, 8))]
    return Trainer(GPT2LMHeadModel(config), settings, train_dataset=data, callbacks=list(callbacks))


@needs("transformers", "accelerate")
@pytest.mark.slow
def test_a_trainer_that_raised_is_closed_by_hand_or_at_the_next_beginning(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from tracer.integrations.transformers import TimelineCallback

    class Raises(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise ValueError("enough")

    callback = TimelineCallback(tmp_path / "out", schedule=SHORT)
    with pytest.raises(ValueError, match="enough"):
        hf_trainer(tmp_path, callback, Raises()).train()
    assert list((tmp_path / "out").iterdir()) == []  # it is there, so that no other session takes it
    callback.close()
    check(callback, tmp_path / "out", 3)
    callback.close()


# ---- lightning, which takes some seconds to load: slow ---------------------------------------------------------------


def lightning_module(at: int = -1) -> Any:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == at:
                raise ValueError("enough")
            samples, labels = batch
            return nn.functional.cross_entropy(self.layers(samples), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    torch.manual_seed(0)
    return Classifier()


def lightning_fit(module: Any, *callbacks: Any, **options: Any) -> None:
    import lightning

    torch.manual_seed(1)
    data = [(torch.randn(8), int(torch.randint(4, ()))) for _ in range(64)]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))  # type: ignore[arg-type]


@needs("lightning")
@pytest.mark.slow
def test_a_lightning_step_has_phases_though_the_optimizer_calls_it(tmp_path: Path) -> None:
    """With automatic optimization all of `training_step` and backward runs inside `optimizer.step(closure)`."""
    import lightning

    from tracer.integrations.lightning import TimelineCallback

    class Wide(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 4), nn.Unflatten(1, (4, 1)), nn.Upsample(scale_factor=4096))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            samples, _ = batch
            return self.layers(samples.clamp(-1, 1)).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    callback = TimelineCallback(tmp_path / "out", schedule=SHORT)
    lightning_fit(Wide(), callback)
    assert callback.session.results.unused_parameters == ()
    findings = callback.session.findings.worst
    assert findings.peak.phase == "backward"
    rows = {(row.op, row.phase) for row in findings.peak.rows if row.op is not None}
    assert ("aten::clamp", "other") in rows
    assert not [row for row in rows if row[1] == "optimizer"]
    assert [one.phase for one in findings.source.step_phases] == ["forward", "backward", "optimizer"] * 2


@needs("lightning")
@pytest.mark.slow
def test_a_lightning_training_that_raises_leaves_its_files(tmp_path: Path) -> None:
    from tracer.integrations.lightning import TimelineCallback

    callback = TimelineCallback(tmp_path / "out", schedule=SHORT)
    with pytest.raises(ValueError, match="enough"):
        lightning_fit(lightning_module(at=3), callback)
    check(callback, tmp_path / "out", 3)
    assert str(callback.session.results.failure.error) == "enough"


# ---- both ------------------------------------------------------------------------------------------------------------


def trained_by(trainer: str, folder: Path, *callbacks: Any, accumulate: int = 1) -> nn.Module:
    """The model that this trainer has trained, from one seed."""
    if trainer == "transformers":
        trained = hf_trainer(folder, *callbacks, gradient_accumulation_steps=accumulate)
        trained.train()
        return trained.model  # type: ignore[no-any-return]
    module: nn.Module = lightning_module()
    lightning_fit(module, *callbacks, accumulate_grad_batches=accumulate)
    return module


# Each with the name of one of its parameters.
BOTH = pytest.mark.parametrize(
    ("trainer", "parameter"),
    [
        pytest.param("transformers", "transformer.wte.weight", marks=needs("transformers", "accelerate")),
        pytest.param("lightning", "layers.0.weight", marks=[needs("lightning"), pytest.mark.slow]),
    ],
)


def callback_of(trainer: str, name: str, *arguments: Any, **options: Any) -> Any:
    return getattr(importlib.import_module(f"tracer.integrations.{trainer}"), name)(*arguments, **options)


@BOTH
@pytest.mark.parametrize("accumulate", by_default([1, 2], {2}))
def test_a_training_is_profiled_step_by_step(trainer: str, parameter: str, accumulate: int, tmp_path: Path) -> None:
    callback = callback_of(trainer, "TimelineCallback", tmp_path / "out", schedule=SHORT, keep_recording=True)
    trained_by(trainer, tmp_path, callback, accumulate=accumulate)
    check(callback, tmp_path / "out", 5)
    assert load_kept_run(tmp_path / "out" / "recording.npz").num_steps == 5
    assert {"batch[0]", parameter, f"{parameter}.exp_avg"} <= set(
        callback.session.observed.storages.observations().names
    )


@BOTH
@pytest.mark.slow
def test_a_training_is_watched_to_its_end(trainer: str, parameter: str, tmp_path: Path) -> None:
    callback = callback_of(trainer, "WatchCallback", tmp_path / "out", screen="none")
    trained_by(trainer, tmp_path, callback)
    values = json.loads((tmp_path / "out" / "watch.json").read_text())
    assert callback.session.fault is None
    assert (values["event"]["what"], values["event"]["step"]) == ("the end of the run", 5)
    assert values["steps"]["step"] == [1, 2, 3, 4, 5]


def test_neither_is_imported_unless_asked_for() -> None:
    program = (
        "import sys, tracer\ntracer.profile_training\nimport tracer.integrations\n"
        "print([name for name in ('transformers', 'lightning') if name in sys.modules])"
    )
    run = run_python("-c", program, folder=ROOT)
    assert run.stdout.strip() == "[]", run.stderr
