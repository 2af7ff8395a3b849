"""Adaptation steps that are all differentiated through (tristandeleu/pytorch-maml#21); on 5GiB: graphs kept."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


def conv(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b, track_running_stats=False), nn.ReLU(), nn.MaxPool2d(2)
    )


model = nn.Sequential(conv(3, 64), conv(64, 64), conv(64, 64), conv(64, 64), nn.Flatten(), nn.Linear(64 * 25, 5)).cuda()
meta = torch.optim.Adam(model.parameters(), 1e-3)
for _batch in range(3):
    meta.zero_grad()
    total = 0
    for _task in range(4):
        x, y = torch.randn(25, 3, 84, 84).cuda(), torch.randint(0, 5, (25,)).cuda()
        fast = dict(model.named_parameters())
        for _step in range(20):
            inner = F.cross_entropy(functional_call(model, fast, (x,)), y)
            grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {name: w - 0.4 * g for (name, w), g in zip(fast.items(), grads, strict=True)}
        q, t = torch.randn(75, 3, 84, 84).cuda(), torch.randint(0, 5, (75,)).cuda()
        total = total + F.cross_entropy(functional_call(model, fast, (q,)), t)
    total.backward()
    meta.step()
