"""A square matrix of singular vectors, of which a few columns are used (pytorch/pytorch#61949); on h100:6GiB: one request."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()
optimizer = torch.optim.Adam(model.parameters())
points = torch.randn(40000, 64, device="cuda")


@torch.no_grad()
def spectrum(features, components=8):
    centred = features - features.mean(0)
    u, s, vh = torch.linalg.svd(centred)
    return u[:, :components] * s[:components]


for epoch in range(10):
    for batch in points.split(4000):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        projected = spectrum(model(points))
    print(epoch, projected.shape)
