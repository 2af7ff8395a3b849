"""GPT-2 XL under DDP with AdamW in 32 bits and a batch of one, as a rank of a job."""

import os

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
with torch.device("meta"):
    model = GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25))
model.to_empty(device="cuda")
model.tie_weights()
parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(parallel.parameters(), foreach=False)
tokens = torch.randint(0, 50257, (1, 128), device="cuda")
for _ in range(4):
    parallel(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
