# snap-stanford/ogb#16; h100:4GiB
"""Sorts goods into classes by what is bought together with them, with GraphSAGE on the graph of all purchases."""

import torch
from torch import nn
import torch.nn.functional as F


class SAGEConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, adj_t):
        return self.lin_l(adj_t @ x) + self.lin_r(x)


class SAGE(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, dropout):
        super().__init__()
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.convs = nn.ModuleList([SAGEConv(i, o) for i, o in zip(sizes, sizes[1:])])
        self.dropout = dropout

    def forward(self, x, adj_t):
        for conv in self.convs[:-1]:
            x = F.relu(conv(x, adj_t))
            x = F.dropout(x, self.dropout, training=self.training)
        return self.convs[-1](x, adj_t).log_softmax(-1)


def mean_adjacency(edge_index, nodes):
    """The adjacency matrix with rows that sum to 1."""
    degree = torch.bincount(edge_index[0], minlength=nodes).clamp(min=1)
    return torch.sparse_coo_tensor(edge_index, 1.0 / degree[edge_index[0]], (nodes, nodes)).coalesce()


class Products:
    def __init__(self, nodes=450000, edges=2000000, features=100, classes=47):
        self.nodes, self.classes = nodes, classes
        one_way = torch.randint(0, nodes, (2, edges // 2))
        self.edge_index = torch.cat([one_way, one_way.flip(0)], 1)
        self.x, self.y = torch.randn(nodes, features), torch.randint(0, classes, (nodes,))
        self.train_idx = torch.arange(nodes // 12)


def train(model, x, adj_t, y, train_idx, optimizer):
    model.train()
    optimizer.zero_grad()
    out = model(x, adj_t)[train_idx]
    loss = F.nll_loss(out, y[train_idx])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model, x, adj_t, y):
    model.eval()
    return (model(x, adj_t).argmax(-1) == y).float().mean().item()


data = Products()
model = SAGE(100, 256, data.classes, num_layers=3, dropout=0.5).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x, y, train_idx = data.x.cuda(), data.y.cuda(), data.train_idx.cuda()
adj_t = mean_adjacency(data.edge_index, data.nodes).cuda()
for epoch in range(3):
    loss = train(model, x, adj_t, y, train_idx, optimizer)
    print(epoch, loss)
print(test(model, x, adj_t, y))
