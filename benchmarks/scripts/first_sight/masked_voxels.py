# pytorch/pytorch#39374; h100:2GiB
"""A network learns to restore volumes, of which voxels below a threshold are replaced by noise."""

import torch
from torch import nn
import torch.nn.functional as F


class Restorer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Conv3d(1, width, 4, 4)
        self.body = nn.Sequential(nn.Conv3d(width, width, 3, padding=1), nn.ReLU(), nn.Conv3d(width, width, 3, padding=1))
        self.up = nn.ConvTranspose3d(width, 1, 4, 4)

    def forward(self, x):
        x = self.down(x)
        return self.up(x + self.body(x))


def corrupt(volumes, threshold):
    """Volumes whose dark voxels are noise, and the mask of these."""
    noise = torch.randn_like(volumes) * 0.1
    mask = volumes < threshold
    corrupted = volumes.clone()
    corrupted[mask] = noise[mask]
    return corrupted, mask


model = Restorer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    volumes = torch.randn(2, 1, 96, 256, 256).cuda()
    corrupted, mask = corrupt(volumes, 0.5)
    restored = model(corrupted)
    loss = (F.l1_loss(restored, volumes, reduction="none") * mask).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
