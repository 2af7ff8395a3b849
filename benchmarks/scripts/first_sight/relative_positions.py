# entity-neural-network/incubator#143; h100:3GiB
"""A policy that reads a list of entities; attention knows of each two how far they are from each other on the grid."""

import torch
from torch import nn
import torch.nn.functional as F


class RelativeAttention(nn.Module):
    def __init__(self, width=128, heads=2, extent=10):
        super().__init__()
        self.heads, self.extent, self.norm = heads, extent, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        positions = (2 * extent + 1) ** 2
        self.key_table, self.value_table = nn.Embedding(positions, width // heads), nn.Embedding(positions, width // heads)

    def forward(self, x, places):
        distance = (places[:, None] - places[:, :, None]).clamp(-self.extent, self.extent) + self.extent
        index = distance[..., 0] * (2 * self.extent + 1) + distance[..., 1]
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        relative_keys, relative_values = self.key_table(index), self.value_table(index)
        scores = q @ k.transpose(-2, -1) + torch.einsum("bhqd,bqkd->bhqk", q, relative_keys)
        weights = (scores / q.shape[-1] ** 0.5).softmax(-1)
        attended = weights @ v + torch.einsum("bhqk,bqkd->bhqd", weights, relative_values)
        return x + self.out(attended.transpose(1, 2).flatten(2))


class Policy(nn.Module):
    def __init__(self, features=16, width=128, layers=2, actions=8):
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.layers = nn.ModuleList([RelativeAttention(width) for _ in range(layers)])
        self.head = nn.Linear(width, actions)

    def forward(self, entities, places):
        x = self.embed(entities)
        for layer in self.layers:
            x = layer(x, places)
        return self.head(x[:, 0])


policy = Policy().cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for update in range(4):
    entities = torch.randn(3072, 32, 16).cuda()
    places = torch.randint(0, 20, (3072, 32, 2)).cuda()
    actions, advantages = torch.randint(0, 8, (3072,)).cuda(), torch.randn(3072).cuda()
    loss = (F.cross_entropy(policy(entities, places), actions, reduction="none") * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(update, loss.item())
