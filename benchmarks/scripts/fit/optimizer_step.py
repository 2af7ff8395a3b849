"""Weights of 512 MiB and Adam, whose step makes as much again; on h100:3050MiB: fused-optimizer."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    loss = model(torch.randn(16, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
