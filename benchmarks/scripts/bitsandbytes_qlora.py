"""bitsandbytes: layers in nf4 with adapters, 8-bit and paged AdamW."""

import bitsandbytes as bnb
import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.frozen = bnb.nn.Linear4bit(size, size, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        self.frozen.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(size, 64, bias=False), nn.Linear(64, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x)).to(torch.bfloat16)


model = nn.Sequential(*[Adapted(1024) for _ in range(4)]).cuda()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
for kind in (bnb.optim.AdamW8bit, bnb.optim.PagedAdamW8bit):
    optimizer = kind(trained, lr=1e-4)
    for _ in range(6):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(32, 1024, device="cuda")).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
