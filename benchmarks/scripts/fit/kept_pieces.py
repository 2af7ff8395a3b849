"""Features that keep the rest of a large segment from use; on h100:2850MiB: expandable-segments."""

import torch
from torch import nn

scale = torch.randn(128, 1024, 1024, device="cuda").std()
features = [torch.randn(6, 1024, 1024, device="cuda") * scale for _ in range(10)]  # in the 512 MiB that are free
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(12):
    x = torch.randn(76_800, 1024, device="cuda")
    loss = model(x).square().mean() + features[step % 10].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
