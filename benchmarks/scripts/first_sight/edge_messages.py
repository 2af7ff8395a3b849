# pyg-team/pytorch_geometric#459; h100:4GiB
"""A graph convolutional network over words and documents; the words have no features but their number."""

import torch
from torch import nn
import torch.nn.functional as F


class GCNConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.weight)

    @staticmethod
    def norm(edge_index, nodes):
        row, col = edge_index
        degree = torch.zeros(nodes, device="cuda").index_add_(0, row, torch.ones(len(row), device="cuda"))
        inverse = degree.clamp(min=1).rsqrt()
        return inverse[row] * inverse[col]

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j

    def forward(self, x, edge_index):
        x = self.weight if x is None else x @ self.weight
        row, col = edge_index
        messages = self.message(x[row], self.norm(edge_index, len(x)))
        return torch.zeros_like(x).index_add_(0, col, messages) + self.bias


class TextGCN(nn.Module):
    def __init__(self, nodes, hidden, classes):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(nodes, hidden), GCNConv(hidden, classes)

    def forward(self, edge_index):
        x = F.dropout(self.conv1(None, edge_index).relu(), 0.5, self.training)
        return self.conv2(x, edge_index)


nodes, edges, classes = 14_049, 3_000_000, 20
edge_index = torch.randint(0, nodes, (2, edges), device="cuda")
labels = torch.randint(0, classes, (nodes,), device="cuda")
train = torch.arange(0, nodes, 2, device="cuda")
model = TextGCN(nodes, 200, classes).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(5):
    model.train()
    loss = F.cross_entropy(model(edge_index)[train], labels[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
