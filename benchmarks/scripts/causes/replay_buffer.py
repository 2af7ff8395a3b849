"""Observations of a replay buffer; on 6GiB: results kept."""

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.q = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 20 * 20, 256),
            nn.ReLU(),
            nn.Linear(256, 6),
        ).cuda()
        self.optim = torch.optim.Adam(self.q.parameters())
        self.memory = []

    def act(self, state):
        with torch.no_grad():
            return self.q(state).argmax(1)

    def remember(self, state, action):
        self.memory.append((state, action))

    def learn(self):
        batch = torch.cat([self.memory[i][0] for i in range(0, len(self.memory), max(1, len(self.memory) // 8))][:8])
        loss = self.q(batch).square().mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()


agent = Agent()
for episode in range(2000):
    state = torch.rand(64, 4, 84, 84, device="cuda")
    agent.remember(state, agent.act(state))
    if episode % 4 == 0:
        agent.learn()
