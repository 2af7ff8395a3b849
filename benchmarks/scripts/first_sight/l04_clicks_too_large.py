# control; h100:12GiB
"""Trains a model of clicks on advertisements, with a table of embeddings for each feature."""

import torch
from torch import nn
import torch.nn.functional as F


class ClickModel(nn.Module):
    def __init__(self, rows, width=64, numbers=13):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, width) for n in rows])
        self.bottom = nn.Sequential(nn.Linear(numbers, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("lower", torch.tril_indices(len(rows) + 1, len(rows) + 1, -1))

    def forward(self, numbers, categories):
        dense = self.bottom(numbers)
        features = torch.stack([dense] + [table(categories[:, i]) for i, table in enumerate(self.tables)], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([dense, products[:, self.lower[0], self.lower[1]]], 1)).squeeze(1)


rows = [9_000_000, 4_000_000, 1_500_000, 600_000, 120_000, 30_000, 12_000, 8_000, 2_000, 900, 300, 60, 24, 10]
with torch.device("cuda"):
    model = ClickModel(rows)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
print(sum(p.numel() for p in model.parameters()))
for step in range(4):
    numbers = torch.rand(4096, 13).cuda()
    categories = torch.stack([torch.randint(0, n, (4096,)) for n in rows], 1).cuda()
    clicks = torch.randint(0, 2, (4096,)).float().cuda()
    loss = F.binary_cross_entropy_with_logits(model(numbers, categories), clicks)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
