"""Six stages of different sizes, none of which repeats, that keep 1 GiB; on h100:2640MiB: saved-on-host."""

from itertools import pairwise

import torch
from torch import nn

widths = (64, 96, 160, 256, 416, 672, 1088)
model = nn.Sequential()
for before, after in pairwise(widths):
    model.append(nn.Linear(before, after))
    model.append(nn.SiLU())
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(12):
    loss = model(torch.randn(65_536, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
