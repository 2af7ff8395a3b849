"""Control: a language model trained with a context too long, attention already fused; on h100:8GiB: context too long."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


embed, blocks = nn.Embedding(4096, 768), nn.Sequential(*[Block(768, 12) for _ in range(12)])
model = nn.Sequential(embed, blocks, nn.LayerNorm(768), nn.Linear(768, 4096)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(5):
    tokens = torch.randint(0, 4096, (1, 32769), device="cuda")
    loss = F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
