"""Two ranks, each with weights, gradients and Adam's state of 512 MiB each; on 2xh100:2540MiB: shard."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2048, 8192), nn.Linear(8192, 2048)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(*(Block() for _ in range(4))).cuda())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
