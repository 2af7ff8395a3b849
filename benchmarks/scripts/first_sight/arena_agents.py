# Metta-AI/metta#1139; h100:3GiB
"""Plays many copies of an arena with a recurrent policy, and trains it on the steps that were stored (PPO)."""

import torch
from torch import nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, actions=12, width=256):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()
        )
        self.encode, self.lstm = nn.Linear(64 * 7 * 7, width), nn.LSTM(width, width)
        self.actor, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, observations, state):
        """Observations of (steps, environments), and the state before the first of them."""
        steps, environments = observations.shape[:2]
        x = self.encode(self.cnn(observations.flatten(0, 1).float() / 255)).relu().view(steps, environments, -1)
        x, state = self.lstm(x, state)
        return self.actor(x), self.value(x).squeeze(-1), state


class Experience:
    def __init__(self, steps, environments, width=256):
        self.observations = torch.zeros(steps, environments, 3, 84, 84, dtype=torch.uint8)
        self.actions = torch.zeros(steps, environments, dtype=torch.long, device="cuda")
        self.log_probs, self.values, self.rewards = (torch.zeros(steps, environments, device="cuda") for _ in range(3))
        self.lstm_h = torch.zeros(1, environments, width, device="cuda")
        self.lstm_c = torch.zeros(1, environments, width, device="cuda")
        self.ptr = 0

    def get_lstm_state(self):
        return self.lstm_h, self.lstm_c

    def store(self, observations, actions, log_probs, values, rewards, state):
        self.observations[self.ptr] = observations
        self.actions[self.ptr] = actions
        self.log_probs[self.ptr] = log_probs.detach()
        self.values[self.ptr] = values.detach()
        self.rewards[self.ptr] = rewards
        self.lstm_h, self.lstm_c = state
        self.ptr += 1


class Arena:
    def __init__(self, environments):
        self.frames = torch.randint(0, 256, (environments, 3, 84, 84), dtype=torch.uint8)

    def observe(self):
        return self.frames

    def step(self, actions):
        self.frames += actions.to(torch.uint8).view(-1, 1, 1, 1)
        return (actions == 3).float()


def rollout(policy, arena, experience):
    while experience.ptr < len(experience.actions):
        observations = arena.observe()
        logits, values, state = policy(observations.cuda()[None], experience.get_lstm_state())
        log_probs = logits[0].log_softmax(-1)
        actions = torch.multinomial(log_probs.exp(), 1)
        chosen = log_probs.gather(1, actions).squeeze(1)
        rewards = arena.step(actions.squeeze(1).cpu()).cuda()
        experience.store(observations, actions.squeeze(1), chosen, values[0], rewards, state)


def train(policy, optimizer, experience, segment=8, gamma=0.99):
    returns, total = torch.zeros_like(experience.rewards), 0
    for t in reversed(range(len(returns))):
        total = experience.rewards[t] + gamma * total
        returns[t] = total
    for first in range(0, len(returns), segment):
        part = slice(first, first + segment)
        logits, values, _ = policy(experience.observations[part].cuda(), None)
        log_probs = logits.log_softmax(-1).gather(-1, experience.actions[part, :, None]).squeeze(-1)
        advantage = returns[part] - experience.values[part]
        ratio = (log_probs - experience.log_probs[part]).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() + 0.5 * F.mse_loss(values, returns[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


policy, arena = Policy().cuda(), Arena(256)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for epoch in range(2):
    experience = Experience(64, 256)
    rollout(policy, arena, experience)
    print(epoch, train(policy, optimizer, experience))
