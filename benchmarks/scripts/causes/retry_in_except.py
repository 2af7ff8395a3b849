"""A second attempt inside of `except` (pytorch/pytorch#27600); on 6GiB: held by a traceback."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(12)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def step(batch):
    hidden = torch.randn(batch, 2048, device="cuda")
    target = hidden.clone()
    for layer in model:
        hidden = layer(hidden)
    loss = (hidden - target).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(batch):
    try:
        step(batch)
    except torch.cuda.OutOfMemoryError as error:
        print("retry with half the batch", error.__class__.__name__)
        step(batch // 2)


step(4096)
train(40960)
