# control; h100:3GiB
"""Teaches an arm to stack blocks from pictures with soft actor-critic, its experience replayed from the host."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

ACTIONS = 7


class Table:
    def __init__(self, size=84, pictures=32):
        self.pictures, self.time = torch.randint(0, 256, (pictures, 9, size, size), dtype=torch.uint8), 0

    def step(self, action=None):
        self.time += 1
        return self.pictures[self.time % len(self.pictures)], -0.01 * float(self.time % 9), self.time % 150 == 0


class Replay:
    def __init__(self, capacity, size=84):
        self.pictures = torch.zeros(capacity, 9, size, size, dtype=torch.uint8)
        self.following = torch.zeros(capacity, 9, size, size, dtype=torch.uint8)
        self.actions, self.rewards, self.ends = torch.zeros(capacity, ACTIONS), torch.zeros(capacity), torch.zeros(capacity)
        self.capacity, self.count = capacity, 0

    def add(self, picture, action, reward, following, end):
        i = self.count % self.capacity
        self.pictures[i], self.actions[i], self.rewards[i], self.following[i], self.ends[i] = picture, action, reward, following, end
        self.count += 1

    def sample(self, batch_size):
        chosen = torch.randint(0, min(self.count, self.capacity), (batch_size,))
        return [column[chosen].cuda() for column in (self.pictures, self.actions, self.rewards, self.following, self.ends)]


class Encoder(nn.Module):
    def __init__(self, width=50):
        super().__init__()
        layers = [nn.Conv2d(9, 32, 3, stride=2), nn.ReLU(), *[layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3), nn.ReLU())]]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 35 * 35, width), nn.LayerNorm(width), nn.Tanh())

    def forward(self, pictures):
        return self.layers(pictures.float() / 255 - 0.5)


def mlp(inputs, outputs, hidden=1024):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.first, self.second = Encoder(), mlp(50 + ACTIONS, 1), mlp(50 + ACTIONS, 1)

    def forward(self, pictures, actions, detach=False):
        features = self.encoder(pictures)
        x = torch.cat([features.detach() if detach else features, actions], -1)
        return self.first(x).squeeze(-1), self.second(x).squeeze(-1)


class Agent:
    def __init__(self, gamma=0.99, tau=0.01, learning_rate=1e-3):
        self.critic, self.actor = Critic().cuda(), mlp(50, 2 * ACTIONS).cuda()
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), device="cuda", requires_grad=True)
        self.gamma, self.tau = gamma, tau
        parts = {"critic": self.critic.parameters(), "actor": self.actor.parameters(), "alpha": [self.log_alpha]}
        self.optimizers = {name: torch.optim.Adam(p, lr=learning_rate) for name, p in parts.items()}

    def act(self, pictures):
        with torch.no_grad():
            features = self.critic.encoder(pictures)
        mean, log_std = self.actor(features).chunk(2, -1)
        log_std, noise = log_std.clamp(-10, 2), torch.randn_like(mean)
        action = torch.tanh(mean + log_std.exp() * noise)
        return action, (-0.5 * noise.square() - log_std - (1 - action.square() + 1e-6).log()).sum(-1)

    def minimize(self, name, loss):
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        return loss.item()

    def update(self, pictures, actions, rewards, following, ends):
        with torch.no_grad():
            next_actions, log_prob = self.act(following)
            future = torch.minimum(*self.target(following, next_actions)) - self.log_alpha.exp() * log_prob
            goals = rewards + self.gamma * (1 - ends) * future
        losses = [self.minimize("critic", sum(F.mse_loss(q, goals) for q in self.critic(pictures, actions)))]
        actions, log_prob = self.act(pictures)
        gain = torch.minimum(*self.critic(pictures, actions, detach=True)) - self.log_alpha.exp().detach() * log_prob
        losses += [self.minimize("actor", -gain.mean()), self.minimize("alpha", -(self.log_alpha.exp() * (log_prob.detach() - ACTIONS)).mean())]
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), self.tau)
        return losses


table, replay, agent, losses = Table(), Replay(2000), Agent(), []
picture, _, _ = table.step()
for step in range(300):
    with torch.no_grad():
        action = agent.act(picture[None].cuda())[0][0].cpu()
    following, reward, end = table.step(action)
    replay.add(picture, action, reward, following, end)
    picture = following
    if step >= 150 and step % 4 == 0:
        losses.append(agent.update(*replay.sample(512)))
print(len(losses), losses[-1])
