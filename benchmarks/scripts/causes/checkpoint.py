"""A checkpoint that stays beside the model (karpathy/nanoGPT#236); on 6GiB: checkpoint left."""

import tempfile

import torch
from torch import nn


def build():
    return nn.Sequential(
        *[nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(20)]
    )


path = tempfile.mkdtemp() + "/ckpt.pt"
saved = build()
saved_optimizer = torch.optim.AdamW(saved.parameters())
for p in saved.parameters():
    p.grad = torch.zeros_like(p)
saved_optimizer.step()
torch.save({"model": saved.state_dict(), "optimizer": saved_optimizer.state_dict()}, path)
del saved, saved_optimizer
checkpoint = torch.load(path, map_location="cuda")
model = build()
model.load_state_dict(checkpoint["model"])
model.to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(checkpoint["optimizer"])
for _step in range(5):
    x = torch.randn(4096, 1024, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
