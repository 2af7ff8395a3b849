# control; h100:4GiB
"""A wide classifier trained by SGD with momentum, a small batch and small activations."""

import torch
from torch import nn
import torch.nn.functional as F


class WideMixer(nn.Module):
    def __init__(self, width=4096, layers=11, classes=1000):
        super().__init__()
        self.stem = nn.Linear(3 * 16 * 16, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, patches):
        x = self.stem(patches)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(1))


with torch.device("cuda"):
    model = WideMixer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
for step in range(4):
    patches = torch.rand(2, 64, 768, device="cuda")
    labels = torch.randint(0, 1000, (2,), device="cuda")
    loss = F.cross_entropy(model(patches), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
