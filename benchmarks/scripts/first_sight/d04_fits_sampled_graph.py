# control; h100:4GiB
"""GraphSAGE on sampled neighbourhoods of a graph whose features stay in host memory."""

import torch
from torch import nn
import torch.nn.functional as F


class SAGEConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.own, self.neighbours = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x, source, target, count):
        total = torch.zeros(count, x.shape[1], device=x.device).index_add_(0, target, x[source])
        degree = torch.zeros(count, device=x.device).index_add_(0, target, torch.ones(len(target), device=x.device))
        return self.own(x[:count]) + self.neighbours(total / degree.clamp_min(1)[:, None])


class GraphSAGE(nn.Module):
    def __init__(self, features=128, width=256, classes=47):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(features, width), SAGEConv(width, classes)

    def forward(self, x, blocks):
        (s1, t1, n1), (s2, t2, n2) = blocks
        return self.conv2(F.dropout(F.relu(self.conv1(x, s1, t1, n1)), training=self.training), s2, t2, n2)


def sample(seeds=1024, fanouts=(15, 10)):
    middle = seeds * (1 + fanouts[1])
    outer = middle * (1 + fanouts[0])
    first = torch.randint(0, outer, (middle * fanouts[0],), device="cuda"), torch.arange(middle, device="cuda").repeat_interleave(fanouts[0]), middle
    second = torch.randint(0, middle, (seeds * fanouts[1],), device="cuda"), torch.arange(seeds, device="cuda").repeat_interleave(fanouts[1]), seeds
    return outer, (first, second)


features = torch.zeros(400_000, 128)
model = GraphSAGE().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(6):
    nodes, blocks = sample()
    x = features[torch.randint(0, len(features), (nodes,))].cuda()
    labels = torch.randint(0, 47, (1024,), device="cuda")
    loss = F.cross_entropy(model(x, blocks), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
