# ray-project/ray#63660; h100:4GiB
"""Training on video clips that a loader brings to the GPU ahead of time."""

from collections import deque

import torch
from torch import nn
import torch.nn.functional as F


class ClipDataset:
    def __init__(self, batches, batch_size):
        self.batches = batches
        self.block = torch.zeros(batch_size, 3, 16, 160, 160), torch.zeros(batch_size, dtype=torch.long)

    def blocks(self):
        for _ in range(self.batches):
            yield self.block

    def iter_batches(self, prefetch_batches=1, device="cuda"):
        window, blocks = deque(), self.blocks()
        for clips, labels in blocks:
            window.append((clips.to(device, non_blocking=True), labels.to(device, non_blocking=True)))
            if len(window) > prefetch_batches:
                yield window.popleft()
        while window:
            yield window.popleft()


class SlowOnly(nn.Module):
    def __init__(self, classes=400):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(3, 32, (1, 7, 7), (2, 4, 4), (0, 3, 3)), nn.BatchNorm3d(32), nn.ReLU(inplace=True))
        self.stage1 = nn.Sequential(nn.Conv3d(32, 64, 3, (1, 2, 2), 1), nn.BatchNorm3d(64), nn.ReLU(inplace=True))
        self.stage2 = nn.Sequential(nn.Conv3d(64, 128, 3, (1, 2, 2), 1), nn.BatchNorm3d(128), nn.ReLU(inplace=True))
        self.head = nn.Linear(128, classes)

    def forward(self, clips):
        return self.head(self.stage2(self.stage1(self.stem(clips))).mean((2, 3, 4)))


dataset = ClipDataset(batches=14, batch_size=80)
model = SlowOnly().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step, (clips, labels) in enumerate(dataset.iter_batches(prefetch_batches=8)):
    loss = F.cross_entropy(model(clips), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
