# control; h100:4GiB
"""Distills a large frozen encoder into a smaller one; both are needed in each step."""

import torch
from torch import nn
import torch.nn.functional as F


def encoder(width, layers):
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.Sequential(nn.Embedding(32_000, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))


with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    teacher = encoder(2048, 28).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    student = encoder(1024, 6)
    projection = nn.Linear(1024, 2048)
optimizer = torch.optim.AdamW([*student.parameters(), *projection.parameters()], lr=1e-4)
for step in range(3):
    tokens = torch.randint(0, 32_000, (8, 256), device="cuda")
    with torch.no_grad():
        target = teacher(tokens).float()
    loss = F.mse_loss(projection(student(tokens)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
