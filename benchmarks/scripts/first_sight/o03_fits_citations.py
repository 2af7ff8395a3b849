# control; h100:2GiB
"""Trains a graph network on sampled neighbourhoods of a citation graph, and evaluates it layer by layer for all papers."""

import torch
from torch import nn


class Citations:
    """A graph in compressed rows; features stay on the host."""

    def __init__(self, papers=90_000, degree=14, features=256, classes=40):
        self.papers, self.classes = papers, classes
        self.rowptr = torch.arange(0, papers * degree + 1, degree)
        self.col = torch.randint(papers, (papers * degree,))
        self.x = torch.rand(papers, features)
        self.y = torch.arange(papers) % classes

    def neighbours(self, nodes, count=None):
        start, end = self.rowptr[nodes], self.rowptr[nodes + 1]
        degree = int((end - start).max())
        if count is None:
            return self.col[start[:, None] + torch.arange(degree)]
        return self.col[start[:, None] + torch.randint(degree, (len(nodes), count))]


class SAGEConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.own, self.other = nn.Linear(before, after), nn.Linear(before, after, bias=False)

    def forward(self, own, neighbours):
        return self.own(own) + self.other(neighbours.mean(1))


class GraphSAGE(nn.Module):
    def __init__(self, features, width, classes, layers=3, dropout=0.4):
        super().__init__()
        widths = [features, *[width] * (layers - 1), classes]
        self.convs = nn.ModuleList(SAGEConv(a, b) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers - 1))
        self.dropout = dropout

    def after(self, layer, h):
        if layer == len(self.convs) - 1:
            return h
        return nn.functional.dropout(self.norms[layer](h).relu(), self.dropout, self.training)

    def forward(self, hops, fanouts):
        """Features of the seeds, of their sampled neighbours, of those of these, and so on."""
        for layer, conv in enumerate(self.convs):
            depth = len(hops) - 1
            hops = [self.after(layer, conv(hops[i], hops[i + 1].unflatten(0, (-1, fanouts[i])))) for i in range(depth)]
        return hops[0]

    @torch.inference_mode()
    def inference(self, graph, batch=8192):
        x_all = graph.x
        for layer, conv in enumerate(self.convs):
            rows = []
            for nodes in torch.arange(graph.papers).split(batch):
                neighbours = graph.neighbours(nodes)
                h = conv(x_all[nodes].cuda(), x_all[neighbours.flatten()].cuda().unflatten(0, neighbours.shape))
                rows.append(self.after(layer, h).cpu())
            x_all = torch.cat(rows)
        return x_all


def sample(graph, seeds, fanouts):
    hops = [seeds]
    for fanout in fanouts:
        hops.append(graph.neighbours(hops[-1], fanout).flatten())
    return [graph.x[nodes].cuda() for nodes in hops]


def train_epoch(model, graph, seeds, optimizer, fanouts=(15, 10, 5), batch=384):
    model.train()
    total = correct = 0
    for nodes in seeds[torch.randperm(len(seeds))].split(batch):
        logits, labels = model(sample(graph, nodes, fanouts), fanouts), graph.y[nodes].cuda()
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(nodes)
        correct += (logits.argmax(1) == labels).sum().item()
    return total / len(seeds), correct / len(seeds)


graph = Citations()
model = GraphSAGE(graph.x.shape[1], 256, graph.classes).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
train_nodes = torch.arange(0, graph.papers, 40)
print("loss %.3f, accuracy %.3f" % train_epoch(model, graph, train_nodes, optimizer))
model.eval()
print("accuracy of all %.3f" % (model.inference(graph).argmax(1) == graph.y).float().mean().item())
