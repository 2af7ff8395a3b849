# cpnota/autonomous-learning-library#144; h100:2GiB
"""Deep Q-learning on the frames of 64 games; a state is the last four frames of each game."""

import random
from collections import deque

import torch
from torch import nn
import torch.nn.functional as F


class QNetwork(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions)
        )

    def forward(self, states):
        return self.layers(states.float() / 255)


class Games:
    """Frames come from the host; states are on the GPU, where they are needed for each action."""

    def __init__(self, games=64):
        self.games, self.frames = games, deque(maxlen=4)

    def reset(self):
        for _ in range(4):
            self.frames.append(self.frame())
        return torch.stack(tuple(self.frames), 1)

    def frame(self):
        return torch.randint(0, 256, (self.games, 84, 84), dtype=torch.uint8).cuda()

    def step(self, actions):
        self.frames.append(self.frame())
        return torch.stack(tuple(self.frames), 1), torch.rand(self.games, device="cuda")


class ReplayBuffer:
    def __init__(self, capacity):
        self.transitions = deque(maxlen=capacity)

    def store(self, state, actions, rewards, next_state):
        self.transitions.append((state, actions, rewards, next_state))

    def sample(self, size):
        return [torch.cat(parts) for parts in zip(*random.sample(self.transitions, size))]


games, buffer = Games(), ReplayBuffer(2000)
network = QNetwork().cuda()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
state = games.reset()
for step in range(2000):
    with torch.no_grad():
        actions = network(state).argmax(1)
    next_state, rewards = games.step(actions)
    buffer.store(state, actions, rewards, next_state)
    state = next_state
    if step >= 40 and step % 20 == 0:
        states, actions_taken, rewards, next_states = buffer.sample(8)
        with torch.no_grad():
            targets = rewards + 0.99 * network(next_states).max(1).values
        loss = F.smooth_l1_loss(network(states).gather(1, actions_taken[:, None]).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
