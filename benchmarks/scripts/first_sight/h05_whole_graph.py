# control; h100:12GiB
"""A graph network of four layers is trained on all of a large graph of products, by products with its sparse adjacency."""

import torch
from torch import nn
import torch.nn.functional as F


class Convolution(nn.Module):
    def __init__(self, inlet, outlet):
        super().__init__()
        self.own, self.neighbours = nn.Linear(inlet, outlet), nn.Linear(inlet, outlet, bias=False)

    def forward(self, adjacency, x):
        return self.own(x) + torch.sparse.mm(adjacency, self.neighbours(x))


class Net(nn.Module):
    def __init__(self, features=100, hidden=256, classes=47, layers=4):
        super().__init__()
        widths = [features] + [hidden] * (layers - 1) + [classes]
        self.convs = nn.ModuleList([Convolution(a, b) for a, b in zip(widths, widths[1:])])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(layers - 1)])

    def forward(self, adjacency, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.dropout(F.relu(norm(conv(adjacency, x))), 0.5, self.training)
        return self.convs[-1](adjacency, x)


def load_graph(nodes=1_200_000, edges=6_000_000, features=100, device="cuda"):
    """Features, the adjacency with rows that sum up to one, and classes."""
    index = torch.randint(0, nodes, (2, edges), device=device)
    values = torch.full((edges,), nodes / edges, device=device)
    adjacency = torch.sparse_coo_tensor(index, values, (nodes, nodes), is_coalesced=True)
    return torch.randn(nodes, features, device=device), adjacency, torch.randint(0, 47, (nodes,), device=device)


x, adjacency, classes = load_graph()
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    loss = F.cross_entropy(model(adjacency, x)[:200_000], classes[:200_000])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
