# control; h100:5GiB
"""Contrastive learning with a momentum encoder and a queue of keys of a fixed size."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


def encoder(width=128):
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
    return nn.Sequential(block(3, 64), block(64, 128), block(128, 256), block(256, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, width))


class MoCo(nn.Module):
    def __init__(self, keys=16384, width=128, momentum=0.999):
        super().__init__()
        self.encoder_q, self.momentum = encoder(width), momentum
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(width, keys), dim=0))
        self.position = 0

    @torch.no_grad()
    def update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.mul_(self.momentum).add_(q, alpha=1 - self.momentum)

    def forward(self, first, second):
        q = F.normalize(self.encoder_q(first), dim=1)
        with torch.no_grad():
            self.update_key_encoder()
            k = F.normalize(self.encoder_k(second), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.2
        with torch.no_grad():
            self.queue[:, self.position : self.position + len(k)] = k.T
            self.position = (self.position + len(k)) % self.queue.shape[1]
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


model = MoCo().cuda()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
history = []
for step in range(8):
    images = torch.rand(2, 128, 3, 128, 128, device="cuda")
    loss = model(*images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
print(len(history))
