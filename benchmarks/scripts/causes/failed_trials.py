"""Failures of a search kept in a list, each with its frames (CUNY-CL/yoyodyne#231); on 4GiB: held by a traceback."""

import torch
from torch import nn


def train(width, batch):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(12)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _step in range(3):
        x = torch.randn(batch, width, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


failures = []
for width, batch in ((1024, 4096), (2048, 32768), (2048, 32768), (1024, 16384), (1024, 4096)):
    try:
        train(width, batch)
    except torch.cuda.OutOfMemoryError as error:
        failures.append((width, batch, error))
        torch.cuda.empty_cache()
if failures:
    raise failures[-1][2]
