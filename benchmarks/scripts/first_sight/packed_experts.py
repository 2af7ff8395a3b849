# unslothai/unsloth-zoo#838; h100:6GiB
"""Adapters of low rank for the attention of a mixture of experts; the experts are frozen and packed in four bits."""

import torch
from torch import nn
import torch.nn.functional as F


class PackedExperts(nn.Module):
    """One matrix for each expert, two numbers in a byte and a scale for each 64 of them."""

    def __init__(self, experts, inlet, outlet):
        super().__init__()
        self.shape = (experts, outlet, inlet)
        self.register_buffer("packed", torch.randint(0, 256, (experts, outlet, inlet // 2), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(experts, outlet, inlet // 64, 1, dtype=torch.bfloat16) * 0.01)

    def unpack(self):
        numbers = torch.stack([self.packed & 15, self.packed >> 4], -1).to(torch.bfloat16).sub_(8)
        return numbers.view(*self.scales.shape[:3], 64).mul_(self.scales).view(self.shape)

    def forward(self, x):
        return torch.bmm(x, self.unpack().transpose(1, 2))


class MoE(nn.Module):
    """Each expert takes the tokens that want it most."""

    def __init__(self, width, hidden, experts, chosen):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up, self.down = PackedExperts(experts, width, 2 * hidden), PackedExperts(experts, hidden, width)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        weights, places = scores.T.topk(len(tokens) * self.chosen // self.experts, dim=-1)
        gate, up = self.gate_up(tokens[places]).chunk(2, -1)
        y = self.down(F.silu(gate) * up) * weights[..., None]
        return torch.zeros_like(tokens).index_add(0, places.flatten(), y.flatten(0, 1)).view_as(x)


class LoRA(nn.Module):
    def __init__(self, inlet, outlet, rank=16):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outlet, inlet) * 0.02, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(rank, inlet) * 0.02), nn.Parameter(torch.zeros(outlet, rank))

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b)


class Block(nn.Module):
    def __init__(self, width, heads, **moe):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out, self.moe = LoRA(width, 3 * width), LoRA(width, width), MoE(width, **moe)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.moe(self.norm2(x))


class LM(nn.Module):
    def __init__(self, words=32_000, width=1024, layers=24, heads=16):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList([Block(width, heads, hidden=1024, experts=32, chosen=4) for _ in range(layers)])

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


with torch.device("cuda"):
    model = LM().to(torch.bfloat16)
for name, parameter in model.named_parameters():
    parameter.requires_grad_(name.endswith((".a", ".b")))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
for step in range(3):
    tokens = torch.randint(0, 32_000, (2, 513)).cuda()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
