# control; h100:4GiB
"""Deep Q-learning on frames, with its memory of 60,000 frames on the GPU."""

import torch
from torch import nn
import torch.nn.functional as F


class ReplayMemory:
    def __init__(self, capacity):
        self.frames = torch.zeros(capacity, 84, 84, dtype=torch.uint8, device="cuda")
        self.actions = torch.zeros(capacity, dtype=torch.long, device="cuda")
        self.rewards = torch.zeros(capacity, device="cuda")
        self.capacity, self.position = capacity, 0

    def push(self, frames, actions, rewards):
        slots = (self.position + torch.arange(len(frames), device="cuda")) % self.capacity
        self.frames[slots], self.actions[slots], self.rewards[slots] = frames, actions, rewards
        self.position += len(frames)

    def sample(self, batch):
        at = torch.randint(4, self.capacity - 1, (batch,), device="cuda")
        window = at[:, None] + torch.arange(-4, 1, device="cuda")
        frames = self.frames[window].float() / 255
        return frames[:, :4], self.actions[at], self.rewards[at], frames[:, 1:]


def network():
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)
    ).cuda()


policy, target = network(), network()
memory = ReplayMemory(60_000)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
for step in range(8):
    memory.push(torch.randint(0, 256, (128, 84, 84), dtype=torch.uint8, device="cuda"), torch.randint(0, 6, (128,), device="cuda"), torch.rand(128, device="cuda"))
    state, action, reward, following = memory.sample(256)
    with torch.no_grad():
        expected = reward + 0.99 * target(following).max(1).values
    loss = F.smooth_l1_loss(policy(state).gather(1, action[:, None]).squeeze(1), expected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        target.load_state_dict(policy.state_dict())
    print(step, loss.item())
