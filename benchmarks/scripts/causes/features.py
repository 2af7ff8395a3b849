"""Features that the model keeps of each step (pytorch/pytorch#71495); on 8GiB: graphs kept."""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
        )
        self.rpn = nn.Conv2d(64, 8, 1)
        self.history = []

    def forward(self, x):
        features = self.backbone(x)
        proposals = self.rpn(features)
        self.history.append(proposals)
        return proposals


model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _step in range(200):
    image = torch.randn(1, 3, 600, 800, device="cuda")
    loss = model(image).square().mean() + 0 * sum(p.sum() for p in model.parameters())
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
