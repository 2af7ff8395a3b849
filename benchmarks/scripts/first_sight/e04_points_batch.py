# control; h100:6GiB
"""Classification of clouds of 8192 points with a network of shared layers."""

import torch
from torch import nn
import torch.nn.functional as F


class PointNet(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        sizes = [3, 64, 128, 256, 512]
        self.layers = nn.ModuleList(nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(inplace=True)) for a, b in zip(sizes, sizes[1:]))
        self.head = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, points):
        for layer in self.layers:
            points = layer(points)
        return self.head(points.max(2).values)


model = PointNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    points = torch.rand(128, 3, 8192, device="cuda")
    labels = torch.randint(0, 40, (128,), device="cuda")
    loss = F.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
