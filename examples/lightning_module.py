"""A Lightning module, and the callback that profiles its training.

python examples/lightning_module.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the case that the program is not on the path

from tracer.integrations.lightning import TimelineCallback


class Classifier(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        samples, labels = batch
        return nn.functional.cross_entropy(self.layers(samples), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters())


def main(save_dir: str = "profiler_outputs") -> None:
    """Train for 12 steps."""
    data = [(torch.randn(32), int(torch.randint(10, ()))) for _ in range(96)]
    trainer = lightning.Trainer(
        max_steps=12,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TimelineCallback(save_dir, screen=True)],
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main(*sys.argv[1:2])
