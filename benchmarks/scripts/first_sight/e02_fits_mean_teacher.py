# control; h100:4GiB
"""Semi-supervised segmentation: a teacher that is the average of the student labels pictures without labels."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class Unet(nn.Module):
    def __init__(self, width=32, classes=6):
        super().__init__()
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        c = self.down[2](F.max_pool2d(b, 2))
        b = self.up[0](torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        return self.head(self.up[1](torch.cat([F.interpolate(b, scale_factor=2), a], 1)))


student = Unet().cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.01, momentum=0.9)
for step in range(6):
    pictures = torch.rand(8, 3, 256, 256, device="cuda")
    labels = torch.randint(0, 6, (4, 256, 256), device="cuda")
    with torch.no_grad():
        pseudo = teacher(pictures[4:]).softmax(1)
    logits = student(pictures)
    loss = F.cross_entropy(logits[:4], labels) + F.mse_loss(logits[4:].softmax(1), pseudo)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(teacher.parameters(), student.parameters()):
            mean.lerp_(parameter, 0.01)
    print(step, loss.item())
