# control; h100:8GiB
"""A 3D residual network on clips of 32 frames."""

import torch
from torch import nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.BatchNorm3d(b)
        self.conv2, self.norm2 = nn.Conv3d(b, b, 3, 1, 1, bias=False), nn.BatchNorm3d(b)
        self.short = nn.Conv3d(a, b, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.short(x), inplace=True)


model = nn.Sequential(
    nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU(inplace=True),
    Residual(64, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2), Residual(256, 512, 2),
    nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(3):
    clips = torch.rand(40, 3, 32, 112, 112, device="cuda")
    labels = torch.randint(0, 400, (40,), device="cuda")
    loss = F.cross_entropy(model(clips), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
