# huggingface/peft#2376; h100:10GiB
"""A language model learns eight new tokens for the turns of a chat, together with adapters of low rank."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, words, width=2048, layers=12, heads=16):
        super().__init__()
        self.embed_tokens, self.lm_head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens):
        x = self.embed_tokens(tokens).to(self.norm.weight.dtype)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x)).float()


class LoRA(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(rank, linear.in_features, device="cuda") * 0.02)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank, device="cuda"))

    def forward(self, x):
        return self.linear(x) + F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))


class ModuleToSave(nn.Module):
    """A module that is trained and saved beside the adapters; the one of the base stays for when they are off."""

    def __init__(self, original):
        super().__init__()
        self.original, self.trained = original, copy.deepcopy(original).float().requires_grad_(True)

    def forward(self, x):
        return self.trained(x if x.dtype == torch.long else x.float())


def add_adapters(model, rank, targets, modules_to_save):
    model.requires_grad_(False)
    for block in model.blocks:
        for name in targets:
            setattr(block, name, LoRA(getattr(block, name), rank))
    for name in modules_to_save:
        setattr(model, name, ModuleToSave(getattr(model, name)))
    return [p for p in model.parameters() if p.requires_grad]


words, added = 128_256, 8
with torch.device("meta"):
    model = LM(words + added)
model = model.to(torch.bfloat16).to_empty(device="cuda")
trained = add_adapters(model, rank=16, targets=("qkv", "out"), modules_to_save=("embed_tokens", "lm_head"))
optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
for step in range(4):
    tokens = torch.randint(0, words + added, (2, 513)).cuda()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
