"""Other people's training loops under `run --on`, unchanged: each is explained to the byte."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.null_gpu.started import called, needs_null_gpu

pytestmark = [needs_null_gpu, pytest.mark.slow]

TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}

sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
arguments = TrainingArguments(
    output_dir="out", max_steps=10, per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True,
    optim="adamw_torch_fused", dataloader_num_workers=1, eval_strategy="steps", eval_steps=5, save_steps=5,
    report_to=[], disable_tqdm=True, logging_steps=2,
)
model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **sizes))
Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens()).train()
"""
LIGHTNING = """
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("validation", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

loader = DataLoader(TensorDataset(torch.randn(160, 64), torch.randint(0, 10, (160,))), batch_size=16)
options = dict(max_epochs=1, precision="16-mixed", accelerator="gpu", devices=1)
lightning.Trainer(**options, logger=False, enable_progress_bar=False).fit(Classifier(), loader, loader)
"""


@pytest.mark.parametrize(
    ("packages", "script"),
    [
        pytest.param(("transformers", "accelerate"), TRAINER, id="Trainer"),
        pytest.param(("lightning",), LIGHTNING, id="Lightning"),
    ],
)
def test_it_is_explained_to_the_byte(packages: tuple[str, ...], script: str, tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in packages):
        pytest.skip(f"needs {', '.join(packages)}")
    (tmp_path / "train.py").write_text(script)
    ended = called(tmp_path, "run", "--on", "h100", "--save-dir", "found", "train.py")
    assert ended.returncode == 0, ended.stderr
    peak = json.loads((tmp_path / "found" / "peak.json").read_text())
    assert peak["unexplained_bytes"] == 0
    assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] == peak["peak_bytes"]
