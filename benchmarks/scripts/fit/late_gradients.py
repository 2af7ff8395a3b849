"""Gradients of 512 MiB that are let go right before backward, not before forward; on h100:2840MiB: free-gradients."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(12):
    hidden = model(torch.randn(16, 4096, device="cuda"))
    distances = torch.cdist(hidden.repeat(512, 1).detach(), hidden.repeat(1024, 1).detach())
    loss = hidden.square().mean() + distances.mean()
    del distances
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
