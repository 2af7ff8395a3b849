# control; h100:2GiB
"""Learns to balance from pictures with soft actor and critic, from a replay buffer on the host."""

import copy
import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(9, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten()
        )
        self.fc, self.norm = nn.Linear(32 * 37 * 37, width), nn.LayerNorm(width)

    def forward(self, pictures):
        return self.norm(self.fc(self.convs(pictures.float() / 255 - 0.5))).tanh()


class Critic(nn.Module):
    def __init__(self, actions=2, width=64):
        super().__init__()
        self.encoder = Encoder(width)
        self.q = nn.Sequential(nn.Linear(width + actions, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))

    def forward(self, pictures, actions):
        return self.q(torch.cat([self.encoder(pictures), actions], 1))


class Actor(nn.Module):
    def __init__(self, encoder, actions=2, width=64):
        super().__init__()
        self.encoder = encoder
        self.net = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 2 * actions))

    def forward(self, pictures):
        mean, log_std = self.net(self.encoder(pictures).detach()).chunk(2, 1)
        return (mean + torch.randn_like(mean) * log_std.tanh().exp()).tanh()


class Replay:
    def __init__(self, capacity):
        self.pictures = torch.zeros(capacity, 9, 84, 84, dtype=torch.uint8)
        self.actions, self.rewards = torch.zeros(capacity, 2), torch.zeros(capacity, 1)
        self.size = 0

    def add(self, pictures, action, reward):
        self.pictures[self.size], self.actions[self.size], self.rewards[self.size] = pictures, action, reward
        self.size += 1

    def sample(self, batch):
        i = torch.randint(0, self.size - 1, (batch,))
        return (t.cuda() for t in (self.pictures[i], self.actions[i], self.rewards[i], self.pictures[i + 1]))


critic = Critic().cuda()
target, actor = copy.deepcopy(critic).requires_grad_(False), Actor(critic.encoder).cuda()
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.net.parameters(), lr=1e-3)
replay = Replay(4000)
for step in range(60):
    pictures = torch.randint(0, 256, (9, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        action = actor(pictures[None].cuda())[0].cpu()
    replay.add(pictures, action, torch.rand(1))
    if step < 30:
        continue
    now, actions, rewards, then = replay.sample(256)
    with torch.no_grad():
        goal = rewards + 0.99 * target(then, actor(then)).min(1, keepdim=True).values
    loss = F.mse_loss(critic(now, actions), goal.expand(-1, 2))
    critic_optimizer.zero_grad()
    loss.backward()
    critic_optimizer.step()
    if step % 2 == 0:
        actor_loss = -critic(now, actor(now)).min(1).values.mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            for a, b in zip(target.parameters(), critic.parameters()):
                a.lerp_(b, 0.01)
    print(step, loss.item())
