# pyg-team/pytorch_geometric#1415; h100:4GiB
"""Trains a message-passing network with edge-conditioned convolutions on complete graphs of molecules to predict an energy."""

import torch
from torch import nn


class Molecules:
    """Batches of molecules: atoms' features, pairs of atoms with features of their bond and distance, and an energy."""

    def __init__(self, batches, molecules=96, features=11, bonds=5):
        self.batches, self.molecules, self.features, self.bonds = batches, molecules, features, bonds
        self.generator = torch.Generator().manual_seed(12)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            sizes = torch.randint(24, 36, (self.molecules,), generator=self.generator)
            offset, pairs = 0, []
            for size in sizes.tolist():
                pair = (~torch.eye(size, dtype=torch.bool)).nonzero().t()
                pairs.append(pair + offset)
                offset += size
            edge_index = torch.cat(pairs, 1)
            yield {
                "x": torch.rand(offset, self.features),
                "edge_index": edge_index,
                "edge_attr": torch.rand(edge_index.shape[1], self.bonds),
                "batch": torch.arange(self.molecules).repeat_interleave(sizes),
                "y": torch.rand(self.molecules, 1),
            }


class NNConv(nn.Module):
    def __init__(self, in_channels, out_channels, network):
        super().__init__()
        self.in_channels, self.out_channels, self.network = in_channels, out_channels, network
        self.root = nn.Linear(in_channels, out_channels)

    def message(self, x_j, edge_attr):
        weight = self.network(edge_attr).view(-1, self.in_channels, self.out_channels)
        return torch.matmul(x_j.unsqueeze(1), weight).squeeze(1)

    def forward(self, x, edge_index, edge_attr):
        source, target = edge_index
        messages = self.message(x[source], edge_attr)
        degree = torch.zeros(len(x), 1, device=x.device).index_add_(0, target, torch.ones(len(target), 1, device=x.device))
        summed = torch.zeros(len(x), self.out_channels, device=x.device).index_add(0, target, messages)
        return summed / degree.clamp(min=1) + self.root(x)


class SumAndMean(nn.Module):
    def forward(self, x, batch, molecules):
        total = torch.zeros(molecules, x.shape[1], device=x.device).index_add(0, batch, x)
        count = torch.zeros(molecules, 1, device=x.device).index_add_(0, batch, torch.ones(len(x), 1, device=x.device))
        return torch.cat([total, total / count.clamp(min=1)], 1)


class MPNN(nn.Module):
    def __init__(self, features=11, bonds=5, dim=64, iterations=3):
        super().__init__()
        self.inside, self.iterations = nn.Linear(features, dim), iterations
        network = nn.Sequential(nn.Linear(bonds, 128), nn.ReLU(), nn.Linear(128, dim * dim))
        self.conv, self.gru = NNConv(dim, dim, network), nn.GRUCell(dim, dim)
        self.readout, self.outside = SumAndMean(), nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, data):
        h = self.inside(data["x"]).relu()
        for _ in range(self.iterations):
            m = self.conv(h, data["edge_index"], data["edge_attr"]).relu()
            h = self.gru(m, h)
        return self.outside(self.readout(h, data["batch"], len(data["y"])))


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for data in loader:
        data = {name: part.cuda() for name, part in data.items()}
        loss = nn.functional.mse_loss(model(data), data["y"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


model = MPNN().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    print(f"epoch {epoch}: {train_epoch(model, Molecules(4), optimizer):.4f}")
