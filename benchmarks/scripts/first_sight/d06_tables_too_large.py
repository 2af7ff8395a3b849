# control; h100:6GiB
"""Ranking with embedding tables of 20 categorical features, of which the largest has ten million rows."""

import torch
from torch import nn


class DLRM(nn.Module):
    def __init__(self, rows, width=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum", device="cuda") for n in rows)
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        vectors = torch.stack([x, *(table(s) for table, s in zip(self.tables, sparse))], 1)
        products = vectors @ vectors.transpose(1, 2)
        i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=x.device)
        return self.top(torch.cat([x, products[:, i, j]], 1))


rows = [10_000_000, 8_000_000, 5_000_000, 2_000_000, 1_000_000, 500_000] + [50_000] * 14
model = DLRM(rows).cuda().eval()
with torch.inference_mode():
    for batch in range(4):
        dense = torch.rand(4096, 13, device="cuda")
        sparse = [torch.randint(0, n, (4096, 1), device="cuda") for n in rows]
        print(batch, torch.sigmoid(model(dense, sparse)).shape)
