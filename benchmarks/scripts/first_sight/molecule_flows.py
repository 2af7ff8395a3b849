# recursionpharma/gflownet#130; h100:3GiB
"""A generative flow network learns to build molecules atom by atom; half of each batch comes from earlier trajectories."""

import random

import torch
from torch import nn
import torch.nn.functional as F


class GraphPolicy(nn.Module):
    def __init__(self, atoms=16, bonds=16, width=128, layers=3):
        super().__init__()
        self.nodes, self.edges = nn.Linear(atoms, width), nn.Linear(bonds, 4)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(layers)])
        self.add_atom, self.stop = nn.Linear(width, atoms), nn.Linear(width, 1)
        self.log_z = nn.Parameter(torch.zeros(()))

    def forward(self, nodes, edges):
        x = self.nodes(nodes)
        bias = self.edges(edges).permute(0, 3, 1, 2).flatten(0, 1)
        for layer in self.layers:
            x = layer(x, src_mask=bias)
        return torch.cat([self.add_atom(x).flatten(1), self.stop(x.mean(1))], 1).log_softmax(1)


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity, self.buffer, self.position = capacity, [], 0

    def push(self, *items):
        if len(self.buffer) < self.capacity:
            self.buffer.append(None)
        self.buffer[self.position] = items
        self.position = (self.position + 1) % self.capacity

    def sample(self, count, device):
        chosen = random.sample(self.buffer, min(count, len(self.buffer)))
        return [torch.stack(part).to(device) for part in zip(*chosen)]


@torch.no_grad()
def sample_trajectories(policy, count, steps=8, size=38):
    nodes = torch.zeros(count, size, 16, device="cuda")
    edges = torch.zeros(count, size, size, 16, device="cuda")
    all_nodes, all_edges, all_actions = [], [], []
    for step in range(steps):
        logits = policy(nodes, edges)
        action = torch.multinomial(logits.exp() + 1e-6, 1).squeeze(1)
        all_nodes.append(nodes)
        all_edges.append(edges)
        all_actions.append(action)
        nodes = nodes + F.one_hot(action % 16, 16)[:, None] * (torch.arange(size, device="cuda") == step)[None, :, None]
        edges = edges.clone()
        edges[:, step, : step + 1, action.numel() % 16] = 1.0
    reward = nodes.sum((1, 2)).log1p()
    return torch.stack(all_nodes, 1), torch.stack(all_edges, 1), torch.stack(all_actions, 1), reward


def trajectory_balance(policy, nodes, edges, actions, log_reward):
    log_probs = policy(nodes.flatten(0, 1), edges.flatten(0, 1)).gather(1, actions.flatten()[:, None]).view(actions.shape)
    return (policy.log_z + log_probs.sum(1) - log_reward).square().mean()


policy = GraphPolicy().cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=True)
replay = ReplayBuffer(10_000)
for step in range(70):
    batch = sample_trajectories(policy, 64)
    for trajectory in zip(*batch):
        replay.push(*trajectory)
    replayed = replay.sample(32, "cuda")
    loss = trajectory_balance(policy, *(torch.cat([new[:32], old]) for new, old in zip(batch, replayed)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), len(replay.buffer))
