# pytorch/pytorch#188955; h100:5GiB
"""A language model whose weights are bfloat16 already, trained under autocast."""

import torch
from torch import nn
import torch.nn.functional as F


class Norm(nn.RMSNorm):
    pass


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = Norm(width // heads), Norm(width // heads)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = Norm(width), Attention(width, heads)
        self.norm2, self.up, self.down = Norm(width), nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.post1, self.post2 = Norm(width), Norm(width)

    def forward(self, x):
        x = x + self.post1(self.attention(self.norm1(x)))
        return x + self.post2(self.down(F.silu(self.up(self.norm2(x)))))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=8192, width=1024, layers=8, heads=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = Norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


model = LanguageModel().to(torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    tokens = torch.randint(0, 8192, (8, 1025), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
