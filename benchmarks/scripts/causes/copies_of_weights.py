"""An average of the model and a backup of it (mosaicml/composer#1941); on 6GiB: copies of weights."""

import copy

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(20)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
ema = copy.deepcopy(model)
backup = copy.deepcopy(model)
for _step in range(4):
    x = torch.randn(30000, 2048, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for p, q in zip(ema.parameters(), model.parameters(), strict=False):
            p.lerp_(q, 0.01)
