"""A metric that sums tensors up (horovod/horovod#641); on 8GiB: graphs kept."""

import torch
from torch import nn


class Metric:
    def __init__(self, name):
        self.name, self.sum, self.n = name, torch.tensor(0.0).cuda(), 0

    def update(self, val):
        self.sum += val
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


def accuracy(output, target):
    return (output.softmax(-1)[:, 0]).mean()


model = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=2),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Conv2d(64, 128, 3, stride=2),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 1000),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train_loss, train_acc = Metric("loss"), Metric("acc")
for _batch_idx in range(200):
    data, target = torch.randn(16, 3, 224, 224).cuda(), torch.zeros(16, dtype=torch.long).cuda()
    optimizer.zero_grad()
    output = model(data)
    loss = nn.functional.cross_entropy(output, target)
    loss.backward()
    optimizer.step()
    train_loss.update(loss)
    train_acc.update(accuracy(model(data), target))
