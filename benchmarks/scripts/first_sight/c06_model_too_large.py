"""Control: a model whose weights alone are more than the card; on h100:6GiB: model too large."""

import torch
from torch import nn

model = nn.Sequential(*[nn.TransformerEncoderLayer(3072, 24, 4 * 3072, batch_first=True, device="cuda") for _ in range(24)])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    x = torch.randn(1, 256, 3072, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
