# pytorch/pytorch#22333; h100:5GiB
"""A convolutional network on windows of 500 features of many stocks, read in batches."""

import torch
from torch import nn
import torch.nn.functional as F


class StockData:
    """Windows of features in host memory, and the return that follows each."""

    def __init__(self, windows=1200, features=500, days=60, stocks=32):
        self.train = torch.empty(windows, features, days, stocks), torch.empty(windows, stocks)
        self.cuda = True

    def get_batches(self, inputs, targets, batch_size):
        X, Y = inputs, targets
        if self.cuda:
            X = X.cuda()
            Y = Y.cuda()
        for start in range(0, len(X), batch_size):
            yield X[start : start + batch_size], Y[start : start + batch_size]


class AlphaNet(nn.Module):
    def __init__(self, features=500, stocks=32):
        super().__init__()
        self.conv1 = nn.Conv2d(features, 512, 3, padding=1)
        self.conv2 = nn.Conv2d(512, 256, 3, padding=1)
        self.conv3 = nn.Conv2d(256, 64, (5, 1), (5, 1))
        self.norm1, self.norm2 = nn.BatchNorm2d(512), nn.BatchNorm2d(256)
        self.head = nn.Linear(64 * 12, 1)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.conv3(x))
        return self.head(x.permute(0, 3, 1, 2).flatten(2)).squeeze(-1)


def train(data, model, optimizer, X, Y, batch_size):
    total, count = 0.0, 0
    for x, y in data.get_batches(X, Y, batch_size):
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total, count = total + loss.item(), count + 1
        if count == 8:
            break
    return total / count


data = StockData()
model = AlphaNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    print(epoch, train(data, model, optimizer, *data.train, batch_size=64))
