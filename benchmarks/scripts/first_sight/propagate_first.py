# pyg-team/pytorch_geometric#404; h100:8GiB
"""Simple graph convolution of the coauthors of papers: two hops, then a linear layer."""

import torch
from torch import nn
import torch.nn.functional as F


class SGConv(nn.Module):
    def __init__(self, in_channels, out_channels, K):
        super().__init__()
        self.K = K
        self.lin = nn.Linear(in_channels, out_channels)

    @staticmethod
    def norm(edge_index, num_nodes):
        row, col = edge_index
        deg = torch.zeros(num_nodes, device=row.device).index_add_(0, row, torch.ones(row.numel(), device=row.device))
        return deg.clamp(min=1)[row].pow(-0.5) * deg.clamp(min=1)[col].pow(-0.5)

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j

    def propagate(self, edge_index, x, norm):
        row, col = edge_index
        out = self.message(x[row], norm)
        return torch.zeros_like(x).index_add_(0, col, out)

    def forward(self, x, edge_index):
        norm = self.norm(edge_index, x.size(0))
        for _ in range(self.K):
            x = self.propagate(edge_index, x, norm)
        return self.lin(x)


nodes, features, edges = 18_333, 6_805, 163_788
x = torch.rand(nodes, features, device="cuda")
edge_index = torch.randint(0, nodes, (2, edges), device="cuda")
labels = torch.randint(0, 15, (nodes,), device="cuda")
model = nn.ModuleList([SGConv(features, 128, K=2), SGConv(128, 15, K=1)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
for epoch in range(3):
    hidden = model[0](x, edge_index).relu()
    loss = F.cross_entropy(model[1](hidden, edge_index), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
