# pdearena/pdearena#4; h100:3GiB
"""Trains a U-Net as a surrogate of a two-dimensional Navier-Stokes solver, and reports the means of its losses after an epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NavierStokes(Dataset):
    def __init__(self, trajectories, windows, history=2, size=256):
        self.fields = torch.rand(trajectories, 14, 3, size, size)
        self.windows, self.history = windows, history

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        start = i % (14 - self.history)
        fields = self.fields[i % len(self.fields)]
        return fields[start : start + self.history], fields[start + self.history : start + self.history + 1]


class Block(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.GELU())


class UNet(nn.Module):
    def __init__(self, history=2, fields=3, width=16):
        super().__init__()
        self.fields = fields
        self.inside = Block(history * fields, width)
        self.down = nn.ModuleList([Block(width, 2 * width), Block(2 * width, 4 * width), Block(4 * width, 8 * width)])
        self.up = nn.ModuleList([Block(12 * width, 4 * width), Block(6 * width, 2 * width), Block(3 * width, width)])
        self.outside = nn.Conv2d(width, fields, 1)

    def forward(self, x):
        x = self.inside(x.flatten(1, 2))
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return self.outside(x).unsqueeze(1)


def summed_mse(pred, target):
    return F.mse_loss(pred, target, reduction="none").sum(dim=(2, 3, 4)).mean()


class PDEModel(nn.Module):
    def __init__(self, scalar_components=1):
        super().__init__()
        self.model, self.scalar_components = UNet(), scalar_components

    def training_step(self, batch):
        x, y = batch
        pred = self.model(x)
        scalar_loss = summed_mse(pred[:, :, : self.scalar_components], y[:, :, : self.scalar_components])
        vector_loss = summed_mse(pred[:, :, self.scalar_components :], y[:, :, self.scalar_components :])
        loss = summed_mse(pred, y)
        return {"loss": loss, "scalar_loss": scalar_loss, "vector_loss": vector_loss}

    def training_epoch_end(self, outputs):
        return {key: torch.stack([output[key] for output in outputs]).mean().item() for key in outputs[0]}


class Trainer:
    def __init__(self, model, lr=2e-4):
        self.model = model.cuda()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def fit_epoch(self, loader):
        outputs = []
        for batch in loader:
            batch = [part.cuda(non_blocking=True) for part in batch]
            output = self.model.training_step(batch)
            self.optimizer.zero_grad()
            output["loss"].backward()
            self.optimizer.step()
            output["loss"] = output["loss"].detach()
            outputs.append(output)
        return self.model.training_epoch_end(outputs)


trainer = Trainer(PDEModel())
loader = DataLoader(NavierStokes(8, windows=90 * 16), batch_size=16)
for epoch in range(1):
    print(epoch, trainer.fit_epoch(loader))
