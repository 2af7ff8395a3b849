# control; h100:4GiB
"""Trains a three-dimensional U-Net on patches of abdominal scans, and validates it on whole scans by sliding windows."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, scans, shape=(160, 192, 192), patch=None):
        self.scans, self.shape, self.patch = scans, shape, patch

    def __len__(self):
        return self.scans

    def __getitem__(self, i):
        shape = self.shape if self.patch is None else (self.patch,) * 3
        return torch.full((1, *shape), float(i)), torch.full(shape, i % 3, dtype=torch.long)


class DoubleConv(nn.Sequential):
    def __init__(self, before, after):
        layers = []
        for a, b in ((before, after), (after, after)):
            layers += [nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01, inplace=True)]
        super().__init__(*layers)


class UNet3D(nn.Module):
    def __init__(self, classes=3, widths=(24, 48, 96, 192)):
        super().__init__()
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip((1, *widths), widths))
        self.pool = nn.MaxPool3d(2)
        self.grow = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[:-1])
        self.outside = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for grow, block in zip(reversed(self.grow), reversed(self.up)):
            x = block(torch.cat([skips.pop(), grow(x)], 1))
        return self.outside(x)


def dice_and_cross_entropy(logits, masks):
    probabilities = logits.softmax(1)
    targets = nn.functional.one_hot(masks, logits.shape[1]).movedim(-1, 1)
    overlap = (probabilities * targets).sum((2, 3, 4))
    dice = 2 * overlap / (probabilities.sum((2, 3, 4)) + targets.sum((2, 3, 4)) + 1e-5)
    return nn.functional.cross_entropy(logits, masks) + 1 - dice.mean()


def starts(length, window, stride):
    return sorted({*range(0, length - window, stride), length - window})


@torch.inference_mode()
def sliding_window(model, scan, classes, window=96, stride=64):
    total = torch.zeros(classes, *scan.shape[2:])
    for corner in itertools.product(*(starts(length, window, stride) for length in scan.shape[2:])):
        place = (slice(None), *(slice(start, start + window) for start in corner))
        total[place] += model(scan[(slice(None), *place)].cuda())[0].float().cpu()
    return total.argmax(0)


def train_epoch(model, loader, optimizer):
    model.train()
    losses = []
    for scans, masks in loader:
        loss = dice_and_cross_entropy(model(scans.cuda()), masks.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def validate(model, loader, classes=3):
    model.eval()
    overlap, sizes = torch.zeros(classes), torch.zeros(classes)
    for scan, mask in loader:
        predicted = sliding_window(model, scan, classes)
        for c in range(classes):
            overlap[c] += 2 * ((predicted == c) & (mask[0] == c)).sum()
            sizes[c] += (predicted == c).sum() + (mask[0] == c).sum()
    return (overlap / sizes.clamp(min=1)).tolist()


model = UNet3D().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
for epoch in range(2):
    loss = train_epoch(model, DataLoader(Scans(6, patch=96), batch_size=2), optimizer)
    print(f"epoch {epoch}: {loss:.3f}, dice {validate(model, DataLoader(Scans(1)))}")
