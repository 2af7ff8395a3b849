"""DeepSpeed's ZeRO, its buckets as they are by default.

python deepspeed_zero.py 1|2|3
"""

import sys

import deepspeed
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for _ in range(8):
    batch = torch.randn(4, 1024, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(batch).float().square().mean())
    engine.step()
