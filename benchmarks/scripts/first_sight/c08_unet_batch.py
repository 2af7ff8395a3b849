"""Control: a U-Net whose batch is too large; on h100:8GiB: batch too large."""

import torch
from torch import nn
import torch.nn.functional as F


def twice(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(twice(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        skips = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for i in range(len(self.up) - 1, -1, -1):
            x = self.merge[i](torch.cat([skips[i], self.up[i](x)], 1))
        return self.last(x)


model = UNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(5):
    x = torch.randn(32, 3, 512, 512, device="cuda")
    y = torch.zeros(32, 512, 512, dtype=torch.long, device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
