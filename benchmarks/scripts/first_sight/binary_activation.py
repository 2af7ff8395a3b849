# liuzechun/ReActNet#26; h100:5GiB
"""A network of binary convolutions whose activation has a piecewise polynomial as its gradient."""

import torch
from torch import nn
import torch.nn.functional as F


class BinaryActivation(nn.Module):
    """Sign of x; its gradient is that of a polynomial of second order between -1 and 1."""

    def forward(self, x):
        below, negative, inside = (x < -1).float(), (x < 0).float(), (x < 1).float()
        lower = -1 * below + (x * x + 2 * x) * (1 - below)
        middle = lower * negative + (-x * x + 2 * x) * (1 - negative)
        smooth = middle * inside + 1 * (1 - inside)
        return torch.sign(x).detach() - smooth.detach() + smooth


class LearnableBias(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x):
        return x + self.bias


class HardBinaryConv(nn.Conv2d):
    def forward(self, x):
        scale = self.weight.abs().mean((1, 2, 3), keepdim=True).detach()
        hard = scale * torch.sign(self.weight)
        clipped = self.weight.clamp(-1, 1)
        return F.conv2d(x, hard.detach() - clipped.detach() + clipped, padding=self.padding)


class BasicBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.move, self.binary = LearnableBias(channels), BinaryActivation()
        self.conv = HardBinaryConv(channels, channels, 3, padding=1, bias=False)
        self.norm, self.prelu = nn.BatchNorm2d(channels), nn.PReLU(channels)

    def forward(self, x):
        return self.prelu(x + self.norm(self.conv(self.binary(self.move(x)))))


stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1))
head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))
model = nn.Sequential(stem, *[BasicBlock(64) for _ in range(8)], head).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
for step in range(3):
    images = torch.rand(96, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (96,), device="cuda")
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
