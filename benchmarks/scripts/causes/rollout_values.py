"""Values and log-probabilities of a rollout with their graphs (oxwhirl/pymarl#73); on 5GiB: graphs kept."""

import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.fc = nn.Linear(64 * 9 * 9, 512)
        self.pi, self.v = nn.Linear(512, 6), nn.Linear(512, 1)

    def forward(self, obs):
        h = torch.relu(self.fc(self.body(obs)))
        return torch.distributions.Categorical(logits=self.pi(h), validate_args=False), self.v(h).squeeze(-1)


policy = ActorCritic().cuda()
optimizer = torch.optim.Adam(policy.parameters(), 3e-4)
for _update in range(3):
    buffer = {"actions": [], "log_probs": [], "values": [], "rewards": []}
    obs = torch.rand(256, 4, 84, 84)
    for _step in range(128):
        dist, value = policy(obs.cuda())
        action = dist.sample()
        buffer["actions"].append(action)
        buffer["log_probs"].append(dist.log_prob(action))
        buffer["values"].append(value)
        buffer["rewards"].append(torch.rand(256))
        obs = torch.rand(256, 4, 84, 84)
    for _epoch in range(4):
        dist, value = policy(torch.rand(1024, 4, 84, 84).cuda())
        loss = (value - torch.rand(1024).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
