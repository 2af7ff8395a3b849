"""Lightning: 16-mixed, validation, a checkpoint."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("validation", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


loader = DataLoader(TensorDataset(torch.randn(160, 64), torch.randint(0, 10, (160,))), batch_size=16)
trainer = lightning.Trainer(
    max_epochs=1, precision="16-mixed", accelerator="gpu", devices=1, logger=False, enable_progress_bar=False
)
trainer.fit(Classifier(), loader, loader)
