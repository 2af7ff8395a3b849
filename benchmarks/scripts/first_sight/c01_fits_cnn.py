"""Control: an ordinary training that fits; on h100:8GiB: nothing."""

import torch
from torch import nn
import torch.nn.functional as F

layers, channels = [], 3
for width in (32, 64, 128, 256):
    layers += [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(20):
    x = torch.randn(256, 3, 224, 224, device="cuda")
    y = torch.randint(0, 10, (256,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
