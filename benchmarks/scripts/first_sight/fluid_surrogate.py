# pdearena/pdearena#4; h100:4GiB
"""Trains a U-Net as a surrogate of smoke in a box: a scalar field and a velocity, a few steps ahead."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class NavierStokes(Dataset):
    def __init__(self, trajectories=512, history=4, future=4, size=128, device="cuda"):
        self.fields = torch.randn(16, history + future, 3, size, size, device=device)
        self.trajectories, self.history = trajectories, history

    def __len__(self):
        return self.trajectories

    def __getitem__(self, i):
        fields = self.fields[i % len(self.fields)]
        return fields[: self.history], fields[self.history :]


def block(inp, out):
    return nn.Sequential(nn.Conv2d(inp, out, 3, padding=1), nn.GroupNorm(8, out), nn.GELU(), nn.Conv2d(out, out, 3, padding=1), nn.GELU())


class Unet(nn.Module):
    def __init__(self, history=4, future=4, fields=3, width=16):
        super().__init__()
        self.future, self.fields = future, fields
        self.first, self.second, self.middle = block(history * fields, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, future * fields, 1)

    def forward(self, x):
        a = self.first(x.flatten(1, 2))
        b = self.second(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        a = self.up1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))
        return self.last(a).unflatten(1, (self.future, self.fields))


class CustomMSELoss(nn.Module):
    def forward(self, prediction, target):
        return ((prediction - target) ** 2).sum((1, 2)).mean()


class PDEModel(nn.Module):
    def __init__(self, lr=2e-4):
        super().__init__()
        self.model, self.train_criterion, self.lr = Unet(), CustomMSELoss(), lr

    def training_step(self, batch, batch_idx):
        x, y = batch
        prediction = self.model(x)
        loss = self.train_criterion(prediction, y)
        scalar_loss = self.train_criterion(prediction[:, :, 0:1], y[:, :, 0:1])
        vector_loss = self.train_criterion(prediction[:, :, 1:3], y[:, :, 1:3])
        return {"loss": loss, "scalar_loss": scalar_loss, "vector_loss": vector_loss}

    def training_epoch_end(self, outputs):
        return {key: torch.stack([output[key] for output in outputs]).mean().item() for key in outputs[0]}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-5)


class Trainer:
    def __init__(self, max_epochs, device="cuda"):
        self.max_epochs, self.device = max_epochs, device

    def fit(self, model, loader):
        model.to(self.device).train()
        optimizer = model.configure_optimizers()
        for epoch in range(self.max_epochs):
            outputs = []
            for batch_idx, batch in enumerate(loader):
                batch = [part.to(self.device) for part in batch]
                output = model.training_step(batch, batch_idx)
                optimizer.zero_grad()
                output["loss"].backward()
                optimizer.step()
                outputs.append({**output, "loss": output["loss"].detach()})
                if batch_idx % 50 == 0:
                    print(f"epoch {epoch} step {batch_idx}: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
            print(f"epoch {epoch}:", model.training_epoch_end(outputs))


Trainer(max_epochs=1).fit(PDEModel(), DataLoader(NavierStokes(trajectories=16 * 290), batch_size=16))
