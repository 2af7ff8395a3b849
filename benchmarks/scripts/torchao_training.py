"""torchao: AdamW with states of 8 bits (the default) or 4, and linear layers in float8.

python torchao_training.py [AdamW4bit]
"""

import sys

import torch
import torchao.optim
from torch import nn
from torchao.float8 import convert_to_float8_training

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to("cuda", torch.bfloat16)
convert_to_float8_training(model)
optimizer = getattr(torchao.optim, sys.argv[1] if sys.argv[1:] else "AdamW8bit")(model.parameters(), lr=1e-4)
for _ in range(5):
    model(torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
