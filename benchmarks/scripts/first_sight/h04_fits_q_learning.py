# control; h100:8GiB
"""Q-learning of a game from pictures: frames wait as bytes in the host's memory, and the target network follows every few steps."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class QNetwork(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))
        self.advantage = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, frames):
        x = self.convs(frames.float() / 255).flatten(1)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class Memory:
    """Single frames in a ring; four of them are a state."""

    def __init__(self, size):
        self.frames = torch.zeros(size, 84, 84, dtype=torch.uint8)
        self.actions, self.rewards = torch.zeros(size, dtype=torch.long), torch.zeros(size)
        self.count = 0

    def store(self, frames, actions, rewards):
        slots = (self.count + torch.arange(len(frames))) % len(self.frames)
        self.frames[slots], self.actions[slots], self.rewards[slots] = frames, actions, rewards
        self.count += len(frames)

    def sample(self, size):
        last = torch.randint(3, min(self.count, len(self.frames)) - 1, (size,))
        places = last[:, None] + torch.arange(-3, 1)
        return [part.cuda() for part in (self.frames[places], self.actions[last], self.rewards[last], self.frames[places + 1])]


model = QNetwork().cuda()
target = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
memory = Memory(20_000)
memory.store(torch.randint(0, 256, (2000, 84, 84), dtype=torch.uint8), torch.randint(0, 6, (2000,)), torch.randn(2000))
for step in range(40):
    states, actions, rewards, following = memory.sample(512)
    with torch.no_grad():
        best = model(following).argmax(1, keepdim=True)
        wanted = rewards + 0.99 * target(following).gather(1, best).squeeze(1)
    loss = F.smooth_l1_loss(model(states).gather(1, actions[:, None]).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    memory.store(torch.randint(0, 256, (16, 84, 84), dtype=torch.uint8), torch.randint(0, 6, (16,)), torch.randn(16))
    if step % 10 == 9:
        target.load_state_dict(model.state_dict())
        print(step, loss.item())
