"""Control: weights, gradients and Adam's state of a model are more than the card; on h100:8GiB: model too large for Adam."""

import torch
from torch import nn

model = nn.Sequential(*[nn.TransformerEncoderLayer(1536, 12, 4 * 1536, batch_first=True, device="cuda") for _ in range(26)])
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
for step in range(5):
    x = torch.randn(1, 128, 1536, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
