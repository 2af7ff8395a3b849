"""Weights moved to the GPU in float32 and cast there (Biohub/esm#391); on h100:2500MiB: cast first."""

import torch
from torch import nn


def pretrained(width=2048, layers=10):
    """A model as it comes from the file: float32, on the CPU."""
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


device, dtype = torch.device("cuda"), torch.bfloat16
model = pretrained()
model = model.to(dtype).eval()
model = model.to(device)
with torch.no_grad():
    for _ in range(3):
        x = torch.randn(4, 256, 2048, device=device, dtype=dtype)
        print(model(x).shape)
