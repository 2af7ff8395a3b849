# control; h100:3GiB
"""Proximal policy optimization on frames: a rollout of 64 environments, then epochs of minibatches."""

import torch
from torch import nn
import torch.nn.functional as F


class Agent(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()
        )
        self.actor, self.critic = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, frames):
        hidden = self.network(frames.float() / 255)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


steps, environments = 128, 64
agent = Agent().cuda()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
frames = torch.zeros(steps, environments, 4, 84, 84, dtype=torch.uint8, device="cuda")
actions = torch.zeros(steps, environments, dtype=torch.long, device="cuda")
logprobs, rewards, values = (torch.zeros(steps, environments, device="cuda") for _ in range(3))
for update in range(3):
    observation = torch.randint(0, 256, (environments, 4, 84, 84), dtype=torch.uint8, device="cuda")
    for step in range(steps):
        frames[step] = observation
        with torch.no_grad():
            logits, values[step] = agent(observation)
            actions[step] = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
            logprobs[step] = logits.log_softmax(-1).gather(1, actions[step][:, None]).squeeze(1)
        rewards[step] = torch.rand(environments, device="cuda")
        observation = torch.randint(0, 256, (environments, 4, 84, 84), dtype=torch.uint8, device="cuda")
    returns = rewards.flip(0).cumsum(0).flip(0)
    advantages = (returns - values).flatten()
    b_frames, b_actions, b_logprobs, b_returns = frames.flatten(0, 1), actions.flatten(), logprobs.flatten(), returns.flatten()
    for minibatch in torch.randperm(steps * environments, device="cuda").split(2048):
        logits, value = agent(b_frames[minibatch])
        ratio = (logits.log_softmax(-1).gather(1, b_actions[minibatch][:, None]).squeeze(1) - b_logprobs[minibatch]).exp()
        gain = torch.min(ratio * advantages[minibatch], ratio.clamp(0.9, 1.1) * advantages[minibatch]).mean()
        loss = F.mse_loss(value, b_returns[minibatch]) - gain
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
    print(update, loss.item())
