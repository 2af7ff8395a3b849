# dmlc/dgl#1676; h100:2GiB
"""PinSAGE with a learned vector for each of 400,000 items; pairs of items are drawn close together."""

import torch
from torch import nn
import torch.nn.functional as F


class WeightedSAGEConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.w = nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, neighbours, own):
        n = F.relu(self.q(neighbours)).mean(1)
        return F.normalize(F.relu(self.w(torch.cat([n, own], -1))), dim=-1)


class PinSAGEModel(nn.Module):
    def __init__(self, items, width=256):
        super().__init__()
        self.item_emb = nn.Embedding(items, width, device="cuda")
        self.conv = WeightedSAGEConv(width).cuda()

    def get_repr(self, items, neighbours):
        return self.conv(self.item_emb(neighbours), self.item_emb(items))

    def forward(self, heads, tails, negatives, neighbours):
        h, t, n = (self.get_repr(x, neighbours) for x in (heads, tails, negatives))
        return F.relu((h * n).sum(-1) - (h * t).sum(-1) + 1).mean()


items = 400_000
model = PinSAGEModel(items)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-5)
for step in range(4):
    heads, tails, negatives = torch.randint(0, items, (3, 512), device="cuda")
    neighbours = torch.randint(0, items, (512, 10), device="cuda")
    loss = model(heads, tails, negatives, neighbours)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
