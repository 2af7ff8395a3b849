# control; h100:6GiB
"""A small language model whose head is its embedding: gradients of several micro batches, and an average of its weights in the host's memory."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, words=32_768, width=768, layers=12, heads=12):
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(words, width), nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


model = LM().cuda()
average = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for _ in range(4):
        tokens = torch.randint(0, 32_768, (4, 1025)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / 4
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for name, parameter in model.named_parameters():
        average[name].lerp_(parameter.detach().cpu(), 0.01)
    print(step, total)
