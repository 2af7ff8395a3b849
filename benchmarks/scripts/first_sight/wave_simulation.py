"""Backpropagation through all time steps of a simulation (fancompute/wavetorch#1); on h100:8GiB: repeated parts."""

import torch
from torch import nn
import torch.nn.functional as F


class Wave(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.speed = nn.Parameter(torch.ones(1, 1, size, size))
        kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])
        self.register_buffer("laplacian", kernel[None, None])

    def step(self, now, before, source):
        spread = F.conv2d(now, self.laplacian, padding=1)
        following = 2 * now - before + 0.1 * self.speed.square() * spread
        return following + source, now

    def forward(self, sources):
        now = before = torch.zeros(len(sources[0]), 1, *self.speed.shape[-2:], device="cuda")
        received = []
        for source in sources:
            now, before = self.step(now, before, source)
            received.append(now[:, 0, 10, ::16])
        return torch.stack(received, 1)


model = Wave(768).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
observed = torch.randn(4, 600, 48, device="cuda")
for iteration in range(5):
    sources = torch.randn(600, 4, 1, 1, 1, device="cuda")
    loss = F.mse_loss(model(sources), observed)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
