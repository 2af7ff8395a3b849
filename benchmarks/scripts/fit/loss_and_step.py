"""Logits of 293 MiB, and a step of Adam with copies of 512 MiB; on h100:3160MiB: fused-optimizer,chunked-loss."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), *(nn.Linear(4096, 4096) for _ in range(7)), nn.Linear(4096, 256)).cuda()
head = nn.Linear(256, 50_000).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for _ in range(12):
    x, words = torch.randn(1536, 256, device="cuda"), torch.randint(0, 50_000, (1536,), device="cuda")
    loss = nn.functional.cross_entropy(head(model(x)), words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
