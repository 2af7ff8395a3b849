"""Two ranks, whose gradients are copied into buckets; on 2xh100:2030MiB: bucket-views."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda())
optimizer = torch.optim.SGD(model.parameters())
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(16, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
