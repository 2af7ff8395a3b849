"""Sparse features made dense to be shuffled (schwartzlab-methods/CellNEST#34); on h100:8GiB: expansion by to_dense."""

import torch
from torch import nn

NODES, GENES, PER_NODE = 32768, 32768, 200


class Encoder(nn.Module):
    def __init__(self, genes, hidden):
        super().__init__()
        self.register_buffer("genes", torch.randn(genes, hidden) * 0.01)
        self.layers = nn.Sequential(nn.PReLU(), nn.Linear(hidden, hidden))

    def forward(self, x):
        return self.layers(torch.sparse.mm(x, self.genes))


def corruption(x):
    """The features of other nodes."""
    shuffled = x.to_dense()[torch.randperm(x.shape[0], device=x.device)]
    return shuffled.to_sparse()


rows = torch.arange(NODES).repeat_interleave(PER_NODE)
columns = torch.arange(PER_NODE).repeat(NODES) * (GENES // PER_NODE)
features = torch.sparse_coo_tensor(torch.stack([rows, columns]), torch.ones(len(rows)), (NODES, GENES), is_coalesced=True).cuda()
encoder = Encoder(GENES, 256).cuda()
readout = nn.Linear(256, 256, bias=False).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *readout.parameters()], lr=1e-3)
for epoch in range(100):
    optimizer.zero_grad()
    positive = encoder(features)
    negative = encoder(corruption(features))
    summary = readout(torch.sigmoid(positive.mean(0)))
    loss = (negative @ summary).mean() - (positive @ summary).mean()
    loss.backward()
    optimizer.step()
