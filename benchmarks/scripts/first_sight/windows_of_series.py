# Nixtla/neuralforecast#783; h100:4GiB
"""A network learns to forecast a long series with columns that are known in advance; each step draws some windows of it."""

import lightning
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class TimeSeriesDataset(Dataset):
    def __init__(self, rows, columns):
        self.temporal = torch.rand(1, columns, rows)

    def __len__(self):
        return len(self.temporal)

    def __getitem__(self, index):
        return {"temporal": self.temporal[index]}


class Block(nn.Module):
    def __init__(self, inlet, outlet, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inlet, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.backcast, self.forecast = nn.Linear(width, inlet), nn.Linear(width, outlet)

    def forward(self, x):
        y = self.layers(x)
        return self.backcast(y), self.forecast(y)


class NHITS(lightning.LightningModule):
    def __init__(self, h=24, input_size=96, columns=12, windows_batch_size=1024, step_size=1, width=512, blocks=3):
        super().__init__()
        self.h, self.input_size, self.columns = h, input_size, columns
        self.windows_batch_size, self.step_size = windows_batch_size, step_size
        inlet = input_size + (input_size + h) * (columns - 1)
        self.blocks = nn.ModuleList([Block(inlet, h, width) for _ in range(blocks)])

    def _create_windows(self, batch):
        window_size = self.input_size + self.h
        windows = batch["temporal"].unfold(dimension=-1, size=window_size, step=self.step_size)
        windows = windows.permute(0, 2, 3, 1).contiguous()
        windows = windows.view(-1, window_size, self.columns)
        chosen = torch.randint(0, len(windows), (self.windows_batch_size,), device=windows.device)
        return windows[chosen]

    def _normalize(self, windows):
        past = windows[:, : self.input_size]
        shift, scale = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        return (windows - shift) / scale

    def forward(self, past, exogenous):
        residual, forecast = torch.cat([past, exogenous.flatten(1)], 1), 0
        for block in self.blocks:
            backcast, part = block(residual)
            residual, forecast = residual - backcast, forecast + part
        return forecast

    def training_step(self, batch, batch_index):
        windows = self._normalize(self._create_windows(batch))
        past, future, exogenous = windows[:, : self.input_size, 0], windows[:, self.input_size :, 0], windows[..., 1:]
        loss = F.l1_loss(self(past, exogenous), future)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


model = NHITS()
loader = DataLoader(TimeSeriesDataset(700_000, 12), batch_size=1)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=1,
    max_steps=6,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
print(trainer.callback_metrics["train_loss"].item())
