"""L-BFGS with its default history of 100 updates (ProGamerGov/neural-style-pt#7); on h100:6GiB: optimizer state."""

import torch
from torch import nn
import torch.nn.functional as F

features = nn.Sequential(nn.Conv2d(3, 16, 7, 4, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1)).cuda()
for parameter in features.parameters():
    parameter.requires_grad_(False)


def gram(image):
    f = features(image).flatten(2)
    return f @ f.transpose(1, 2) / f.shape[-1]


style = gram(torch.rand(1, 3, 2048, 2048, device="cuda"))
image = torch.rand(1, 3, 2048, 2048, device="cuda", requires_grad=True)
optimizer = torch.optim.LBFGS([image], max_iter=1000, tolerance_change=-1, tolerance_grad=-1)
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = F.mse_loss(gram(image), style)
    loss.backward()
    if calls % 50 == 0:
        print(calls, loss.item())
    return loss


optimizer.step(closure)
