# dmlc/dgl#852; h100:4GiB
"""A gated graph network over graphs of source code, whose edges have types."""

import torch
from torch import nn
import torch.nn.functional as F


class GatedGraphConv(nn.Module):
    def __init__(self, feats, steps, etypes):
        super().__init__()
        self.feats, self.steps = feats, steps
        self.edge_embed = nn.Embedding(etypes, feats * feats)
        self.gru = nn.GRUCell(feats, feats)

    def forward(self, src, dst, etypes, h):
        w = self.edge_embed(etypes).view(-1, self.feats, self.feats)
        for _ in range(self.steps):
            messages = torch.matmul(h[src].unsqueeze(1), w).squeeze(1)
            a = torch.zeros_like(h).index_add(0, dst, messages)
            h = self.gru(a, h)
        return h


class Classifier(nn.Module):
    def __init__(self, words=5000, feats=128, classes=20):
        super().__init__()
        self.words = nn.Embedding(words, feats)
        self.conv = GatedGraphConv(feats, steps=4, etypes=12)
        self.readout = nn.Linear(feats, classes)

    def forward(self, nodes, src, dst, etypes):
        return self.readout(self.conv(src, dst, etypes, self.words(nodes)))


model = Classifier().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for edges in (6_000, 12_000, 36_000):
    count = edges // 4
    nodes = torch.randint(0, 5000, (count,), device="cuda")
    src, dst = torch.randint(0, count, (2, edges), device="cuda")
    etypes = torch.randint(0, 12, (edges,), device="cuda")
    loss = F.cross_entropy(model(nodes, src, dst, etypes), torch.randint(0, 20, (count,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(edges, loss.item())
