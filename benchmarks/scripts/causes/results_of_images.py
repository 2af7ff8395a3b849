"""Results of all images for a metric; on 6GiB: results kept."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 21, 1)).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)


def train_epoch():
    model.train()
    for _ in range(5):
        x = torch.randn(4, 3, 256, 256, device="cuda")
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


@torch.no_grad()
def evaluate():
    model.eval()
    outputs = []
    for _ in range(500):
        x = torch.randn(4, 3, 256, 256, device="cuda")
        outputs.append(model(x).softmax(1))
    return torch.cat(outputs)


for _epoch in range(2):
    train_epoch()
    evaluate()
