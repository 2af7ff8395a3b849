"""A validation with gradients on (hszhao/semseg#60); on 10GiB: gradients in evaluation."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


class Segmenter(nn.Module):
    def __init__(self, width=64, depth=8, classes=21):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(loader, model, optimizer):
    model.train()
    for _i, (input, target) in enumerate(loader):
        input, target = input.cuda(non_blocking=True), target.cuda(non_blocking=True)
        loss = nn.functional.cross_entropy(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, model):
    model.eval()
    correct = 0
    for _i, (input, target) in enumerate(loader):
        input, target = input.cuda(non_blocking=True), target.cuda(non_blocking=True)
        output = model(input)
        correct += (output.argmax(1) == target).sum()
    return correct


def loader(count, batch, size):
    for _ in range(count):
        yield torch.randn(batch, 3, size, size), torch.zeros(batch, size, size, dtype=torch.long)


model = Segmenter().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for _epoch in range(2):
    train(loader(3, 4, 192), model, optimizer)
    validate(loader(3, 4, 512), model)
