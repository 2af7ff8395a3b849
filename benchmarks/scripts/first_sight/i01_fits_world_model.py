# control; h100:6GiB
"""A world model of pictures and an actor that learns in its imagination; the imagined states begin anew at each step."""

import torch
from torch import nn
import torch.nn.functional as F


class WorldModel(nn.Module):
    def __init__(self, actions, width=512):
        super().__init__()
        sizes = [(3, 32), (32, 64), (64, 128), (128, 256)]
        self.encode = nn.Sequential(*[nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.SiLU()) for i, o in sizes], nn.Flatten(), nn.Linear(4096, width))
        self.grow = nn.Linear(width, 4096)
        self.decode = nn.Sequential(*[nn.Sequential(nn.SiLU(), nn.ConvTranspose2d(o, i, 4, 2, 1)) for i, o in reversed(sizes)])
        self.cell, self.reward = nn.GRUCell(width + actions, width), nn.Linear(width, 1)

    def observe(self, pictures, actions):
        embedded = self.encode(pictures.flatten(0, 1)).view(*pictures.shape[:2], -1)
        state, states = torch.zeros_like(embedded[:, 0]), []
        for t in range(pictures.shape[1]):
            state = self.cell(torch.cat([embedded[:, t], actions[:, t]], -1), state)
            states.append(state)
        return torch.stack(states, 1)

    def loss(self, states, pictures, rewards):
        drawn = self.decode(self.grow(states.flatten(0, 1)).view(-1, 256, 4, 4)).view_as(pictures)
        return F.mse_loss(drawn, pictures) + F.mse_loss(self.reward(states).squeeze(-1), rewards)


def imagine(world, actor, state, horizon):
    rewards = []
    for _ in range(horizon):
        action = torch.tanh(actor(state))
        state = world.cell(torch.cat([state, action], -1), state)
        rewards.append(world.reward(state).squeeze(-1))
    return torch.stack(rewards)


actions = 6
world, actor = WorldModel(actions).cuda(), nn.Sequential(nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, actions)).cuda()
world_optimizer, actor_optimizer = torch.optim.Adam(world.parameters(), lr=3e-4), torch.optim.Adam(actor.parameters(), lr=8e-5)
for step in range(4):
    pictures, taken, rewards = torch.rand(16, 50, 3, 64, 64).cuda(), torch.randn(16, 50, actions).cuda(), torch.randn(16, 50).cuda()
    states = world.observe(pictures, taken)
    world_loss = world.loss(states, pictures, rewards)
    world_optimizer.zero_grad()
    world_loss.backward()
    world_optimizer.step()
    world.requires_grad_(False)
    actor_loss = -imagine(world, actor, states.detach().flatten(0, 1), horizon=15).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    world.requires_grad_(True)
    print(step, world_loss.item(), actor_loss.item())
