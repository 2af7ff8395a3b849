# control; h100:8GiB
"""Trains a 3D U-Net on patches of scans, to find the organs in them."""

import torch
from torch import nn
import torch.nn.functional as F


def double(i, o):
    layers = []
    for a, b in ((i, o), (o, o)):
        layers += [nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01, inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, classes=14, widths=(24, 48, 96, 192, 256)):
        super().__init__()
        self.down = nn.ModuleList([double(i, o) for i, o in zip((1, *widths), widths)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(o, i, 2, 2) for i, o in zip(widths, widths[1:])])
        self.join = nn.ModuleList([double(2 * w, w) for w in widths[:-1]])
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for i, level in enumerate(self.down):
            x = level(F.max_pool3d(x, 2) if i else x)
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([self.up[i](x), skips[i]], 1))
        return self.head(x)


def dice_loss(logits, labels):
    probabilities = logits.softmax(1)
    target = F.one_hot(labels, logits.shape[1]).movedim(-1, 1)
    both = (probabilities * target).sum((2, 3, 4))
    return 1 - (2 * both / (probabilities.sum((2, 3, 4)) + target.sum((2, 3, 4)) + 1e-5)).mean()


model = UNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
for iteration in range(3):
    scans, labels = torch.randn(4, 1, 128, 128, 128), torch.randint(0, 14, (4, 128, 128, 128))
    with torch.autocast("cuda", torch.float16):
        logits = model(scans.cuda())
    labels = labels.cuda()
    loss = F.cross_entropy(logits.float(), labels) + dice_loss(logits.float(), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
    scaler.step(optimizer)
    scaler.update()
    print(iteration, loss.item())
