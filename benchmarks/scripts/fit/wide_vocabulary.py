"""Logits of 781 MiB, their softmax and their gradient; on h100:2800MiB: chunked-loss."""

import torch
from torch import nn

model = nn.Sequential(nn.Embedding(50_000, 64), nn.Linear(64, 50_000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    ids = torch.randint(0, 50_000, (4096,), device="cuda")
    loss = nn.functional.cross_entropy(model(ids), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
