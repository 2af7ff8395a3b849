"""Control: a transformer with autocast and checkpointing that fits; on h100:8GiB: nothing."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import torch.nn.functional as F

embed = nn.Embedding(8000, 1024).cuda()
blocks = nn.ModuleList(nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0) for _ in range(12)).cuda()
optimizer = torch.optim.AdamW([*embed.parameters(), *blocks.parameters()], lr=1e-4)
for step in range(10):
    tokens = torch.randint(0, 8000, (8, 1024), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = embed(tokens)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        loss = F.cross_entropy((x @ embed.weight.T).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
