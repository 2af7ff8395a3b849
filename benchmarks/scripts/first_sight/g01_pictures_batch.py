# control; h100:6GiB
"""A residual network is trained on pictures of 224 x 224 with a large batch, under autocast."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, inlet, outlet, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inlet, outlet, 3, stride, 1, bias=False), nn.BatchNorm2d(outlet)
        self.conv2, self.norm2 = nn.Conv2d(outlet, outlet, 3, 1, 1, bias=False), nn.BatchNorm2d(outlet)
        self.skip = nn.Identity() if inlet == outlet else nn.Sequential(nn.Conv2d(inlet, outlet, 1, stride, bias=False), nn.BatchNorm2d(outlet))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)


class Net(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512), classes=1000):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, inlet = [], 64
        for stage, width in enumerate(widths):
            blocks += [Block(inlet, width, 1 if stage == 0 else 2), Block(width, width, 1)]
            inlet = width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inlet, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for step in range(3):
    pictures, labels = torch.randn(512, 3, 224, 224).cuda(), torch.randint(0, 1000, (512,)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(pictures), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
