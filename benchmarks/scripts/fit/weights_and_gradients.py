"""Weights of 768 MiB, which fit, with gradients and momentum beside them; on h100:2000MiB: bf16-weights."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(12))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(12):
    loss = model(torch.randn(16, 4096, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
