# control; h100:8GiB
"""Sounds of ten seconds are tagged by a convolutional network, which is trained on a large batch of spectrograms."""

import torch
from torch import nn
import torch.nn.functional as F


def stage(inlet, outlet):
    return nn.Sequential(
        nn.Conv2d(inlet, outlet, 3, padding=1, bias=False), nn.BatchNorm2d(outlet), nn.ReLU(inplace=True),
        nn.Conv2d(outlet, outlet, 3, padding=1, bias=False), nn.BatchNorm2d(outlet), nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
    )  # fmt: skip


class Tagger(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512), tags=527):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.stages = nn.Sequential(*[stage(inlet, outlet) for inlet, outlet in zip((1, *widths), widths)])
        self.head = nn.Sequential(nn.Linear(widths[-1], widths[-1]), nn.ReLU(), nn.Linear(widths[-1], tags))

    def forward(self, spectrograms):
        x = self.stages(self.norm(spectrograms)).mean(3)
        return self.head(x.amax(2) + x.mean(2))


def mask_stripes(spectrograms, width=24):
    """Sets a stripe of each spectrogram to zero, in time and in frequency."""
    for axis in (2, 3):
        first = int(torch.randint(0, spectrograms.shape[axis] - width, ()))
        spectrograms.narrow(axis, first, width).zero_()
    return spectrograms


model = Tagger().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(3):
    spectrograms = mask_stripes(torch.randn(96, 1, 1001, 64, device="cuda"))
    tags = (torch.rand(96, 527, device="cuda") < 0.01).float()
    loss = F.binary_cross_entropy_with_logits(model(spectrograms), tags)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
