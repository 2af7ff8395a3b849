# d2l-ai/d2l-en#1342; h100:8GiB
"""A normalising flow of coupling layers learns the density of pictures; a batch norm that can be inverted stands between the layers."""

import math

import torch
from torch import nn
import torch.nn.functional as F


class BatchNormFlow(nn.Module):
    def __init__(self, channels, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.log_gamma, self.beta = nn.Parameter(torch.zeros(channels, 1, 1)), nn.Parameter(torch.zeros(channels, 1, 1))
        self.register_buffer("running_mean", torch.zeros(channels, 1, 1))
        self.register_buffer("running_var", torch.ones(channels, 1, 1))

    def forward(self, x):
        if self.training:
            mean, var = x.mean((0, 2, 3)).view(-1, 1, 1), x.var((0, 2, 3), unbiased=False).view(-1, 1, 1)
            population_var = x.var((0, 2, 3)).view(-1, 1, 1)
            self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
            self.running_var = (1 - self.momentum) * self.running_var + self.momentum * population_var
        else:
            mean, var = self.running_mean, self.running_var
        y = (x - mean) / (var + self.eps).sqrt() * self.log_gamma.exp() + self.beta
        log_det = (self.log_gamma - 0.5 * (var + self.eps).log()).sum() * x.shape[2] * x.shape[3]
        return y, log_det


class Coupling(nn.Module):
    def __init__(self, channels, hidden, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, hidden, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, 1), nn.ReLU(inplace=True),
            nn.Conv2d(hidden, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        a, b = x.chunk(2, 1)[:: -1 if self.flip else 1]
        log_scale, shift = self.net(a).chunk(2, 1)
        log_scale = torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), log_scale.flatten(1).sum(1)


class Flow(nn.Module):
    def __init__(self, channels=48, hidden=64, layers=10):
        super().__init__()
        self.couplings = nn.ModuleList([Coupling(channels, hidden, i % 2 == 1) for i in range(layers)])
        self.norms = nn.ModuleList([BatchNormFlow(channels) for _ in range(layers)])

    def log_prob(self, pictures):
        x, log_det = F.pixel_unshuffle(pictures, 4), 0.0
        for coupling, norm in zip(self.couplings, self.norms):
            x, part = coupling(x)
            x, other = norm(x)
            log_det = log_det + part + other
        return -0.5 * (x**2 + math.log(2 * math.pi)).flatten(1).sum(1) + log_det


model = Flow().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(14):
    pictures = torch.rand(256, 3, 128, 128, device="cuda")
    loss = -model.log_prob(pictures).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
