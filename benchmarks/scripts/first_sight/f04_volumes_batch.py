# control; h100:6GiB
"""Segmentation of volumes with a three-dimensional U-Net, under autocast."""

import torch
from torch import nn
import torch.nn.functional as F


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU(inplace=True),
        nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU(inplace=True),
    )  # fmt: skip


class UNet3d(nn.Module):
    def __init__(self, classes=4, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(double(a, b) for a, b in zip((1, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(double(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        for up, merge, skip in reversed(list(zip(self.up, self.merge, skips))):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x)


model = UNet3d().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    volumes = torch.randn(4, 1, 128, 128, 128, device="cuda")
    labels = torch.randint(0, 4, (4, 128, 128, 128), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(volumes), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
