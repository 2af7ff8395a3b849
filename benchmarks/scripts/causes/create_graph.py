"""Gradients that keep their graph (pytorch/pytorch#1346); on 6GiB: graphs kept."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024)).cuda()
for _step in range(500):
    x = torch.randn(2048, 1024, device="cuda")
    loss = model(x).pow(2).mean()
    loss.backward(create_graph=True)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
