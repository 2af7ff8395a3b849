# rusty1s/deep-graph-matching-consensus#4; h100:4GiB
"""Finds which entities of a Chinese and an English knowledge graph are the same, with a network on both graphs."""

import torch
import torch.nn.functional as F
from torch import nn


class RelConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.forwards, self.backwards, self.root = (nn.Linear(inputs, outputs, bias=i == 2) for i in range(3))

    @staticmethod
    def mean(x, source, target):
        sums = torch.zeros_like(x).index_add_(0, target, x[source])
        count = torch.zeros(len(x), 1, device=x.device).index_add_(0, target, torch.ones(len(target), 1, device=x.device))
        return sums / count.clamp(min=1)

    def forward(self, x, edges):
        return self.root(x) + self.mean(self.forwards(x), *edges) + self.mean(self.backwards(x), *edges.flip(0))


class RelCNN(nn.Module):
    def __init__(self, inputs, width, layers):
        super().__init__()
        self.convs = nn.ModuleList(RelConv(inputs if i == 0 else width, width) for i in range(layers))
        self.final = nn.Linear(inputs + layers * width, width)

    def forward(self, x, edges):
        states = [x]
        for conv in self.convs:
            states.append(F.dropout(F.relu(conv(states[-1], edges)), 0.5, self.training))
        return self.final(torch.cat(states, -1))


class DGMC(nn.Module):
    def __init__(self, psi_1, psi_2, steps, k, indicators=32):
        super().__init__()
        self.psi_1, self.psi_2, self.steps, self.k, self.indicators = psi_1, psi_2, steps, k, indicators
        self.mlp = nn.Sequential(nn.Linear(indicators, indicators), nn.ReLU(), nn.Linear(indicators, 1))

    def top_k(self, x_s, x_t):
        """The k candidates among x_t (1, N_t, C) for each of x_s (1, N_s, C)."""
        x_s, x_t = x_s.unsqueeze(-2), x_t.unsqueeze(-3)
        similarity = (x_s * x_t).sum(-1)
        return similarity.topk(self.k, dim=-1)[1]

    def forward(self, x_s, edges_s, x_t, edges_t, pairs=None):
        h_s, h_t = self.psi_1(x_s, edges_s), self.psi_1(x_t, edges_t)
        candidates = self.top_k(h_s[None], h_t[None])[0]
        if pairs is not None:
            candidates[pairs[0], -1] = pairs[1]
        scores = (h_s[:, None] * h_t[candidates]).sum(-1)
        for _ in range(self.steps):
            weights = scores.softmax(-1)
            r_s = torch.randn(len(x_s), self.indicators, device=x_s.device)
            moved = (weights[..., None] * r_s[:, None]).flatten(0, 1)
            r_t = torch.zeros(len(x_t), self.indicators, device=x_s.device).index_add(0, candidates.flatten(), moved)
            o_s, o_t = self.psi_2(r_s, edges_s), self.psi_2(r_t, edges_t)
            scores = scores + self.mlp(o_s[:, None] - o_t[candidates]).squeeze(-1)
        return scores.softmax(-1), candidates

    def loss(self, weights, pairs):
        return -(weights[pairs[0], -1] + 1e-8).log().mean()


def graph(entities, facts, width=300):
    return torch.randn(entities, width).cuda(), torch.randint(0, entities, (2, facts)).cuda()


def main(entities=(2400, 2900), facts=(14000, 19000), links=800):
    (x_s, edges_s), (x_t, edges_t) = (graph(n, m) for n, m in zip(entities, facts))
    pairs = torch.stack([torch.randperm(entities[0])[:links], torch.randperm(entities[1])[:links]]).cuda()
    model = DGMC(RelCNN(300, 128, 3), RelCNN(32, 32, 3), steps=2, k=10).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(10):
        weights, _ = model(x_s, edges_s, x_t, edges_t, pairs)
        loss = model.loss(weights, pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, loss.item())
    model.eval()
    with torch.no_grad():
        weights, candidates = model(x_s, edges_s, x_t, edges_t)
    print(candidates.gather(1, weights.argmax(1, keepdim=True)).shape)


main()
