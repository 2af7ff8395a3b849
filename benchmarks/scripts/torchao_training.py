"""torchao: 8-bit and 4-bit AdamW, and linear layers in float8."""

import torch
from torch import nn
from torchao.float8 import convert_to_float8_training
from torchao.optim import AdamW4bit, AdamW8bit

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to("cuda", torch.bfloat16)
convert_to_float8_training(model)
for kind in (AdamW8bit, AdamW4bit):
    optimizer = kind(model.parameters(), lr=1e-4)
    for _ in range(5):
        model(torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
