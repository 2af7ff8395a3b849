# Lightning-AI/pytorch-lightning#15514; h100:4GiB
"""An autoencoder of what shops sold: a vector of 12,000 goods for each day; a figure of each epoch is logged at its end."""

import lightning as L
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Baskets(Dataset):
    def __init__(self, batches, batch_size, goods):
        self.batches, self.batch_size, self.goods = batches, batch_size, goods

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        return torch.zeros(self.batch_size, self.goods)


class AutoEncoder(L.LightningModule):
    def __init__(self, goods, width=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(goods, width), nn.ReLU(), nn.Linear(width, 32))
        self.decoder = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, goods))
        self.training_step_outputs = []

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        x = batch
        loss = F.mse_loss(self(x), x)
        self.log("train_loss", loss)
        self.training_step_outputs.append({"loss": loss.detach(), "x": x})
        return loss

    def on_train_epoch_end(self):
        loss = torch.stack([output["loss"] for output in self.training_step_outputs]).mean()
        sold = torch.stack([output["x"].mean(0) for output in self.training_step_outputs]).mean(0)
        self.log("epoch_loss", loss)
        self.log("goods_sold", (sold > 0).float().mean())
        self.training_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    loader = DataLoader(Baskets(80, 1024, 12_000), batch_size=None)
    trainer = L.Trainer(max_epochs=2, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(AutoEncoder(12_000), loader)
    print(trainer.callback_metrics)
