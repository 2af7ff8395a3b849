# diegoantognini/pyGAT#63; h100:8GiB
"""A graph attention network says the subjects of papers from their words and citations."""

import torch
from torch import nn
import torch.nn.functional as F


class GraphAttention(nn.Module):
    """Attention of each paper to the papers that it is joined with, by one head."""

    def __init__(self, inlet, outlet, dropout, concat=True):
        super().__init__()
        self.dropout, self.concat = dropout, concat
        self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(inlet, outlet), gain=1.414))
        self.a = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * outlet, 1), gain=1.414))

    def attention_input(self, Wh):
        n = len(Wh)
        sources, neighbours = Wh.repeat_interleave(n, 0), Wh.repeat(n, 1)
        return torch.cat([sources, neighbours], 1).view(n, n, -1)

    def forward(self, h, adjacency):
        Wh = h @ self.W
        e = F.leaky_relu((self.attention_input(Wh) @ self.a).squeeze(2), 0.2)
        attention = torch.where(adjacency > 0, e, -9e15).softmax(1)
        attention = F.dropout(attention, self.dropout, self.training)
        out = attention @ Wh
        return F.elu(out) if self.concat else out


class GAT(nn.Module):
    def __init__(self, features, hidden, classes, heads, dropout=0.6):
        super().__init__()
        self.dropout = dropout
        self.heads = nn.ModuleList([GraphAttention(features, hidden, dropout) for _ in range(heads)])
        self.out = GraphAttention(hidden * heads, classes, dropout, concat=False)

    def forward(self, x, adjacency):
        x = F.dropout(x, self.dropout, self.training)
        x = torch.cat([head(x, adjacency) for head in self.heads], 1)
        x = F.dropout(x, self.dropout, self.training)
        return F.log_softmax(F.elu(self.out(x, adjacency)), 1)


def load_papers(papers=3327, words=3703, citations=4552, classes=6):
    features = (torch.rand(papers, words) < 0.009).float()
    adjacency = torch.eye(papers)
    cites, cited = torch.randint(0, papers, (2, citations))
    adjacency[cites, cited], adjacency[cited, cites] = 1.0, 1.0
    return features / features.sum(1, keepdim=True).clamp(min=1), adjacency, torch.randint(0, classes, (papers,))


features, adjacency, subjects = (part.cuda() for part in load_papers())
model = GAT(features.shape[1], hidden=8, classes=6, heads=8).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
for epoch in range(4):
    output = model(features, adjacency)
    loss = F.nll_loss(output[:120], subjects[:120])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
